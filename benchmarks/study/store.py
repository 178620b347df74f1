"""Kept results of tasks: one file of plain arrays each, written whole or not at all."""

import json
from pathlib import Path

import numpy as np

from benchmarks.study.arrays import read_arrays
from benchmarks.study.plan import Result, Task
from benchmarks.study.writing import version_of, write_whole

HEADER = "header"
# Finished tasks lie here inside of the output folder, so that an interrupted run goes on.
KEPT = ".kept"


class Store:
    """A folder with one file per finished task; a result of another version of bernflow does not count."""

    def __init__(self, folder: Path):
        self._folder = folder

    def load(self, task: Task) -> Result | None:
        """Return the kept result, or None where there is none that can be used."""
        try:
            file = read_arrays(self._path(task))
            header = json.loads(str(file[HEADER]))
            if header["version"] != version_of("bernflow"):
                return None
            arrays = {name: file[name] for name in header["arrays"]}
            values = dict(header["values"])
        except Exception:  # never finished or damaged, which parsers tell in many ways: the task runs again
            return None
        return {**values, **arrays}

    def save(self, task: Task, result: Result) -> None:
        """Keep a result."""
        arrays = {name: value for name, value in result.items() if isinstance(value, np.ndarray)}
        header = {
            "version": version_of("bernflow"),
            "task": {"function": task.function, "arguments": dict(task.arguments)},
            "values": {name: value for name, value in result.items() if name not in arrays},
            "arrays": list(arrays),
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        contents = {HEADER: np.array(json.dumps(header)), **arrays}
        write_whole(self._path(task), lambda file: np.savez_compressed(file, allow_pickle=False, **contents))

    def _path(self, task: Task) -> Path:
        return self._folder / f"{task.identity}.npz"
