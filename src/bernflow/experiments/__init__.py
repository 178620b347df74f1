"""The experiments of the paper, on the public surface alone."""
