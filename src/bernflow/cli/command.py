"""The interface of subcommands."""

import argparse
from collections.abc import Callable
from typing import NamedTuple

# Exit codes. A poor fit is finished and written, so it is neither a success nor an error.
OK, ERROR, USAGE, POOR, INTERRUPTED = 0, 1, 2, 3, 130


class Command(NamedTuple):
    """A subcommand.

    Attributes:
        name: its name on the command line.
        summary: one line for the list of commands.
        description: a few sentences for its own help.
        add_arguments: declares its arguments.
        run: runs it with the parsed arguments and returns an exit code (None means 0); errors are raised as
            `BernflowError` or `OSError`.
        epilog: examples and the like, after the arguments in its help; paragraphs of several lines are not wrapped.
    """

    name: str
    summary: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int | None]
    epilog: str = ""
