"""Thirteen posteriors of the public posteriordb as models, and the agreement of fits with their reference draws."""
