"""Write the outputs of every tutorial into its page, from a run of its notebook.

`python docs/outputs.py [NAME ...]` runs tutorials and the other pages with outputs, which takes minutes, and writes
their outputs below each block of code, and their pictures to docs/assets/tutorials.
"""

import base64
import importlib.util
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "assets" / "tutorials"
WIDGET = "application/vnd.jupyter.widget-view+json"
# Other pages with outputs.
OTHER_PAGES = (Path(__file__).parent / "how-to" / "coming-from.md",)
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
    title = page.read_text(encoding="utf-8").split("\n", 1)[0].removeprefix("# ")
    pictures = 0

    def block(match: re.Match) -> str:
        nonlocal pictures
        lines: list[str] = []
        drawn: list[str] = []
        for _ in range(num_cells(match[1])):
            for output in next(cells).get("outputs", ()):
                if WIDGET in output.get("data", {}):  # a progress bar
                    continue
                if output.get("name") == "stdout":
                    lines += output["text"].rstrip().splitlines()
                elif "image/png" in output.get("data", {}):
                    pictures += 1
                    name = f"{page.stem}{'' if pictures == 1 else f'-{pictures}'}.png"
                    (folder / name).write_bytes(base64.b64decode(output["data"]["image/png"]))
                    drawn.append(f"![{title}: figure drawn by the code](../assets/tutorials/{name})")
                elif "text/plain" in output.get("data", {}):
                    lines += output["data"]["text/plain"].rstrip().splitlines()
        shown = ["\n".join(["```text", *lines, "```"])] if lines else []
        if not (shown or drawn):
            return f"```python\n{match[1]}```\n"
        return "\n".join([f"```python\n{match[1]}```\n", BEGIN, "\n\n".join(["*Output*", *shown, *drawn]), END, ""])

    return BLOCK.sub(block, page.read_text(encoding="utf-8"))


def main(names: list[str]) -> None:
    """Run the named tutorials, or all, and write their outputs."""
    spec = importlib.util.spec_from_file_location("notebooks", Path(__file__).with_name("notebooks.py"))
    assert spec is not None
    assert spec.loader is not None
    notebooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(notebooks)
    for page in [*notebooks.pages(), *OTHER_PAGES]:
        if names and page.stem not in names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            done = notebooks.execute(notebooks.make(page), Path(folder))
        cells = iter([cell for cell in done["cells"] if cell["cell_type"] == "code"])
        text = with_outputs(page, cells, lambda code: len(notebooks.paragraphs(code)))
        page.write_text(text, encoding="utf-8")
        print(page)


if __name__ == "__main__":
    main(sys.argv[1:])
