"""Insert code and results into the gallery from the files that have run, so that the page never differs from them.

The page has comments such as `<!-- code: docs/tutorials/regression.md -->`, which the site replaces:

* `code: PATH` shows the first Python block of a page, or a whole program;
* `code: PATH NAME ...` shows functions of a Python module;
* `verdict: PATH` quotes the first verdict among the outputs of a page;
* `row: PATH | SECTION | CELL, ... | COLUMN, ...` shows columns of the row that begins with these cells.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIRECTIVE = re.compile(r"^<!-- (code|verdict|row): (.+?) -->$", flags=re.MULTILINE)
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)
OUTPUT = re.compile(r"<!-- output -->\n(.*?)<!-- end of output -->", flags=re.DOTALL)
VERDICT = re.compile(r"\b(?:Good|Usable|Poor) \([^)]*\):.*?\.(?=\s)", flags=re.DOTALL)
LANGUAGES = {".py": "python", ".stan": "stan"}


def expand(markdown: str) -> str:
    """Return the page with all comments replaced by what they name."""
    return DIRECTIVE.sub(lambda match: EXPANSIONS[match[1]](match[2]), markdown)


def code(arguments: str) -> str:
    """Return a block of code: of a page, of a program, or functions of a module."""
    path, *names = arguments.split()
    text = _read(path)
    if path.endswith(".md"):
        source, language = _found(PYTHON_BLOCK.search(text), f"a Python block in {path}")[1], "python"
    else:
        source = _functions(text, names, path) if names else text
        language = LANGUAGES[Path(path).suffix]
    return f"```{language}\n{source.strip()}\n```"


def verdict(path: str) -> str:
    """Return the first verdict that the outputs of a page show, as a quotation."""
    outputs = "\n".join(OUTPUT.findall(_read(path)))
    return "> " + " ".join(_found(VERDICT.search(outputs), f"a verdict in the outputs of {path}")[0].split())


def row(arguments: str) -> str:
    """Return a table of one row, with some columns of a table of a page."""
    path, section, cells, columns = (part.strip() for part in arguments.split("|"))
    wanted, shown = ([cell.strip() for cell in part.split(",")] for part in (cells, columns))
    rest = _read(path).partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in rest.splitlines() if "|" in line]
    found = [cells for cells in rows if cells[: len(wanted)] == wanted]
    if len(found) != 1:
        raise LookupError(f"{path}, section {section!r}: found {len(found)} rows that begin with {wanted}, expected 1.")
    places = [rows[0].index(name) for name in shown]
    lines = (shown, ["---"] * len(shown), [found[0][place] for place in places])
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


EXPANSIONS = {"code": code, "verdict": verdict, "row": row}


def _functions(text: str, names: list[str], path: str) -> str:
    nodes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    if missing := [name for name in names if name not in nodes]:
        raise LookupError(f"{path} has no function {', '.join(missing)}: correct the comment in docs/gallery.md.")
    return "\n\n\n".join(ast.get_source_segment(text, nodes[name]) or "" for name in names)


def _found(match: re.Match[str] | None, what: str) -> re.Match[str]:
    if match is None:
        raise LookupError(f"There is not {what}: correct the comment in docs/gallery.md.")
    return match


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")
