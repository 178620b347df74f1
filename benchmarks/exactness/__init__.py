"""Fits of models whose evidence and posterior are known exactly."""
