"""Inspection of functions: their code without line numbers, the names that they load, and their origin."""

import dis
import functools
import importlib.util
import itertools
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

INSTALLED = ("site-packages", "dist-packages")
LOADS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
LOADS_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")
# With these a function may read any global of its module.
READS_GLOBALS = frozenset({"globals", "eval", "exec"})
# Instructions without effect, which may stand between a load and the use of what it loads.
SKIPPED = ("CACHE", "EXTENDED_ARG", "NOP", "PUSH_NULL")
# Names of the main module, here and in a worker.
MAIN = ("__main__", "__mp_main__")


class Names(NamedTuple):
    """The names that a function and its nested functions load.

    Attributes:
        globals: global variables.
        attributes: attributes, and names that are imported from a module.
        imports: modules that are imported in the function; a relative one begins with dots.
        bare: variables, attributes and imports of `imports` that are used other than by an attribute with a name in
            the code. Where such a one is a module, nobody knows which of its attributes are read.
        texts: string constants.
    """

    globals: frozenset[str]
    attributes: frozenset[str]
    imports: frozenset[str]
    bare: frozenset[str]
    texts: frozenset[str]

    def modules(self, package: str | None) -> Iterator[tuple[str, types.ModuleType]]:
        """Yield the user modules that a function of a package imports, with the names in `imports`."""
        for name in sorted(self.imports):
            module = _loaded_module(name, package)
            if module is not None and not is_library(module):
                yield name, module

    def computed_imports(self) -> Iterator[types.ModuleType]:
        """Yield modules whose names are string constants, if a name of the function may be that of a module."""
        if not {"import_module", "__import__"} & (self.globals | self.attributes):
            return
        for text in sorted(self.texts):
            if isinstance(module := sys.modules.get(text), types.ModuleType):
                yield module


def loaded_names(code: types.CodeType) -> Names:
    """Return the names that a function loads."""
    found: dict[str, set[str]] = {name: set() for name in Names._fields}
    for part in _nested(code):
        steps = [step for step in dis.get_instructions(part) if step.opname not in SKIPPED]
        found["texts"].update(constant for constant in part.co_consts if isinstance(constant, str))
        found["globals"].update(step.argval for step in steps if step.opname in LOADS_GLOBAL)
        found["attributes"].update(step.argval for step in steps if step.opname in LOADS_ATTRIBUTE)
        bare = {name for step, after in itertools.pairwise(steps) for name in _unqualified(step, after)}
        found["bare"] |= bare
        for names, variable in _imports(steps):
            found["imports"].update(names)
            found["bare"].update(names if variable in bare else ())
    return Names(*(frozenset(found[kind]) for kind in Names._fields))


def _imports(steps: list[dis.Instruction]) -> Iterator[tuple[set[str], str | None]]:
    """Yield what import statements import, and the variable that a module or a name of it is bound to."""
    for i, step in enumerate(steps):
        if step.opname == "IMPORT_FROM":
            yield {step.argval}, _stored(steps, i)
        elif step.opname == "IMPORT_NAME":
            level, members = (steps[j].argval for j in (i - 2, i - 1))
            name = "." * level + step.argval
            # `import a.b` binds a, and `import a.b as c` binds a.b; `from a import b` binds no module.
            yield {name} | ({name.partition(".")[0]} if level == 0 else set()), None if members else _stored(steps, i)


def _unqualified(step: dis.Instruction, following: dis.Instruction) -> Iterator[str]:
    """Yield what an instruction loads, unless the next one takes an ordinary attribute of it."""
    if not step.opname.startswith("LOAD_") and step.opname != "STORE_FAST_LOAD_FAST":
        return
    if step.opname in ("LOAD_CONST", "LOAD_CLOSURE"):  # functions in it are examined themselves
        return
    loaded = step.argval if isinstance(step.argval, tuple) else (step.argval,)
    *others, last = loaded[1:] if step.opname.startswith("STORE") else loaded
    qualified = following.opname in LOADS_ATTRIBUTE and not str(following.argval).startswith("__")
    yield from (name for name in (*others, *(() if qualified else (last,))) if isinstance(name, str))


def _stored(steps: list[dis.Instruction], start: int) -> str | None:
    """Return the first variable that is bound after an import."""
    for step in steps[start:]:
        if step.opname.startswith("STORE_"):
            return step.argval[0] if isinstance(step.argval, tuple) else step.argval
    return None


def _loaded_module(name: str, package: str | None) -> types.ModuleType | None:
    try:
        found = sys.modules.get(importlib.util.resolve_name(name, package))
    except ImportError:  # relative, outside of a package
        return None
    return found if isinstance(found, types.ModuleType) else None


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
