"""What a subcommand is."""

import argparse
from collections.abc import Callable
from typing import NamedTuple

# Exit codes. A poor fit has finished and is written: neither a success nor an error.
OK, ERROR, USAGE, POOR, INTERRUPTED = 0, 1, 2, 3, 130


class Command(NamedTuple):
    """One subcommand.

    Attributes:
        name: the word on the command line.
        summary: one line for the list of commands.
        description: a few sentences for its own help.
        add_arguments: declares its arguments.
        run: does it, given the parsed arguments, and returns an exit code (None: 0); failures are raised as
            `BernflowError` or `OSError`.
        epilog: examples and the like, after the arguments in its help; paragraphs of several lines stay as they are.
    """

    name: str
    summary: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]
    epilog: str = ""
