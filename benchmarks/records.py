"""Records of runs on disk: JSON, and the page made of them beside it."""

from pathlib import Path

from benchmarks.study.records import load_records as load
from benchmarks.study.records import save_records
from benchmarks.study.writing import write_whole

__all__ = ["load", "save"]


def save(path, records, notes, page):
    """Write JSON and Markdown side by side; a reader never sees half a file."""
    path = Path(path)
    save_records(path, records, notes)
    write_whole(path.with_suffix(".md"), lambda file: file.write(page.encode()))
