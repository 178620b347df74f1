"""Commands of the repository's package `benchmarks`, which is not part of the installed library."""

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
# A file that identifies the package, because other projects also have one of this name.
MARK = Path(PACKAGE, "commands", "__init__.py")
SUMMARIES = {
    "reproduce": "run the paper's experiments",
    "benchmark": "compare accuracy and speed with other libraries",
    "data": "prepare the images of the melanoma experiment",
}


def commands(word: str | None = None) -> tuple[Command, ...]:
    """Return the commands of the package, or stand-ins that say where to get it.

    Args:
        word: the requested command. Code in the current folder and on `sys.path` is used only for commands of the
            package; None uses the checkout from which bernflow itself runs.
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
    """Return the folder of the package: bernflow's own checkout, the current folder, or one on `sys.path`."""
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
