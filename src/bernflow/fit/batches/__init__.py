"""Training on batches of rows, and of networks."""
