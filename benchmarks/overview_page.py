"""The index of all results: a picture of each, what it is, how long it takes, and the command that makes it."""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.study.page import STYLE
from benchmarks.study.record import duration
from benchmarks.study.writing import write_whole

TITLE = "Results"
INTRODUCTION = (
    "Every page says by which command, from which commit, when and on which machine it was made. `make results-check` "
    "names what is older than the code behind it, and `make results` makes it anew."
)
CARDS = """
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(17rem, 1fr)); gap: 1.2rem; padding: 0; }
.cards > li { list-style: none; border: 1px solid var(--line); border-radius: 6px; padding: 0.8rem; }
.cards img { width: 100%; height: 9rem; object-fit: contain; }
.cards code { overflow-wrap: anywhere; }
"""


@dataclass(frozen=True)
class Entry:
    """One result: its name, what it is, its page, the command, and how long that took where it is known."""

    name: str
    title: str
    page: Path
    command: str
    seconds: float | None
    gpu: bool

    @property
    def picture(self) -> str | None:
        """The first picture of its page, by name."""
        return next((path.name for path in sorted(self.page.parent.glob("*.png"))), None)

    @property
    def time(self) -> str:
        """How long it takes, and on what."""
        told = "duration not known" if self.seconds is None else duration(self.seconds)
        return f"{told}{', needs a GPU' if self.gpu else ''}"


def write(out: Path, entries: Sequence[Entry]) -> None:
    """Write README.md and index.html."""
    for name, text in (("README.md", markdown(out, entries)), ("index.html", page(out, entries))):
        write_whole(out / name, lambda file, text=text: file.write(text.encode()))


def markdown(out: Path, entries: Sequence[Entry]) -> str:
    """Return the index as Markdown."""
    lines = [f"# {TITLE}", "", INTRODUCTION, "", "| | result | time | command |", "|---|---|---|---|"]
    for entry in entries:
        link = _relative(out, entry.page)
        image = "" if entry.picture is None else _relative(out, entry.page.parent / entry.picture)
        shown = f'<img src="{image}" alt="" width="180">' if image else ""
        lines.append(f"| {shown} | [{entry.name}]({link}): {entry.title} | {entry.time} | `{entry.command}` |")
    return "\n".join(lines) + "\n"


def page(out: Path, entries: Sequence[Entry]) -> str:
    """Return the index as HTML."""
    cards = []
    for entry in entries:
        pages = [entry.page.with_name("index.html"), entry.page]
        link = _relative(out, next(path for path in pages if path.is_file()))
        picture = entry.picture
        shown = "" if picture is None else f"<img src='{_relative(out, entry.page.parent / picture)}' alt=''>"
        cards.append(
            f"<li><a href='{link}'>{shown}<strong>{html.escape(entry.name)}</strong></a>: {html.escape(entry.title)}"
            f"<br><span class='caption'>{entry.time}</span><br><code>{html.escape(entry.command)}</code></li>"
        )
    introduction = html.escape(INTRODUCTION).replace("`make results-check`", "<code>make results-check</code>")
    introduction = introduction.replace("`make results`", "<code>make results</code>")
    return (
        "<!doctype html>\n<html lang='en'><head><meta charset='utf-8'><meta name='viewport' "
        f"content='width=device-width, initial-scale=1'><title>{TITLE}</title><style>{STYLE}{CARDS}</style></head>\n"
        f"<body>\n<h1>{TITLE}</h1>\n<p>{introduction}</p>\n<ul class='cards'>{''.join(cards)}</ul>\n</body></html>\n"
    )


def _relative(out: Path, path: Path) -> str:
    try:
        return path.relative_to(out).as_posix()
    except ValueError:
        return f"../{path.relative_to(out.parent).as_posix()}"
