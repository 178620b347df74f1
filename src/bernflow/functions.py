"""Inspection of functions: their code without line numbers, the names that they load, and their origin."""

import dis
import functools
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

INSTALLED = ("site-packages", "dist-packages")
LOADS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
LOADS_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")
# Names of the main module, here and in a worker.
MAIN = ("__main__", "__mp_main__")
IMPORTS = ("IMPORT_NAME",)


class Names(NamedTuple):
    """The names that a function and its nested functions load."""

    globals: frozenset[str]
    attributes: frozenset[str]
    imports: frozenset[str]

    def modules(self) -> Iterator[types.ModuleType]:
        """Yield the user modules that the function imports."""
        for name in sorted(self.imports):
            module = sys.modules.get(name)
            if isinstance(module, types.ModuleType) and not is_library(module):
                yield module


def loaded_names(code: types.CodeType) -> Names:
    """Return the globals, attributes and imports that a function loads."""
    found: dict[str, set[str]] = {"globals": set(), "attributes": set(), "imports": set()}
    for part in _nested(code):
        for step in dis.get_instructions(part):
            for kind, operations in (("globals", LOADS_GLOBAL), ("attributes", LOADS_ATTRIBUTE), ("imports", IMPORTS)):
                if step.opname in operations:
                    found[kind].add(str(step.argval))
    return Names(*(frozenset(found[kind]) for kind in Names._fields))


def code_parts(code: types.CodeType) -> Iterator[str | bytes]:
    """Yield the parts of a code object that determine its behavior, except for constants; no file names or lines."""
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + 2]
    yield "code"
    yield repr((counts, arguments, code.co_names, code.co_freevars, code.co_cellvars))
    yield code.co_code
    yield getattr(code, "co_exceptiontable", b"")


def is_library(value: Any) -> bool:
    """Tell whether a function, class or module belongs to Python, to bernflow or to an installed package."""
    name = value.__name__ if isinstance(value, types.ModuleType) else getattr(value, "__module__", None)
    return isinstance(name, str) and _is_library_module(name)


@functools.cache
def _library_folders() -> tuple[Path, ...]:
    paths = sysconfig.get_paths()
    return tuple({Path(paths[name]).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")})


def _is_library_module(name: str) -> bool:
    top = name.partition(".")[0]
    if top in MAIN:
        return False
    if top == "bernflow" or top in sys.stdlib_module_names:
        return True
    file = getattr(sys.modules.get(name), "__file__", None) or getattr(sys.modules.get(top), "__file__", None)
    return file is not None and _lies_in_library(file)


@functools.lru_cache(4096)
def _lies_in_library(file: str) -> bool:
    path = Path(file).resolve()
    return any(part in INSTALLED for part in path.parts) or any(map(path.is_relative_to, _library_folders()))


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)
