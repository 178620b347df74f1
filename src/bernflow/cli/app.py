"""The command `bernflow`: finds the subcommand, runs it, and turns errors into one sentence."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from bernflow.cli import data, demo, reproduce
from bernflow.cli.command import Command
from bernflow.errors import BernflowError

# Every subcommand is one module with one `COMMAND`, listed here.
COMMANDS: tuple[Command, ...] = (demo.COMMAND, reproduce.COMMAND, data.COMMAND)

OK, ERROR, USAGE, INTERRUPTED = 0, 1, 2, 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: the words after `bernflow`; those of the process if None.

    Returns:
        0 if all went well, 1 after an error, 2 if the command line is wrong, 130 if interrupted.
    """
    parser = _parser()
    try:
        options = parser.parse_args(arguments)
        if options.command is None:
            parser.print_help(sys.stderr)
            return USAGE
        options.command.run(options)
        sys.stdout.flush()
        return OK
    except SystemExit as stop:  # argparse: help and version end with 0, a wrong command line with 2
        return OK if stop.code is None else int(stop.code)
    except KeyboardInterrupt:
        return _fail("interrupted.", INTERRUPTED)
    except BrokenPipeError:
        # The reader has gone, as in `bernflow demo | head`; nothing is left that could fail at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}.")
    except BernflowError as error:
        return _fail(str(error))


def _fail(message: str, code: int = ERROR) -> int:
    print(f"bernflow: {message}", file=sys.stderr)
    return code


class _Formatter(argparse.HelpFormatter):
    """Leaves room for the longest name of a command beside its summary; argparse forgets that they are indented."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=28)
        self._action_max_length = max(len(command.name) for command in COMMANDS) + 6


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bernflow",
        description="Bayesian inference with Bernstein flows: a posterior by optimization, with a verdict on it.",
        epilog="`bernflow COMMAND --help` explains a command.",
        formatter_class=_Formatter,
    )
    parser.add_argument("--version", action="version", version=f"bernflow {metadata.version('bernflow')}")
    parser.set_defaults(command=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in COMMANDS:
        details = commands.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            allow_abbrev=False,
            formatter_class=_Formatter,
        )
        command.add_arguments(details)
        details.set_defaults(command=command)
    return parser
