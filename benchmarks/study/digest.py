"""A digest of the code that a result depends on: what tells a kept result from one that has to be made anew."""

import ast
import functools
import hashlib
import io
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

import bernflow

ROOTS = {"benchmarks": Path(__file__).parents[1], "bernflow": Path(bernflow.__file__).parent}
DATA = ROOTS["benchmarks"] / "data"
# Packages that show results. No number depends on them, so that a better picture leaves what was measured valid.
SHOWN_BY = (
    "bernflow.plots",
    "bernflow.report",
    "bernflow.cli",
    "benchmarks.commands",
    "benchmarks.study.page",
    "benchmarks.study.figures",
    "benchmarks.study.tables",
    "benchmarks.study.stamp",
    "benchmarks.study.digest",
)
NUM_DIGITS = 16


def code_digest(*modules: str) -> str:
    """Return a digest of modules and of everything of ours that they import, directly or not, with the data they name.

    Comments, docstrings and empty lines do not count; neither do packages that only show results. The digest is that
    of the text, so that it is the same with every version of Python.

    Example:
        >>> code_digest("benchmarks.data") == code_digest("benchmarks.data")
        True
        >>> code_digest("benchmarks.data") == code_digest("benchmarks.targets")
        False
    """
    return _digest_of(tuple(sorted(set(modules))))


@functools.cache
def _digest_of(modules: tuple[str, ...]) -> str:
    total = hashlib.sha256()
    names = sorted(closure(modules))
    words: set[str] = set()
    for name in names:
        content, strings = _essence(path_of(name))  # type: ignore[arg-type]
        words |= strings
        total.update(f"{name}\n{content}\n".encode())
    for path in sorted(DATA.iterdir()):
        if path.name in words or path.stem in words:
            total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()[:NUM_DIGITS]


def closure(modules: Iterable[str]) -> set[str]:
    """Return the names of all modules of ours that some modules need."""
    waiting, found = list(modules), set()
    while waiting:
        name = waiting.pop()
        if name in found or any(name == shown or name.startswith(f"{shown}.") for shown in SHOWN_BY):
            continue
        path = path_of(name)
        if path is None:
            raise ModuleNotFoundError(f"There is no module {name} of ours: expected one below {', '.join(ROOTS)}.")
        found.add(name)
        waiting += _needed(path)
    return found


def forget() -> None:
    """Read all files anew the next time: they may have changed."""
    for cached in (_digest_of, _essence, _needed, _passed_on):
        cached.cache_clear()


def path_of(module: str) -> Path | None:
    """Return the file of a module of ours; None for one that is not."""
    root, *parts = module.split(".")
    if root not in ROOTS:
        return None
    place = ROOTS[root].joinpath(*parts)
    return next((p for p in (place / "__init__.py", place.with_suffix(".py")) if p.is_file()), None)


@functools.cache
def _needed(path: Path) -> tuple[str, ...]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    needed: dict[str, None] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            needed |= {alias.name: None for alias in node.names if path_of(alias.name) is not None}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            needed |= {name: None for alias in node.names for name in _defined_in(node.module, alias.name)}
    return tuple(needed)


def _defined_in(module: str, name: str) -> Iterator[str]:
    """Yield the module that defines what `from module import name` brings: packages pass on names of their parts."""
    if path_of(f"{module}.{name}") is not None:
        yield f"{module}.{name}"
        return
    path = path_of(module)
    if path is None:
        return
    passed = _passed_on(path) if path.name == "__init__.py" else {}
    if name in passed:
        yield from _defined_in(*passed[name])
    else:
        yield module


@functools.cache
def _passed_on(path: Path) -> dict[str, tuple[str, str]]:
    """Return, by the name that it gives them, module and name of what a package takes from its parts."""
    nodes = (n for n in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(n, ast.ImportFrom))
    ours = [node for node in nodes if node.module is not None and path_of(node.module) is not None]
    return {a.asname or a.name: (str(node.module), a.name) for node in ours for a in node.names}


@functools.cache
def _essence(path: Path) -> tuple[str, frozenset[str]]:
    """Return the text of a module without what changes no result, and the strings in it."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    strings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and first.end_lineno is not None:
                lines[first.lineno - 1 : first.end_lineno] = [""] * (first.end_lineno - first.lineno + 1)
    return "\n".join(stripped for line in lines if (stripped := line.rstrip())), frozenset(strings)
