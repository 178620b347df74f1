"""Accuracy of bernflow, of the paper's recipe and of NumPyro's guides on posteriors of known evidence.

Run `python -m benchmarks.accuracy --help` from the root of the repository.
"""
