"""Records of runs on disk: JSON, and the page made of them beside it."""

import time
from pathlib import Path

from benchmarks.study.digest import code_digest
from benchmarks.study.records import load_records as load
from benchmarks.study.records import save_records
from benchmarks.study.stamp import sentence, stamp
from benchmarks.study.writing import write_whole

__all__ = ["is_current", "load", "made_by", "save", "with_origin"]


def made_by(module, began):
    """Return what a record says of its origin: stamp, digest of the code behind it, and seconds since it was begun."""
    return {**stamp(), "code": code_digest(module), "took": round(time.perf_counter() - began, 1)}


def is_current(record, module):
    """Tell whether a kept record, if there is one, was made by the present code."""
    return record is not None and record.get("code") == code_digest(module)


def save(path, records, notes, page):
    """Write JSON and Markdown side by side; a reader never sees half a file."""
    path = Path(path)
    save_records(path, records, notes)
    text = with_origin(page, records)
    write_whole(path.with_suffix(".md"), lambda file: file.write(text.encode()))


def with_origin(page, records):
    """Add to a page what its records say of their origin."""
    return f"{page}\n{sentence(records)}\n"
