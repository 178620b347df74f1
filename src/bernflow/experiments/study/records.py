"""Records of runs on disk: JSON with one record per line, so that a run that is repeated changes one line."""

import json
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from bernflow.files import json_text, write_whole

Record = dict[str, Any]


def load_records(path: str | PathLike) -> list[Record]:
    """Read the records kept so far; none where there is no file."""
    path = Path(path)
    return json.loads(path.read_text(encoding="utf-8"))["records"] if path.exists() else []


def save_records(path: str | PathLike, records: Iterable[Mapping[str, Any]], notes: Sequence[str]) -> None:
    """Write records with notes on them; a reader never sees half a file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # `json_text` writes infinity as a string.
    lines = ",\n".join(json.dumps(json.loads(json_text(record))) for record in records)
    text = f'{{"notes": {json.dumps(list(notes), indent=1)},\n"records": [\n{lines}\n]}}\n'
    write_whole(path, lambda file: file.write(text.encode()))
