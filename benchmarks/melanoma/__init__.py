"""The melanoma experiment: pictures of skin lesions and the patient's age, by a network and a Bayesian slope."""
