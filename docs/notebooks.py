"""Turn the tutorials into notebooks: the pages are the only source.

`python docs/notebooks.py` writes notebooks/*.ipynb; `--execute` runs them first, so that they show their output.
"""

import argparse
import ast
import json
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
REPOSITORY = "https://github.com/bernflow/bernflow/blob/main"
LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)#\s]+)")
# The output on a page; a notebook has its own.
OUTPUT = re.compile(r"\n<!-- output -->\n.*?<!-- end of output -->\n", flags=re.DOTALL)
# Seconds for one cell.
TIME_LIMIT = 900


def pages() -> list[Path]:
    """List the tutorials."""
    return sorted(page for page in TUTORIALS.glob("*.md") if page.stem != "index")


def make(page: Path) -> dict[str, Any]:
    """Return the notebook of a page: its text unchanged, and every paragraph of its code in a cell."""
    import jupytext

    place = page.relative_to(ROOT).parent.as_posix()
    written = OUTPUT.sub("", page.read_text(encoding="utf-8"))
    text = LINK.sub(lambda m: f"{m[1]}{REPOSITORY}/{posixpath.normpath(posixpath.join(place, m[2]))}", written)
    notebook = jupytext.reads(text, fmt="md")
    cells = []
    for cell in notebook.cells:
        sources = paragraphs(cell.source) if cell.cell_type == "code" else [cell.source]
        cells += [{**cell, "source": source, "id": f"cell-{len(cells) + i}"} for i, source in enumerate(sources)]
    return _notebook(cells)


def of_code(sources: list[str]) -> dict[str, Any]:
    """Return a notebook of nothing but code, one cell each."""
    empty = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": []}
    return _notebook([{**empty, "source": source, "id": f"cell-{i}"} for i, source in enumerate(sources)])


def _notebook(cells: list[dict[str, Any]]) -> dict[str, Any]:
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def paragraphs(code: str) -> list[str]:
    """Split code at blank lines between statements; a final `print` becomes an expression that the notebook shows."""
    lines = code.splitlines()
    # Lines of statements; code is not split at blank lines inside them.
    inside = {
        number for node in ast.parse(code).body for number in range(node.lineno, (node.end_lineno or node.lineno))
    }
    parts: list[list[str]] = [[]]
    for number, line in enumerate(lines, start=1):
        if not line.strip() and number not in inside:
            parts.append([])
        else:
            parts[-1].append(line)
    return [_show_last("\n".join(part)) for part in parts if part]


def _show_last(code: str) -> str:
    """Replace a final `print(name)` or `print(name[...])` by its argument, which a notebook shows in rich form."""
    body = ast.parse(code).body
    match body[-1] if body else None:
        case ast.Expr(ast.Call(ast.Name("print"), [ast.Name() | ast.Subscript() as shown], [])) as last:
            return "\n".join([*code.splitlines()[: last.lineno - 1], ast.get_source_segment(code, shown) or ""])
    return code


def text_of(notebook: dict[str, Any]) -> str:
    """Return the content of the file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def execute(notebook: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Run a notebook in its own kernel, in `folder`, and return it with its output."""
    import nbclient
    import nbformat

    nodes = nbformat.from_dict(notebook)
    client = nbclient.NotebookClient(nodes, timeout=TIME_LIMIT, resources={"metadata": {"path": str(folder)}})
    return dict(client.execute())


def main() -> None:
    """Write the notebooks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "notebooks", metavar="DIR", help="folder (default: notebooks)"
    )
    parser.add_argument("--execute", action="store_true", help="run them, which takes minutes")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for page in pages():
        notebook = make(page)
        if options.execute:
            notebook = execute(notebook, options.out)
        target = options.out / f"{page.stem}.ipynb"
        target.write_text(text_of(notebook), encoding="utf-8")
        print(target)


if __name__ == "__main__":
    main()
