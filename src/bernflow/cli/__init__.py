"""The command line."""

from bernflow.cli.app import main

__all__ = ["main"]
