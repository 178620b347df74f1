"""bernflow."""
