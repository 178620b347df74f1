"""The command `bernflow`: run the subcommand and report errors as one sentence."""

import argparse
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, NoReturn

from bernflow.cli import checkout, compare, completion, demo, doctor, fit, report, summary
from bernflow.cli.command import ERROR, INTERRUPTED, OK, USAGE, Command
from bernflow.errors import BernflowError
from bernflow.nearest import nearest
from bernflow.text import printable
from bernflow.versions import version_of

# Every subcommand is a module with a `COMMAND`, listed here.
COMMANDS: tuple[Command, ...] = (
    demo.COMMAND,
    fit.COMMAND,
    summary.COMMAND,
    compare.COMMAND,
    report.COMMAND,
    doctor.COMMAND,
    completion.COMMAND,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Args:
        arguments: the arguments after `bernflow`; those of the process if None.

    Returns:
        0 for success, 1 for an error, 2 for an invalid command line, 3 for a poor fit, 130 if interrupted.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    parser = make_parser(checkout.commands(words[0] if words else ""))
    try:
        options, unknown = parser.parse_known_args(words)
        if unknown and options.command not in checkout.STAND_INS:
            _refuse(options.parser, unknown)
        if options.command is None:
            parser.print_help(sys.stderr)
            return USAGE
        code = options.command.run(options)
        sys.stdout.flush()
        return code or OK
    except SystemExit as stop:  # argparse exits with 0 for help and version, and 2 for an invalid command line
        return OK if stop.code is None else int(stop.code)
    except KeyboardInterrupt:
        return _fail("interrupted.", INTERRUPTED)
    except BrokenPipeError:
        # The reader of a pipe has exited, as in `bernflow demo | head`; avoid another error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ERROR
    except BernflowError as error:
        return _fail(str(error))
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _fail(f"{where}{error.strerror or error}.")


def _refuse(parser: argparse.ArgumentParser, unknown: Sequence[str]) -> NoReturn:
    """Report unknown arguments with the usage of the command, and suggestions."""
    # argparse has no public way to list arguments.
    known = [option for action in parser._actions for option in action.option_strings]
    words = [word.partition("=")[0] for word in unknown if word.startswith("-")] or list(unknown)
    guesses = [guess for guess in (nearest(word, known) for word in words) if guess]
    parser.error(f"unrecognized arguments: {' '.join(unknown)}.{''.join(guesses)}")


def _fail(message: str, code: int = ERROR) -> int:
    print(printable(f"bernflow: {message}", keep="\n\t"), file=sys.stderr)
    return code


class _Formatter(argparse.HelpFormatter):
    """Aligns the summaries of commands, for which argparse ignores the indentation.

    Paragraphs of longer texts are wrapped separately, and those of several lines (examples) are not wrapped.
    """

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=28)
        self._action_max_length = max(len(command.name) for command in (*COMMANDS, *checkout.STAND_INS)) + 6

    def _split_lines(self, text: str, width: int) -> list[str]:
        # Do not break lines at hyphens, which options and paths contain.
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.strip("\n").split("\n\n")
        return "\n\n".join(p if "\n" in p else "\n".join(self._split_lines(p, width)) for p in parts)


class _Parser(argparse.ArgumentParser):
    """Suggests the closest match for unknown choices."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        guess = nearest(str(value), known)
        raise argparse.ArgumentError(action, f"there is no {value!r}: expected one of {', '.join(known)}.{guess}")


def make_parser(others: Sequence[Command] | None = None) -> argparse.ArgumentParser:
    """Make the parser of the command line.

    Args:
        others: the commands besides `COMMANDS`; if None, those of the checkout from which bernflow runs.
    """
    others = checkout.commands() if others is None else others
    parser = _Parser(
        prog="bernflow",
        description="Bayesian inference with Bernstein flows: a posterior by optimization, with a verdict on it.",
        epilog="""
first steps:
  bernflow doctor                        is everything there?
  bernflow demo                          see one fit from the data to a picture
  bernflow fit model.stan data.json      fit your own model

`bernflow COMMAND --help` explains a command.
""",
        formatter_class=_Formatter,
    )
    parser.add_argument("--version", action="version", version=f"bernflow {version_of('bernflow')}")
    parser.set_defaults(command=None, parser=parser)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for command in (*COMMANDS, *others):
        details = commands.add_parser(
            command.name,
            help=command.summary,
            description=command.description,
            epilog=command.epilog,
            allow_abbrev=False,
            formatter_class=_Formatter,
        )
        command.add_arguments(details)
        details.set_defaults(command=command, parser=details)
    return parser
