"""Write the outputs of every page that has some into it, from a run of its code as a notebook.

`python docs/outputs.py [NAME ...]` runs tutorials and the other pages with outputs, which takes minutes, and writes
their outputs below each block of code, and their pictures to docs/assets/tutorials. A test runs the code of all pages
and compares what it prints with what they show.
"""

import base64
import importlib.util
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
FOLDER = DOCS / "assets" / "tutorials"
WIDGET = "application/vnd.jupyter.widget-view+json"
# Other pages with outputs.
OTHER_PAGES = (
    DOCS.parent / "README.md",
    DOCS / "index.md",
    DOCS / "start.md",
    DOCS / "gallery.md",
    *(DOCS / "how-to" / f"{name}.md" for name in ("choose-a-family", "coming-from", "high-k-hat", "read-the-verdict")),
)
HEADING = re.compile(r"^(#+) (.*)$", flags=re.MULTILINE)
# A block of code and, between the two comments, its output.
BEGIN, END = "<!-- output -->", "<!-- end of output -->"
BLOCK = re.compile(rf"^```python\n(.*?)^```\n(\n{BEGIN}\n.*?{END}\n)?", flags=re.DOTALL | re.MULTILINE)


def with_outputs(page: Path, cells: Iterator[dict[str, Any]], num_cells: Any, folder: Path = FOLDER) -> str:
    """Return a page with the output of its code below each block, and write the pictures.

    Args:
        page: the tutorial.
        cells: code cells of its notebook after it ran.
        num_cells: returns the number of cells of a block of code.
        folder: folder of the pictures.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = f"{'' if page.parent == DOCS else '../'}assets/tutorials"
    names: list[str] = []

    def block(match: re.Match) -> str:
        heading = HEADING.findall(BLOCK.sub("", match.string[: match.start()]))[-1]
        lines: list[str] = []
        drawn: list[str] = []
        for _ in range(num_cells(match[1])):
            for output in next(cells).get("outputs", ()):
                if WIDGET in output.get("data", {}):  # a progress bar
                    continue
                if output.get("name") == "stdout":
                    lines += output["text"].rstrip().splitlines()
                elif "image/png" in output.get("data", {}):
                    name = picture_name(page, heading, names)
                    (folder / name).write_bytes(base64.b64decode(output["data"]["image/png"]))
                    drawn.append(f"![{heading[1]}: figure drawn by the code]({place}/{name})")
                elif "text/plain" in output.get("data", {}):
                    lines += output["data"]["text/plain"].rstrip().splitlines()
        shown = ["\n".join(["```text", *lines, "```"])] if lines else []
        if not (shown or drawn):
            return f"```python\n{match[1]}```\n"
        return "\n".join([f"```python\n{match[1]}```\n", BEGIN, "\n\n".join(["*Output*", *shown, *drawn]), END, ""])

    return BLOCK.sub(block, page.read_text(encoding="utf-8"))


def picture_name(page: Path, heading: tuple[str, str], names: list[str]) -> str:
    """Name a picture after its page, or after its section if the code stands in one; a second one gets a number."""
    level, title = heading
    stem = page.stem if level == "#" else re.sub(r"\W+", "-", title.lower()).strip("-")
    names.append(stem)
    num = names.count(stem)
    return f"{stem}{'' if num == 1 else f'-{num}'}.png"


def shown(page: str) -> list[tuple[str, str]]:
    """Return every block of code of a page with the text of its output, which is empty where none is shown."""
    blocks = []
    for match in BLOCK.finditer(page):
        text = re.search(r"^```text\n(.*?)^```", match[2] or "", flags=re.DOTALL | re.MULTILINE)
        blocks.append((match[1], text[1] if text else ""))
    return blocks


def main(names: list[str]) -> None:
    """Run the named pages, or all, and write their outputs."""
    spec = importlib.util.spec_from_file_location("notebooks", Path(__file__).with_name("notebooks.py"))
    assert spec is not None
    assert spec.loader is not None
    notebooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebooks)
    for page in [*notebooks.pages(), *OTHER_PAGES]:
        if names and page.stem not in names:
            continue
        codes = [code for code, _ in shown(page.read_text(encoding="utf-8"))]
        sources = [source for code in codes for source in notebooks.paragraphs(code)]
        with tempfile.TemporaryDirectory() as folder:
            done = notebooks.execute(notebooks.of_code(sources), Path(folder))
        text = with_outputs(page, iter(done["cells"]), lambda code: len(notebooks.paragraphs(code)))
        page.write_text(text, encoding="utf-8")
        print(page)


if __name__ == "__main__":
    main(sys.argv[1:])
