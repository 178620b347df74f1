"""Insert code and verdicts of tutorials into the gallery, so that the page never differs from them.

The page has comments such as `<!-- code: docs/tutorials/regression.md -->`, which the site replaces:

* `code: PATH` shows the first Python block of a page;
* `verdict: PATH` quotes the first verdict among the outputs of a page.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIRECTIVE = re.compile(r"^<!-- (code|verdict): (.+?) -->$", flags=re.MULTILINE)
PYTHON_BLOCK = re.compile(r"^```python\n.*?^```$", flags=re.DOTALL | re.MULTILINE)
OUTPUT = re.compile(r"<!-- output -->\n(.*?)<!-- end of output -->", flags=re.DOTALL)
VERDICT = re.compile(r"\b(?:Good|Usable|Poor) \([^)]*\):.*?\.(?=\s)", flags=re.DOTALL)


def expand(markdown: str) -> str:
    """Return the page with all comments replaced by what they name."""
    return DIRECTIVE.sub(lambda match: EXPANSIONS[match[1]](match[2]), markdown)


def code(path: str) -> str:
    """Return the first block of Python code of a page."""
    return _found(PYTHON_BLOCK.search(_read(path)), f"a Python block in {path}")[0]


def verdict(path: str) -> str:
    """Return the first verdict that the outputs of a page show, as a quotation."""
    outputs = "\n".join(OUTPUT.findall(_read(path)))
    return "> " + " ".join(_found(VERDICT.search(outputs), f"a verdict in the outputs of {path}")[0].split())


EXPANSIONS = {"code": code, "verdict": verdict}


def _found(match: re.Match[str] | None, what: str) -> re.Match[str]:
    if match is None:
        raise LookupError(f"There is not {what}: correct the comment in docs/gallery.md.")
    return match


def _read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")
