"""The page of an experiment: text, figures and tables, written as a folder that people and programs can read."""

import html
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from benchmarks.study.figures import write_figure
from benchmarks.study.tables import Table
from benchmarks.study.writing import json_text, write_folder

STYLE = """
:root { color-scheme: light dark; --text: #1d1d1f; --paper: #ffffff; --line: #d9d9de; --muted: #5d5d66; }
@media (prefers-color-scheme: dark) { :root { --text: #e8e8ea; --paper: #16171a; --line: #3a3b40; --muted: #a5a5ad; } }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--text); background: var(--paper); margin: 0 auto;
  max-width: 60rem; padding: 2rem 1.2rem; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2.4rem; }
figure { margin: 1.2rem 0; } img { max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
figcaption, .caption { color: var(--muted); font-size: 0.92rem; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.92rem; margin: 0.6rem 0; }
th, td { text-align: left; padding: 0.3rem 0.7rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th { border-bottom-width: 2px; vertical-align: bottom; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
code { font: 0.92em ui-monospace, Menlo, Consolas, monospace; }
@media (max-width: 36rem) { table { width: max-content; } th, td { max-width: 16rem; } }
@media print { body { max-width: none; padding: 0; font-size: 10.5pt; } figure, tr { break-inside: avoid; } }
"""


@dataclass(frozen=True)
class Picture:
    """A figure with its file name (no ending) and caption."""

    name: str
    figure: Figure
    caption: str


@dataclass(frozen=True)
class Listing:
    """A table with its file name (no ending) and caption."""

    name: str
    table: Table
    caption: str


@dataclass(frozen=True)
class Heading:
    """The start of a part of the page."""

    text: str


Block = str | Heading | Picture | Listing


@dataclass
class Page:
    """What an experiment found.

    Attributes:
        title: the heading.
        blocks: paragraphs (plain text), headings, pictures and listings, in reading order.
        numbers: the raw figures behind it all.
    """

    title: str
    blocks: Sequence[Block]
    numbers: Mapping[str, Any] = field(default_factory=dict)


def write_page(page: Page, folder: Path) -> None:
    """Write figures (PNG, SVG), tables (CSV, Markdown), numbers (JSON) and the page (Markdown, HTML).

    The folder appears whole: a page that was there before is replaced only when the new one is complete.
    """

    def write(fresh: Path) -> None:
        for block in page.blocks:
            if isinstance(block, Picture):
                write_figure(block.figure, fresh, block.name)
            elif isinstance(block, Listing):
                _write_text(fresh / f"{block.name}.csv", block.table.to_csv())
                _write_text(fresh / f"{block.name}.md", f"{block.caption}\n\n{block.table.to_markdown()}")
        _write_text(fresh / "numbers.json", json_text(page.numbers))
        _write_text(fresh / "README.md", _markdown(page))
        _write_text(fresh / "index.html", _html(page))

    try:
        write_folder(folder, write)
    finally:
        for block in page.blocks:
            if isinstance(block, Picture):
                plt.close(block.figure)


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _markdown(page: Page) -> str:
    parts = [f"# {page.title}"]
    for block in page.blocks:
        match block:
            case str():
                parts.append(block)
            case Heading(text):
                parts.append(f"## {text}")
            case Picture(name, _, caption):
                parts.append(f"![{caption}]({name}.png)\n\n*{caption}*")
            case Listing(name, table, caption):
                parts.append(f"{table.to_markdown()}\n*{caption}* ([CSV]({name}.csv))")
    return "\n\n".join(parts) + "\n"


def _html(page: Page) -> str:
    parts = []
    for block in page.blocks:
        match block:
            case str():
                # As in Markdown, what stands between backquotes is code.
                text = re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(block))
                parts.append(f"<p>{text}</p>")
            case Heading(text):
                parts.append(f"<h2>{html.escape(text)}</h2>")
            case Picture(name, _, caption):
                text = html.escape(caption, quote=True)
                link = f"<a href='{name}.svg'>SVG</a>"
                parts.append(
                    f"<figure><img src='{name}.png' alt=\"{text}\"><figcaption>{text} {link}</figcaption></figure>"
                )
            case Listing(name, table, caption):
                link = f"<a href='{name}.csv'>CSV</a>"
                caption = html.escape(caption)
                # Those without a mouse can scroll what they can focus.
                region = f"<div class='scroll' role='region' aria-label='{html.escape(name)}' tabindex='0'>"
                parts.append(f"{region}{table.to_html()}</div><p class='caption'>{caption} {link}</p>")
    return _document(page.title, parts)


def _document(title: str, parts: Sequence[str]) -> str:
    title = html.escape(title)
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
        "content='width=device-width, "
        f"initial-scale=1'><title>{title}</title><style>{STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )
