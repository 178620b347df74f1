"""Records of runs on disk: JSON, and the page made of them beside it."""

import json
from pathlib import Path

from bernflow.files import json_text, write_whole


def load(path):
    """Read the records kept so far."""
    path = Path(path)
    return json.loads(path.read_text(encoding="utf-8"))["records"] if path.exists() else []


def save(path, records, notes, page):
    """Write JSON and Markdown side by side; a reader never sees half a file."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # One record per line: a run that is repeated changes one line. `json_text` writes infinity as a string.
    lines = ",\n".join(json.dumps(json.loads(json_text(record))) for record in records)
    _write(path, f'{{"notes": {json.dumps(notes, indent=1)},\n"records": [\n{lines}\n]}}\n')
    _write(path.with_suffix(".md"), page)


def _write(path, text):
    write_whole(path, lambda file: file.write(text.encode()))
