"""Checkpoints of a training: plain arrays and JSON with a checksum, in two files of which one is always whole."""

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bernflow.errors import ArgumentError, FileFormatError, FileWriteError
from bernflow.posterior.container import Kind, read_container, write_container

KIND = Kind("bernflow-checkpoint", 5, "a checkpoint", "bf.fit(resume=...)", "delete its folder to begin anew")
# Seconds between two checkpoints, and how many times as long as writing one takes at least: writing never costs more
# than a few per cent of a fit.
INTERVAL, PATIENCE = 2.0, 20.0


class Saved(NamedTuple):
    """What a checkpoint holds: arrays and plain facts by name."""

    arrays: dict[str, np.ndarray]
    facts: dict[str, Any]


class Checkpoint:
    """The state of one training, in two files that are written in turn.

    Args:
        folder: where they lie.
        name: how their names begin.
        identity: what the training depends on, JSON-able; files of another training are refused.
        same: compares two identities and names what differs; empty where nothing does.
        writes: whether this process writes at all (one of several does).
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        identity: dict[str, Any],
        same: Callable[[dict[str, Any], dict[str, Any]], list[str]],
        writes: bool = True,
    ):
        self.paths = [folder / f"{name}-{i}.npz" for i in range(2)]
        self._identity, self._same, self._writes = identity, same, writes
        self._count = 0
        self._due = 0.0
        self._pending: Callable[[], Saved] | None = None
        self._failed = False

    def offer(self, state: Callable[[], Saved]) -> None:
        """Write the state if the last time was long enough ago; otherwise keep it for `flush`."""
        self._pending = state
        if time.monotonic() >= self._due:
            self.flush()

    def flush(self) -> None:
        """Write what was offered last, if it is not on disk yet.

        A fit must not die of a full disk: it goes on in memory, and a warning says so.
        """
        if self._pending is None or not self._writes:
            return
        began = time.monotonic()
        try:
            self._write(self._pending())
        except FileWriteError as error:
            if not self._failed:
                warnings.warn(
                    f"bernflow: the checkpoint could not be written: {error} The fit goes on in memory; if it is "
                    "stopped, it resumes from the last checkpoint that could be written.",
                    UserWarning,
                    stacklevel=2,
                )
            self._failed = True
        else:
            self._failed = False
            self._pending = None
        now = time.monotonic()
        self._due = now + max(INTERVAL, PATIENCE * (now - began))

    def read(self) -> Saved | None:
        """Return the newest whole state, or None where there is none at all."""
        found: list[tuple[int, Saved]] = []
        damaged: list[FileFormatError] = []
        for path in self.paths:
            if not path.exists():
                continue
            try:
                found.append(self._read(path))
            except FileFormatError as error:
                damaged.append(error)
        if damaged and not found:
            raise damaged[0]
        if not found:
            return None
        self._count, newest = max(found, key=lambda pair: pair[0])
        if damaged:
            warnings.warn(
                f"bernflow: {damaged[0]} The checkpoint written before it is whole, and the fit resumes from that.",
                UserWarning,
                stacklevel=2,
            )
        return newest

    def _write(self, state: Saved) -> None:
        facts = {"count": self._count + 1, "identity": self._identity, "facts": state.facts}
        # The older of the two is replaced.
        write_container(self.paths[(self._count + 1) % 2], KIND, facts, state.arrays)
        self._count += 1

    def _read(self, path: Path) -> tuple[int, Saved]:
        manifest, arrays = read_container(path, KIND)
        try:
            count, identity = int(manifest["count"]), dict(manifest["identity"])
            facts = {name: _count(name, value) for name, value in {"done": None, **manifest["facts"]}.items()}
        except (ValueError, KeyError, TypeError) as error:
            raise KIND.damaged(path, f"{type(error).__name__}: {error}") from error
        different = self._same(identity, self._identity)
        if different:
            raise ArgumentError(
                f"resume: {path} belongs to another fit ({'; '.join(different)}): expected the same model, data, key "
                "and settings. Choose another folder, or delete that one to begin anew."
            )
        return count, Saved(arrays, facts)


def _count(name: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{name} is {value!r}")
    return value
