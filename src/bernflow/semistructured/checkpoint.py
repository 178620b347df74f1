"""The state of a training in one file: plain arrays and JSON, whole or not at all."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

from bernflow.errors import ArgumentError
from bernflow.files import ensure_writable
from bernflow.fit.train.state import TrainState
from bernflow.posterior.container import Kind, read_container, write_container
from bernflow.posterior.trees import fill_arrays, named_arrays

KIND = Kind(
    "bernflow-semistructured-checkpoint",
    4,
    "a checkpoint",
    "SemiStructured.fit(checkpoint=...)",
    "delete it to begin anew",
)


class Progress(NamedTuple):
    """How far a training is.

    Attributes:
        epoch: epochs done.
        trainee: flow, weights, state and optimizers after them.
        best_epoch: epoch with the highest validation score, 0 where there is none.
        best: flow, weights and state after that epoch.
        stopped: whether the training has ended before its last epoch.
        history: one array per name, one value per epoch.
    """

    epoch: int
    trainee: TrainState
    best_epoch: int
    best: tuple[PyTree, PyTree, PyTree] | None
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
        """Write the progress; the file is complete on disk before it takes the place of the last one."""
        arrays = named_arrays("trainee", progress.trainee) | {f"history_{k}": v for k, v in progress.history.items()}
        if progress.best is not None:
            arrays |= named_arrays("best", progress.best)
        facts = {
            "arguments": self._arguments,
            "epoch": progress.epoch,
            "best_epoch": progress.best_epoch,
            "stopped": progress.stopped,
        }
        write_container(self.path, KIND, facts, arrays)

    def read(self, template: TrainState) -> Progress | None:
        """Return the progress of an earlier call, or None where there is none.

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
            best = fill_arrays("best", template[:3], arrays) if manifest["best_epoch"] else None
            return Progress(
                epoch=int(manifest["epoch"]),
                trainee=TrainState(*current),
                best_epoch=int(manifest["best_epoch"]),
                best=best,
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
                f"checkpoint: {self.path} belongs to another training ({there}; now {here}): expected the same "
                "arguments and data. Choose another folder, or delete that file to begin anew."
            )


def open_folder(folder: Any) -> Path:
    """Create a folder for checkpoints and make sure that files can be written there."""
    try:
        return ensure_writable(folder)
    except (OSError, TypeError) as error:
        raise ArgumentError(
            f"checkpoint={folder!r} cannot be written to ({error.__cause__ or error}): expected a folder, which is "
            "created if need be. Choose another one, or free its place."
        ) from error
