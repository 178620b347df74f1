"""Commands that run the repository's package `benchmarks`, which the installed library does without."""

import argparse
import importlib
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import chain
from pathlib import Path

import bernflow
from bernflow.cli.command import Command
from bernflow.errors import BernflowError

REPOSITORY = "https://github.com/bernflow/bernflow"
PACKAGE = "benchmarks"
# What such a package must have: other projects have one of that name, too.
MARK = Path(PACKAGE, "commands", "__init__.py")
SUMMARIES = {
    "reproduce": "run the paper's experiments",
    "benchmark": "measure accuracy and speed beside other libraries",
    "data": "prepare the pictures of the melanoma experiment",
}


def commands(word: str | None = None) -> tuple[Command, ...]:
    """Return the commands of the package, or stand-ins that say where it is.

    Args:
        word: the command that is asked for. The code of the current folder and of `sys.path` runs only if it is one of
            these; None uses the checkout that bernflow itself runs from.
    """
    if word is not None and word not in SUMMARIES:
        return STAND_INS
    root = find_root() if word else next(_beside_the_source(), None)
    if root is None:
        return STAND_INS
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return importlib.import_module(f"{PACKAGE}.commands").COMMANDS


def find_root() -> Path | None:
    """Return the folder that the package lies in: bernflow's own checkout, the current folder, or one of `sys.path`."""
    return next(chain(_beside_the_source(), _with_package(Path.cwd()), _importable()), None)


def _beside_the_source() -> Iterator[Path]:
    return _with_package(Path(bernflow.__file__).resolve().parents[2])


def _importable() -> Iterator[Path]:
    spec = find_spec(PACKAGE)
    for place in (spec.submodule_search_locations or ()) if spec else ():
        yield from _with_package(Path(place).parent)


def _with_package(folder: Path) -> Iterator[Path]:
    if (folder / MARK).is_file():
        yield folder


def _refuse(options: argparse.Namespace) -> None:
    name = options.command.name
    raise BernflowError(
        f"`bernflow {name}` needs the package {PACKAGE}, which is part of the repository and not of the installed "
        f"library, and {Path.cwd()} is not a checkout of it. Get it with `git clone {REPOSITORY}`, and run "
        f"`bernflow {name}` again in the folder bernflow."
    )


STAND_INS = tuple(
    Command(
        name,
        summary,
        f"This command is part of the repository, not of the installed library. Get it with `git clone {REPOSITORY}`, "
        "and run the command in the folder bernflow.",
        lambda parser: None,
        _refuse,
    )
    for name, summary in SUMMARIES.items()
)
