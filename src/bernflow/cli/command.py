"""What a subcommand is."""

import argparse
from collections.abc import Callable
from typing import NamedTuple


class Command(NamedTuple):
    """One subcommand.

    Attributes:
        name: the word on the command line.
        summary: one line for the list of commands.
        description: a few sentences for its own help.
        add_arguments: declares its arguments.
        run: does it, given the parsed arguments; failures are raised as `BernflowError` or `OSError`.
    """

    name: str
    summary: str
    description: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]
