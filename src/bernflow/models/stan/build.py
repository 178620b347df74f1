"""Compilation of a Stan program to a cached shared library."""

import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jaxlib

from bernflow.errors import BernflowError, ModelError
from bernflow.models.stan.cache import cache_folder, produce
from bernflow.models.stan.toolchain import Toolchain, find_stanc, find_toolchain
from bernflow.models.stan.trial import try_library

# The name of the program in the generated code, so that the same program under another name is not recompiled;
# messages show the user's own name.
FILE = "model.stan"
INCLUDES = "includes"
SHIM = Path(__file__).with_name("shim.cpp")
LIBRARY = "program.so"
# Precompiled headers halve the compile time, but take longer to make than one compilation and most of a gigabyte. They
# are made after this many programs have been compiled without them.
PROGRAMS_BEFORE_HEADERS = 2
SMALL = "parameters { real<lower=0> x; } model { x ~ normal(0, 1); }"
# Part of the cache key of a library: a change relinks all libraries; object files are kept.
LINKING = "shared C++ runtime, tried"


@dataclass(frozen=True)
class Program:
    """A Stan program: its code, its name in messages, and the folder of its includes."""

    code: str
    name: str
    folder: Path | None = None


@dataclass(frozen=True)
class Translation:
    """The output of stanc: C++ code, the types of the variables by block, and warnings."""

    cpp: str
    info: dict[str, Any]
    warnings: str


def translate(program: Program) -> Translation:
    """Translate a program to C++.

    Raises:
        ModelError: if the program is invalid, with the message of stanc, which shows the line.
    """
    cpp, warnings = _stanc(program, "--print-cpp")
    info, _ = _stanc(program, "--info")
    return Translation(cpp, json.loads(info), warnings)


def _stanc(program: Program, option: str) -> tuple[str, str]:
    with tempfile.TemporaryDirectory(prefix="bernflow-stan-") as folder:
        path = Path(folder) / FILE
        path.write_text(program.code, encoding="utf-8")
        command = [str(find_stanc()), option, "--name", "bernflow_program", f"--filename-in-msg={FILE}", str(path)]
        if program.folder is not None:
            command.append(f"--include-paths={_without_comma(program.folder, Path(folder))}")
        run = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", errors="replace", cwd=folder)
    messages = (run.stderr.strip() or run.stdout.strip()).replace(f"'{FILE}'", repr(program.name))
    if run.returncode:
        raise ModelError(f"The Stan program is invalid. stanc reports:\n{messages}")
    return run.stdout, messages if run.stderr.strip() else ""


def _without_comma(includes: Path, folder: Path) -> Path:
    """Return a path without commas, at which stanc splits paths, through a link if needed."""
    if "," not in str(includes):
        return includes
    (folder / INCLUDES).symlink_to(includes, target_is_directory=True)
    return Path(INCLUDES)


def build(translation: Translation, name: str, progress: bool, data: str = "{}", seed: int = 0) -> Path:
    """Return the folder of the compiled library of a translated program, from the cache if possible.

    The object file of the program, which takes long to compile, is cached separately from the library, so that a new
    version of bernflow or JAX does not recompile it. A new library is tested in a separate process before it is cached.

    Args:
        translation: the output of stanc.
        name: the user's name of the program.
        progress: report compilations on stderr.
        data: the data as JSON, for the test of a new library.
        seed: seed of the transformed data block in that test.

    Raises:
        BernflowError: if the compiler fails, or the library crashes.
    """
    toolchain = find_toolchain()
    folder = cache_folder()

    def compile_program(made: Path) -> None:
        if progress and translation.warnings:
            _say(translation.warnings)
        if progress:
            _say(f"Compiling {name} with {toolchain.name} (about half a minute, cached for next time) ...")
        headers = _headers(folder, toolchain, progress)
        (made / "program.cpp").write_text(translation.cpp, encoding="utf-8")
        _compile(toolchain, [*headers, "-c", "-o", "program.o", "program.cpp"], made)

    def link(made: Path) -> None:
        with ThreadPoolExecutor(1) as other:  # if neither is cached, two compilers run in parallel
            shim = other.submit(_shim, folder, toolchain)
            program = produce(folder, f"object-{_key(toolchain.identity, translation.cpp)}", compile_program)
            objects = [str(program / "program.o"), str(shim.result() / "shim.o")]
        _compile(toolchain, ["-shared", "-o", LIBRARY, *objects, *toolchain.link_flags()], made)
        try_library(made / LIBRARY, toolchain, data, seed)

    return produce(folder, f"program-{_key(toolchain.identity, LINKING, _shim_identity(), translation.cpp)}", link)


def check_compiler(progress: bool) -> None:
    """Build a small program, unless it is cached, and test its library in a separate process.

    Raises:
        BernflowError: if something is missing, the compiler fails, or the library crashes.
    """
    folder = build(translate(Program(SMALL, FILE)), "a small Stan program", progress)
    try_library(folder / LIBRARY, find_toolchain(), "{}", 0)


def _shim(folder: Path, toolchain: Toolchain) -> Path:
    """Return the cache entry of the compiled shim, which is common to all programs."""

    def make(made: Path) -> None:
        _compile(toolchain, [f"-I{jax.ffi.include_dir()}", "-c", "-o", "shim.o", str(SHIM)], made)

    return produce(folder, f"shim-{_key(toolchain.identity, _shim_identity())}", make)


def _shim_identity() -> str:
    return f"{jaxlib.__version__}\n{SHIM.read_text()}"


def _headers(folder: Path, toolchain: Toolchain, progress: bool) -> list[str]:
    """Return flags to use precompiled headers, which are made when they are worthwhile."""
    name = f"headers-{_key(toolchain.identity)}"
    if not toolchain.is_gcc:
        return []
    if not (folder / name).is_dir() and len(list(folder.glob("object-*"))) < PROGRAMS_BEFORE_HEADERS:
        return []

    def make(made: Path) -> None:
        if progress:
            _say("Precompiling the headers of Stan once, for faster compilations from now on ...")
        (made / "header.hpp").write_text("#include <stan/model/model_header.hpp>\n")
        _compile(toolchain, ["-x", "c++-header", "header.hpp", "-o", "header.hpp.gch"], made)

    entry = produce(folder, name, make)
    os.utime(entry)  # marks it as in use, so that it is not removed
    return ["-include", str(entry / "header.hpp")]


def _compile(toolchain: Toolchain, arguments: list[str], folder: Path) -> None:
    command = [*toolchain.compiler, *toolchain.compile_flags(), *arguments]
    run = subprocess.run(command, capture_output=True, text=True, errors="replace", cwd=folder)
    if run.returncode:
        raise BernflowError(
            f"{toolchain.name} could not compile the Stan program (exit status {run.returncode}; a compilation needs "
            f"about 2 GB of memory):\n{run.stderr.strip()[-4000:]}\nThe command was: {shlex.join(command)}"
        )


def _key(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
