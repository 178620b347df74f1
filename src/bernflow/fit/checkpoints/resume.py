"""A fit that survives its process: checkpoints in a folder, and the finished posterior."""

import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from bernflow.errors import ArgumentError, FileFormatError, FileWriteError
from bernflow.files import check_plain, ensure_writable, write_whole
from bernflow.fit.checkpoints.checkpoint import Checkpoint, Saved
from bernflow.fit.checkpoints.identity import differences
from bernflow.fit.train.loop import LoopState
from bernflow.fit.train.progress import Recorder
from bernflow.fit.train.state import TrainState
from bernflow.locks import FolderTakenError, locked
from bernflow.models.base import AbstractModel
from bernflow.posterior import Posterior, archive
from bernflow.posterior.trees import fill_arrays, named_arrays
from bernflow.sealed import checksum_of, read_sealed, sealed_text

POSTERIOR, FINISHED = "posterior.bernflow", "finished.json"
RECORD, CONSTANT = "record", "constant"
# Files of ours that were being written, by the names that `files.sibling` gives; others are the user's.
UNFINISHED = re.compile(r"\.(posterior\.bernflow|finished\.json|trial|[a-z0-9]+-[01]\.npz)\.[0-9a-f]{32}\.part")


class Resumption:
    """The folder of one fit.

    Args:
        folder: see `claim_folder`.
        identity: what the fit depends on, see `identify`.
    """

    def __init__(self, folder: Path, identity: dict[str, Any]):
        self.folder = folder
        self._identity = identity
        # One process of several writes; all read.
        self._writes = jax.process_index() == 0
        for leftover in self.folder.iterdir() if self._writes else ():
            if UNFINISHED.fullmatch(leftover.name) and not leftover.is_dir():  # a process was killed while it wrote
                leftover.unlink(missing_ok=True)

    def memory(self, name: str) -> "Memory":
        """Return the memory of one training of the fit."""
        return Memory(Checkpoint(self.folder, name, self._identity, differences, self._writes))

    def finished(self, model: AbstractModel | None, refiner: Callable[..., Posterior]) -> Posterior | None:
        """Return the posterior of a call that came to its end, or None."""
        note = self.folder / FINISHED
        if not _all_say(int(note.exists()), "a finished fit (0: no, 1: yes)"):
            return None
        try:
            stated = read_sealed(note)
            identity, checksum = dict(stated["identity"]), str(stated["sha256"])
            check_plain(self.folder / POSTERIOR)
            whole = checksum_of(self.folder / POSTERIOR) == checksum
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._distrust(f"{note} cannot be read ({type(error).__name__}: {error})")
            return None
        different = differences(identity, self._identity)
        if different:
            raise ArgumentError(
                f"resume: {self.folder} holds the result of another fit ({'; '.join(different)}): expected the same "
                "model, data, key and settings. Choose another folder, or delete that one to begin anew."
            )
        if not whole:
            self._distrust(f"{self.folder / POSTERIOR} is damaged (its checksum is wrong)")
            return None
        try:
            return archive.load(self.folder / POSTERIOR, model, refiner)
        except FileFormatError as error:
            self._distrust(str(error))
            return None

    def finish(self, posterior: Posterior) -> None:
        """Keep a posterior that was trained and judged to the end."""
        if self._writes:
            self._keep(posterior)
        if jax.process_count() > 1:
            multihost_utils.sync_global_devices("bernflow: finished")  # before any other looks for it

    def _keep(self, posterior: Posterior) -> None:
        path = self.folder / POSTERIOR
        try:
            archive.save(posterior, path)
            note = sealed_text({"identity": self._identity, "sha256": checksum_of(path)})
            write_whole(self.folder / FINISHED, lambda file: file.write(note.encode()))
        except ArgumentError:
            pass  # a flow of the user's own cannot be saved; its checkpoint stands, and the next call judges again
        except FileWriteError as error:
            warnings.warn(
                f"bernflow: the finished fit could not be kept: {error} It is returned all the same; keep it with "
                "post.save(path).",
                UserWarning,
                stacklevel=2,
            )

    def _distrust(self, why: str) -> None:
        warnings.warn(f"bernflow: {why}: the fit goes on from its last checkpoint instead.", UserWarning, stacklevel=3)


