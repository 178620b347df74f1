"""Checkpoints of a training, and the identity of a fit by which a later call knows its own."""
