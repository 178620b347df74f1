"""`bernflow completion`: scripts that let a shell complete the command line, made from its own description."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from bernflow.cli.command import Command
from bernflow.cli.shells import SHELLS, Argument, Words


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", choices=tuple(SHELLS), help="the shell")


def run(options: argparse.Namespace) -> None:
    """Print the script."""
    from bernflow.cli.app import make_parser  # which lists this command

    print(SHELLS[options.shell](list(describe(make_parser()))), end="")


def describe(parser: argparse.ArgumentParser) -> Iterator[Words]:
    """Yield what the program takes, then what each of its commands takes."""
    yield _words("", "", parser)
    # argparse has no public way to list what was declared.
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            summaries = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, details in action.choices.items():
                yield _words(name, summaries.get(name, ""), details)


def _words(name: str, summary: str, parser: argparse.ArgumentParser) -> Words:
    arguments = [_argument(a) for a in parser._actions if not isinstance(a, argparse._SubParsersAction)]
    if name:
        arguments = list(dict.fromkeys([*arguments, *_of_inner_commands(parser)]))
    options = tuple(argument for argument in arguments if argument.flags)
    return Words(name, summary, options, tuple(argument for argument in arguments if not argument.flags))


def _of_inner_commands(parser: argparse.ArgumentParser) -> Iterator[Argument]:
    """Yield the names of the commands inside of a command, and what each of them takes."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            title = str(action.metavar or "command").lower()
            yield Argument((), title, True, tuple(action.choices), is_path=False)
            for details in action.choices.values():
                yield from (_argument(inner) for inner in details._actions)


def _argument(action: argparse.Action) -> Argument:
    return Argument(
        flags=tuple(action.option_strings),
        help=(action.help or "").replace("%%", "%"),
        takes_value=action.nargs != 0,
        choices=tuple(str(choice) for choice in action.choices or ()),
        # The model of `bernflow fit` is a file, with a name after it.
        is_path=action.type is Path or action.dest == "model",
        repeated=action.nargs in ("*", "+"),
    )


COMMAND = Command(
    name="completion",
    summary="print a script that completes commands in a shell",
    description="Print a script for bash, zsh or fish that completes commands, options and their values with Tab.",
    add_arguments=add_arguments,
    run=run,
    epilog="""
examples:
  bernflow completion bash > ~/.local/share/bash-completion/completions/bernflow
  bernflow completion zsh > ~/.zfunc/_bernflow
  bernflow completion fish > ~/.config/fish/completions/bernflow.fish

zsh needs `fpath+=~/.zfunc` before `compinit` in ~/.zshrc.
""",
)
