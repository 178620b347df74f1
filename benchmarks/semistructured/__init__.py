"""What the Bayesian part of a semi-structured model costs."""
