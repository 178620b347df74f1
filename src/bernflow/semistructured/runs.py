"""The networks of a cross-fit in training, epoch by epoch: their curves, best epochs and checkpoints."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key
from tqdm.auto import tqdm

from bernflow.fit.batches.rows import Batches
from bernflow.fit.train.interruption import Interruption
from bernflow.fit.train.scan import network_steps_at_once
from bernflow.models.network import BLOCK_SIZE, Network
from bernflow.semistructured.checkpoint import Checkpoint, Progress
from bernflow.semistructured.training import (
    Kept,
    Objective,
    Trainee,
    middle_epoch,
    rate_at,
    run_chunk,
    score_block,
)
from bernflow.watched import is_watched


class Data(NamedTuple):
    """Checked rows: standardized columns with the constant last, images, outcome in units of the linear predictor."""

    x: np.ndarray
    images: np.ndarray
    y: np.ndarray


class Source:
    """All rows; moved to the device once if they fit."""

    def __init__(self, data: Data):
        rows = {"x": data.x, "images": data.images, "y": data.y}
        self._batches = Batches(rows, len(data.y), 1, 0)
        self._rows = jax.tree.map(jnp.asarray, rows) if self._batches.resident else None

    def at(self, indices: Int[np.ndarray, "c b"]) -> tuple[dict[str, Array], Array | None]:
        """Return all rows with the indices of a batch, or the rows of the batch themselves."""
        return (self._batches.take(indices), None) if self._rows is None else (self._rows, jnp.asarray(indices))


class Run:
    """One network in training.

    Args:
        objective: the loss.
        prior: mean and precision of theta.
        network: where to start.
        theta: coefficients at the start.
        rows: its training rows.
        held: rows of other folds, or validation rows, for its score after every epoch.
        key: for batches, dropout and augmentation.
        epochs: planned number.
        batch_size: rows per step.
        patience: stop after this number of epochs without a better score; None never stops.
        checkpoint: the file to write, or None.
    """

    def __init__(
        self,
        objective: Objective,
        prior: tuple[Array, Array],
        network: Network,
        theta: Array,
        rows: Int[np.ndarray, " n"],
        held: Data,
        key: Key[Array, ""],
        epochs: int,
        batch_size: int,
        patience: int | None,
        checkpoint: Checkpoint | None,
    ):
        self._objective, self._prior = objective, prior
        self.trainee: Trainee = objective.begin(network, theta)
        self._rows, self._held, self._key = rows, held, key
        self._epochs, self._batch_size, self._patience = epochs, min(batch_size, len(rows)), patience
        self._checkpoint = checkpoint
        steps = len(rows) // self._batch_size
        self._parts = -(-steps // network_steps_at_once())
        self._length = steps // self._parts
        self.steps_per_epoch = self._parts * self._length
        self.epoch, self.best_epoch, self.stopped = 0, 0, False
        self.best: Kept | None = None
        self.middle: Kept | None = None
        self._curves: dict[str, list[float]] = {"loss": [], "valid_score": []}
        progress = None if checkpoint is None else checkpoint.read(self.trainee)
        if progress is not None:
            self.trainee, self.epoch, self.stopped = progress.trainee, progress.epoch, progress.stopped
            self.best, self.best_epoch, self.middle = progress.best, progress.best_epoch, progress.middle
            self._curves = {name: progress.history[name].tolist() for name in self._curves}

    @property
    def history(self) -> dict[str, np.ndarray]:
        """One value per epoch: epoch, loss of its batches, valid_score on rows that the network has not seen."""
        return {"epoch": np.arange(1, self.epoch + 1), **{name: np.array(v) for name, v in self._curves.items()}}

    def run_epoch(self, source: Source) -> None:
        """Train for an epoch, score it, and write the checkpoint."""
        seed = np.asarray(jax.random.key_data(self._key)).ravel().tolist()
        order = np.random.default_rng([*seed, self.epoch]).permutation(len(self._rows))
        indices = self._rows[order[: self.steps_per_epoch * self._batch_size]].astype(np.int32)
        indices = indices.reshape(self._parts, self._length, self._batch_size)
        step = self.epoch * self.steps_per_epoch + np.arange(self.steps_per_epoch, dtype=np.float32)
        rates = rate_at(step, np.float32(self._epochs * self.steps_per_epoch)).reshape(self._parts, self._length)
        losses = []
        for part, chosen in enumerate(indices):
            keys = jax.random.split(jax.random.fold_in(self._key, self.epoch * self._parts + part), self._length)
            rows, own = source.at(chosen)
            self.trainee, loss = run_chunk(self._objective, self._prior, self.trainee, rows, own, keys, rates[part])
            losses.append(loss)
        self.epoch += 1
        self._curves["loss"].append(float(np.mean(np.concatenate([np.asarray(loss) for loss in losses]))))
        self._see(float(np.mean(self._scores())))
        if self._checkpoint is not None:
            self._checkpoint.write(
                Progress(self.epoch, self.trainee, self.best_epoch, self.best, self.middle, self.stopped, self.history)
            )

    def _see(self, score: float) -> None:
        scores = self._curves["valid_score"]
        scores.append(score if np.isfinite(score) else -np.inf)
        now = Kept(*self.trainee[:3])
        if self.best is None or scores[-1] > scores[self.best_epoch - 1]:
            self.best, self.best_epoch = now, self.epoch
        if self.middle is None and self.epoch >= middle_epoch(self._epochs):
            self.middle = now
        if self._patience is not None and self.epoch - self.best_epoch >= self._patience:
            self.stopped = True

    def _scores(self) -> np.ndarray:
        num, scores = len(self._held.y), []
        for start in range(0, num, BLOCK_SIZE):
            rows = np.minimum(np.arange(start, start + BLOCK_SIZE), num - 1)
            part = score_block(self._objective, self.trainee, *(jnp.asarray(leaf[rows]) for leaf in self._held))
            scores.append(np.asarray(part, np.float64)[: num - start])
        return np.concatenate(scores)


def train_all(runs: Sequence[Run], source: Source, epochs: int, progress: bool) -> bool:
    """Train all networks, one epoch of each in turn; return whether Ctrl-C ended the training.

    The first Ctrl-C ends the training after the epoch of every network, the second one stops at once.
    """
    done = min(run.epoch for run in runs)
    bar = tqdm(
        total=epochs, initial=done, desc="bernflow networks", unit="epoch", disable=not (progress and is_watched())
    )
    with bar, Interruption() as interruption:
        for epoch in range(done, epochs):
            for run in runs:
                if not run.stopped and run.epoch <= epoch:
                    run.run_epoch(source)
            scores = [run.history["valid_score"][run.best_epoch - 1] for run in runs]
            bar.set_postfix_str(f"best score {np.mean(scores):.4f}", refresh=False)
            bar.update()
            if interruption.heard:
                return True
            if all(run.stopped for run in runs):
                break
    return False
