"""Fits of real posteriors against the reference draws of posteriordb; run `python -m benchmarks.posteriordb`."""
