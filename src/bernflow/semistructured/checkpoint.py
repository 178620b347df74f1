"""Checkpoints of a training: one file of plain arrays and JSON, written atomically."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bernflow.errors import ArgumentError
from bernflow.files import ensure_writable
from bernflow.posterior.container import Kind, read_container, write_container
from bernflow.posterior.trees import fill_arrays, named_arrays
from bernflow.semistructured.training import Kept, Trainee

KIND = Kind(
    "bernflow-semistructured-checkpoint",
    5,
    "a checkpoint",
    "SemiStructured.fit(resume=...)",
    "delete it to begin anew",
)


class Progress(NamedTuple):
    """The progress of the training of one network.

    Attributes:
        epoch: epochs done.
        trainee: weights, state, coefficients and optimizers after them.
        best_epoch: epoch with the highest held-out score, 0 if there is none.
        best: weights, state and coefficients after that epoch.
        middle: the same at the midpoint of the training (in learning rates), or None before that.
        stopped: whether the training has ended before its last epoch.
        history: one array per name, one value per epoch.
    """

    epoch: int
    trainee: Trainee
    best_epoch: int
    best: Kept | None
    middle: Kept | None
    stopped: bool
    history: dict[str, np.ndarray]


class Checkpoint:
    """One file with the progress of one training.

    Args:
        path: the file.
        arguments: what the training depends on, JSON-able; a file of another training is refused.
    """

    def __init__(self, path: Path, arguments: dict[str, Any]):
        self.path = path
        self._arguments = json.loads(json.dumps(arguments))

    def write(self, progress: Progress) -> None:
        """Write the progress atomically: the file is complete on disk before it replaces the last one."""
        arrays = named_arrays("trainee", progress.trainee) | {f"history_{k}": v for k, v in progress.history.items()}
        for name, kept in (("best", progress.best), ("middle", progress.middle)):
            arrays |= {} if kept is None else named_arrays(name, kept)
        facts = {
            "arguments": self._arguments,
            "epoch": progress.epoch,
            "best_epoch": progress.best_epoch,
            "has_middle": progress.middle is not None,
            "stopped": progress.stopped,
        }
        write_container(self.path, KIND, facts, arrays)

    def read(self, template: Trainee) -> Progress | None:
        """Return the progress of an earlier call, or None.

        Args:
            template: a trainee of the same structure, whose arrays are replaced.
        """
        if not self.path.exists():
            return None
        manifest, arrays = read_container(self.path, KIND)
        try:
            arguments = dict(manifest["arguments"])
        except (KeyError, TypeError, ValueError) as error:
            raise KIND.damaged(self.path, f"{type(error).__name__}: {error}") from error
        self._compare(arguments)
        try:
            current = fill_arrays("trainee", template, arrays)
            kept = Kept(*template[:3])
            best = Kept(*fill_arrays("best", kept, arrays)) if manifest["best_epoch"] else None
            middle = Kept(*fill_arrays("middle", kept, arrays)) if manifest["has_middle"] else None
            return Progress(
                epoch=int(manifest["epoch"]),
                trainee=Trainee(*current),
                best_epoch=int(manifest["best_epoch"]),
                best=best,
                middle=middle,
                stopped=bool(manifest["stopped"]),
                history={k.removeprefix("history_"): v for k, v in arrays.items() if k.startswith("history_")},
            )
        except (KeyError, ValueError, TypeError) as error:
            raise KIND.damaged(self.path, f"{type(error).__name__}: {error}") from error

    def _compare(self, stored: dict[str, Any]) -> None:
        names = [n for n in {**stored, **self._arguments} if stored.get(n) != self._arguments.get(n)]
        if names:
            there = ", ".join(f"{name}={stored.get(name)!r}" for name in names)
            here = ", ".join(f"{name}={self._arguments.get(name)!r}" for name in names)
            raise ArgumentError(
                f"resume: {self.path} belongs to another training ({there}; now {here}): expected the same "
                "arguments and data. Choose another folder, or delete that file to begin anew."
            )


def open_folder(folder: Any) -> Path:
    """Create a folder for checkpoints and make sure that files can be written there."""
    try:
        return ensure_writable(folder)
    except (OSError, TypeError) as error:
        raise ArgumentError(
            f"resume={folder!r} cannot be written to ({error.__cause__ or error}): expected a folder, which is "
            "created if need be. Choose another one, or free its place."
        ) from error
