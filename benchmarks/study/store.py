"""Kept results of tasks: one file of plain arrays each, written whole or not at all."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.study.arrays import read_arrays
from benchmarks.study.plan import Result, Task
from benchmarks.study.writing import write_whole

HEADER = "header"
# Finished tasks lie here inside of the output folder, so that an interrupted run goes on.
KEPT = ".kept"


class Store:
    """A folder with one file per finished task; a result of other code than the present does not count."""

    def __init__(self, folder: Path):
        self._folder = folder

    def load(self, task: Task) -> Result | None:
        """Return the kept result, or None where there is none that can be used."""
        found = self._read(task)
        return None if found is None else found[1]

    def made(self, task: Task) -> dict[str, Any] | None:
        """Return when, where, by what code and in how many seconds a kept result was made."""
        found = self._read(task)
        return None if found is None else found[0]

    def save(self, task: Task, result: Result, made: dict[str, Any]) -> None:
        """Keep a result with what is known of how it was made."""
        arrays = {name: value for name, value in result.items() if isinstance(value, np.ndarray)}
        header = {
            "made": {**made, "code": task.code},
            "task": {"function": task.function, "arguments": dict(task.arguments)},
            "values": {name: value for name, value in result.items() if name not in arrays},
            "arrays": list(arrays),
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        contents = {HEADER: np.array(json.dumps(header)), **arrays}
        write_whole(self._path(task), lambda file: np.savez_compressed(file, allow_pickle=False, **contents))

    def _read(self, task: Task) -> tuple[dict[str, Any], Result] | None:
        try:
            file = read_arrays(self._path(task))
            header = json.loads(str(file[HEADER]))
            made = dict(header["made"])
            if made["code"] != task.code:
                return None
            arrays = {name: file[name] for name in header["arrays"]}
            values = dict(header["values"])
        except Exception:  # never finished or damaged, which parsers tell in many ways: the task runs again
            return None
        return made, {**values, **arrays}

    def _path(self, task: Task) -> Path:
        return self._folder / f"{task.identity}.npz"
