"""Records of runs on disk: JSON with one record per line, so that a run that is repeated changes one line."""

import json
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from benchmarks.study.writing import json_text, printable, read_plain, write_whole

Record = dict[str, Any]
# What tells records apart, and how each ended.
NAMES = {"target", "method", "model", "part", "status", "run"}


def load_records(path: str | PathLike) -> list[Record]:
    """Read the records kept so far; none where there is no file.

    Raises:
        ValueError: if the file is none of ours, whatever is wrong with it.
    """
    path = Path(path)
    if not path.exists():
        return []
    try:
        records = [_checked(dict(record)) for record in json.loads(read_plain(path))["records"]]
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    return records


def _checked(record: Record) -> Record:
    """Refuse a record whose name or status is no text, and write out what a terminal would obey."""
    for name in NAMES & record.keys():
        if not isinstance(record[name], str):
            raise TypeError(f"{name} is {record[name]!r}")
    return {name: printable(value) if isinstance(value, str) else value for name, value in record.items()}


def save_records(path: str | PathLike, records: Iterable[Mapping[str, Any]], notes: Sequence[str]) -> None:
    """Write records with notes on them; a reader never sees half a file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # `json_text` writes infinity as a string.
    lines = ",\n".join(json.dumps(json.loads(json_text(record))) for record in records)
    text = f'{{"notes": {json.dumps(list(notes), indent=1)},\n"records": [\n{lines}\n]}}\n'
    write_whole(path, lambda file: file.write(text.encode()))
