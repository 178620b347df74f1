"""Training: one step, one schedule, one stopping rule and one kind of checkpoint for everything that is trained."""
