"""Fits of real posteriors against the reference draws of posteriordb; run `bernflow benchmark posteriordb`."""
