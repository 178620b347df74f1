"""The list of all pages in a folder of results."""

from collections.abc import Iterable
from pathlib import Path

from benchmarks.study.page import write_index_page
from benchmarks.study.plan import Experiment


def write_index(out: Path, experiments: Iterable[Experiment]) -> None:
    """Write README.md and index.html that lead to the pages which are there."""
    found = [e for e in experiments if (out / e.name / "index.html").is_file()]
    if found:
        entries = [(e.title, e.summary, e.name) for e in found]
        write_index_page(out, "Experiments of the paper, reproduced", entries)