class Memory:
    """Remembers where a training stands.

    Args:
        checkpoint: where that is kept; None: nowhere.
    """

    def __init__(self, checkpoint: Checkpoint | None = None):
        self._checkpoint = checkpoint
        self._saved = None if checkpoint is None else agreed(checkpoint.read())
        # Arrays that the training began with and whose computation took long.
        self.constants: dict[str, Any] = {}
        if self._saved is not None:
            start = f"{CONSTANT}_"
            self.constants = {k.removeprefix(start): v for k, v in self._saved.arrays.items() if k.startswith(start)}

    def restore(self, begun: TrainState, recorder: Recorder) -> LoopState | None:
        """Return where an earlier call ended, and give the recorder what it had seen."""
        saved, checkpoint = self._saved, self._checkpoint
        if saved is None or checkpoint is None:
            return None
        with _explained(checkpoint):
            weights = saved.arrays.get("weights")
            kept = begun if weights is None else TrainState(*fill_arrays("kept", begun, saved.arrays))
            current = TrainState(*fill_arrays("current", begun, saved.arrays))
            cycle, step, done = (int(saved.facts[name]) for name in ("cycle", "step", "done"))
            recorder.restore(_record_of(saved))
            return LoopState(cycle, step, done, current, kept, weights)

    def keep(self, at: LoopState, recorder: Recorder) -> None:
        """Hear of the end of a chunk."""
        if self._checkpoint is None:
            return
        num = recorder.num_rows  # it may have more by the time of writing

        def state() -> Saved:
            arrays = named_arrays("current", at.current) | _named_record(recorder, num)
            if at.weights is not None:
                arrays |= named_arrays("kept", at.kept) | {"weights": at.weights}
            arrays |= {f"{CONSTANT}_{name}": np.asarray(value) for name, value in self.constants.items()}
            return Saved(arrays, {"cycle": at.cycle, "step": at.step, "done": at.done})

        self._checkpoint.offer(state)

    def flush(self) -> None:
        """Write what is not on disk yet."""
        if self._checkpoint is not None:
            self._checkpoint.flush()


class _explained:  # noqa: N801  (used like a function)
    """Say which file does not fit."""

    def __init__(self, checkpoint: Checkpoint):
        self._checkpoint = checkpoint

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, KeyError | ValueError | TypeError | IndexError) and not isinstance(error, ArgumentError):
            raise ArgumentError(
                f"resume: {self._checkpoint.paths[0].parent} holds the checkpoint of another flow or optimiser "
                f"({error}). Choose another folder, or delete that one to begin anew."
            ) from error


def agreed(saved: Saved | None) -> Saved | None:
    """Make sure that all processes of a run read the same checkpoint, before they wait for each other forever."""
    _all_say(-1 if saved is None else int(saved.facts["done"]), "checkpoints after so many steps (-1: none)")
    return saved


def _all_say(value: int, what: str) -> int:
    """Return a number that every process has found, or say that they differ."""
    if jax.process_count() > 1:
        found = multihost_utils.process_allgather(np.asarray(value)).reshape(-1).tolist()
        if len(set(found)) > 1:
            raise ArgumentError(
                f"resume: the processes found {what}: {found}, expected the same in all. Give a folder that all "
                "machines share."
            )
    return value


@contextmanager
def claim_folder(folder: Any) -> Iterator[Path]:
    """Create a folder for checkpoints, make sure that files can be written there, and keep other fits out of it."""
    if not isinstance(folder, str | os.PathLike):
        raise ArgumentError(f"resume={folder!r}: expected the path of a folder, which is created if need be, or None.")
    try:
        path = ensure_writable(folder)
    except FileWriteError as error:
        raise ArgumentError(
            f"resume={str(folder)!r} cannot be written to ({error.__cause__ or error}): expected a folder, which is "
            "created if need be. Choose another one, or free its place."
        ) from error
    if jax.process_index() > 0:  # the first process of a run has it for all
        yield path
        return
    try:
        with locked(path):
            yield path
    except FolderTakenError as error:
        raise ArgumentError(
            f"resume={str(folder)!r} is in use by another fit: expected a folder of its own for each. Wait until that "
            "one has ended, or choose another folder."
        ) from error


def _named_record(recorder: Recorder, num: int) -> dict[str, np.ndarray]:
    return {f"{RECORD}_{name}": values for name, values in recorder.record(num).items()}


def _record_of(saved: Saved) -> dict[str, np.ndarray]:
    steps, *figures = (saved.arrays[f"{RECORD}_{name}"] for name in ("step", "elbo", "elbo_se"))
    for values in figures:
        if steps.dtype.kind != "i" or values.dtype.kind != "f" or values.shape[:1] != steps.shape:
            raise ValueError(f"its record has {steps.dtype}{steps.shape} steps of {values.dtype}{values.shape} figures")
    return {"step": steps, "elbo": figures[0], "elbo_se": figures[1]}
