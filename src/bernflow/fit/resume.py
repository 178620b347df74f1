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
from bernflow.fit.checkpoint import Checkpoint, Saved
from bernflow.fit.chunk import Trainee
from bernflow.fit.identity import differences
from bernflow.fit.joint import Anchor, JointTrainee
from bernflow.fit.loop import Place
from bernflow.fit.progress import Recorder
from bernflow.locks import FolderTakenError, locked
from bernflow.models.base import AbstractModel
from bernflow.posterior import Posterior, archive
from bernflow.posterior.trees import fill_arrays, named_arrays
from bernflow.sealed import checksum_of, read_sealed, sealed_text

POSTERIOR, FINISHED = "posterior.bernflow", "finished.json"
RECORD = "record"
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

    def loop(self, name: str = "flow") -> "LoopMemory":
        """Return the memory of the training of a flow, or of several, on all rows."""
        return LoopMemory(self._checkpoint(name))

    def joint(self) -> "JointMemory":
        """Return the memory of the training on batches."""
        return JointMemory(self._checkpoint("batches"))

    def _checkpoint(self, name: str) -> Checkpoint:
        return Checkpoint(self.folder, name, self._identity, differences, self._writes)

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


class LoopMemory:
    """Remembers where the training of stacked flows stands."""

    def __init__(self, checkpoint: Checkpoint):
        self._checkpoint = checkpoint

    def restore(self, begun: Trainee, recorder: Recorder) -> Place | None:
        """Return where an earlier call ended, and give the recorder what it had seen."""
        saved = agreed(self._checkpoint.read())
        if saved is None:
            return None
        with _explained(self._checkpoint):
            weights = saved.arrays.get("weights")
            kept = begun if weights is None else Trainee(*fill_arrays("kept", begun, saved.arrays))
            after = Trainee(*fill_arrays("after", begun, saved.arrays))
            cycle, chunk, done = (int(saved.facts[name]) for name in ("cycle", "chunk", "done"))
            place = Place(cycle, chunk, done, after, kept, weights)
            recorder.restore(_record_of(saved))
        return place

    def keep(self, place: Place, recorder: Recorder) -> None:
        """Hear of the end of a chunk."""
        num = recorder.num_rows  # it may have more by the time of writing

        def state() -> Saved:
            arrays = named_arrays("after", place.after) | _named_record(recorder, num)
            if place.weights is not None:
                arrays |= named_arrays("kept", place.kept) | {"weights": place.weights}
            return Saved(arrays, {"cycle": place.cycle, "chunk": place.chunk, "done": place.done})

        self._checkpoint.offer(state)

    def flush(self) -> None:
        """Write what is not on disk yet."""
        self._checkpoint.flush()


class JointMemory:
    """Remembers where the training on batches stands."""

    def __init__(self, checkpoint: Checkpoint):
        self._checkpoint = checkpoint
        self._saved = agreed(checkpoint.read())

    def anchor(self) -> Anchor | None:
        """Return the anchor of the control variates, which took a pass over all rows; None where there is none."""
        if self._saved is None or "anchor_x" not in self._saved.arrays:
            return None
        # NumPy arrays: of very many rows it is in double precision whatever the training is in.
        return Anchor(*(self._saved.arrays[f"anchor_{name}"] for name in Anchor._fields))  # type: ignore[arg-type]

    def restore(self, begun: JointTrainee, recorder: Recorder) -> tuple[JointTrainee, int]:
        """Return where an earlier call ended with its number of steps, or the beginning."""
        if self._saved is None:
            return begun, 0
        with _explained(self._checkpoint):
            trainee = JointTrainee(*fill_arrays("trainee", begun, self._saved.arrays))
            recorder.restore(_record_of(self._saved))
            return trainee, int(self._saved.facts["done"])

    def keep(self, done: int, trainee: JointTrainee, anchor: Anchor | None, recorder: Recorder) -> None:
        """Hear of the end of a chunk."""
        num = recorder.num_rows  # it may have more by the time of writing

        def state() -> Saved:
            arrays = named_arrays("trainee", trainee) | _named_record(recorder, num)
            if anchor is not None:
                arrays |= {f"anchor_{name}": np.asarray(value) for name, value in anchor._asdict().items()}
            return Saved(arrays, {"done": done})

        self._checkpoint.offer(state)

    def flush(self) -> None:
        """Write what is not on disk yet."""
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
