"""The page of the results: the machine on top, then one section per part."""

from collections.abc import Sequence
from pathlib import Path

from benchmarks.speed.catalogue import PARTS
from benchmarks.speed.machine import sentence
from benchmarks.speed.part import OK
from benchmarks.speed.picture import draw
from benchmarks.speed.suite import FILE, MACHINE
from benchmarks.study.figures import write_figure
from benchmarks.study.records import Record
from benchmarks.study.stamp import sentence as origin
from benchmarks.study.writing import write_whole
from bernflow.plots.style import house_style

PICTURE = "speed"
# Above this many waiting processes at the start something else was running.
IDLE_LOAD = 0.5
EXPLANATION = (
    "Times depend on the machine; quote the ratios instead. Both sides of a ratio were measured in one run, one after "
    "the other, each in its own process with nothing else of ours running. Ratios are medians over the rounds, with "
    f"the smallest and the largest if there are several. Every measurement is in [{FILE}]({FILE})."
)


def write(out: Path, records: Sequence[Record], command: str) -> Path:
    """Write README.md and the picture; return the page."""
    with house_style():
        figure = draw([r for r in records if r.get("status") == OK])
        if figure is not None:
            write_figure(figure, out, PICTURE)
    text = markdown(records, command, figure is not None)
    return write_whole(out / "README.md", lambda file: file.write(text.encode()))


def markdown(records: Sequence[Record], command: str, with_picture: bool) -> str:
    """Return the page as Markdown."""
    measured = [r for r in records if r["part"] != MACHINE]
    parts = ["# Speed", *(_machine(r) for r in records if r["part"] == MACHINE), EXPLANATION]
    if with_picture:
        parts.append(f"![Speed by part]({PICTURE}.png)")
    for name, part in PARTS.items():
        mine = [r for r in records if r["part"] == name]
        if not mine:
            continue
        parts.append(f"## {part.title}")
        good = [r for r in mine if r["status"] == OK]
        blocks = part.present(good).blocks if good else ()
        parts += [block if isinstance(block, str) else block.to_markdown() for block in blocks]
        # One line per reason and subject, however many rounds it has failed in.
        failures = dict.fromkeys((r["case"], r["subject"], r["status"]) for r in mine if r["status"] != OK)
        if failures:
            parts.append("\n".join(f"- {case}, {subject}: {status}" for case, subject, status in failures))
    return "\n\n".join(part.rstrip("\n") for part in parts) + f"\n\nMade by `{command}`. {origin(measured)}\n"


def _machine(record: Record) -> str:
    text = f"Measured on {sentence(record)}"
    if record["load"] is not None and record["load"] > IDLE_LOAD:
        text += f" The machine was not idle when the run began (load {record['load']:g}): the figures are uncertain."
    return text
