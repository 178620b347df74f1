"""The command line."""

from bernflow.cli.app import main
from bernflow.cli.command import Command

__all__ = ["Command", "main"]
