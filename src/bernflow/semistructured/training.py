"""Follow a training epoch by epoch: its curves, its best epoch, its checkpoints."""

from collections.abc import Callable

import numpy as np

from bernflow.fit.train.state import Trace, TrainState
from bernflow.semistructured.checkpoint import Checkpoint, Progress


class Follower:
    """Hears of chunks and epochs of one training.

    Args:
        steps_per_epoch: number of steps in an epoch.
        epochs: number of epochs at most.
        num_particles: draws per step, for the Monte Carlo error of the ELBO.
        validate: the validation log score of a trainee, or None.
        patience: stop after so many epochs without a higher score; None never stops.
        checkpoint: where to write, or None.
    """

    def __init__(
        self,
        steps_per_epoch: int,
        epochs: int,
        num_particles: int,
        validate: Callable[[TrainState], float] | None = None,
        patience: int | None = None,
        checkpoint: Checkpoint | None = None,
    ):
        self._steps_per_epoch = steps_per_epoch
        self._epochs = epochs
        self._num_particles = num_particles
        self._validate = validate
        self._patience = patience
        self._checkpoint = checkpoint
        self._chunks: list[Trace] = []
        self._rows: dict[str, list[float]] = {name: [] for name in ("elbo", "elbo_se", "valid_score")}
        self._best: tuple | None = None
        self.best_epoch = 0

    @property
    def history(self) -> dict[str, np.ndarray]:
        """One value per epoch: epoch, elbo and elbo_se of its batches, and valid_score where there is validation."""
        rows = {name: np.array(values) for name, values in self._rows.items() if values}
        return {"epoch": np.arange(1, len(self._rows["elbo"]) + 1), **rows}

    def report(self, done: int, planned: int, trace: Trace) -> None:
        """Hear of a chunk of steps."""
        self._chunks.append(trace)

    def epoch_end(self, epoch: int, trainee: TrainState) -> bool:
        """Hear of an epoch; return True to stop."""
        elbo, variance = (np.concatenate([t[i][0] for t in self._chunks]) for i in (0, 1))
        self._chunks = []
        self._rows["elbo"].append(float(elbo.mean()))
        # Within a batch and between batches: the ELBO of an epoch is the mean of one estimate per batch.
        between = elbo.var() / len(elbo)
        self._rows["elbo_se"].append(float(np.sqrt(between + variance.mean() / (len(elbo) * self._num_particles))))
        stop = False
        if self._validate is not None:
            score = self._validate(trainee)
            scores = self._rows["valid_score"]
            scores.append(score if np.isfinite(score) else -np.inf)
            if self._best is None or scores[-1] > scores[self.best_epoch - 1]:
                self._best, self.best_epoch = tuple(trainee[:3]), epoch
            stop = self._patience is not None and epoch - self.best_epoch >= self._patience
        if self._checkpoint is not None:
            self._checkpoint.write(Progress(epoch, trainee, self.best_epoch, self._best, stop, self.history))
        return stop

    def resume(self, trainee: TrainState) -> tuple[TrainState, int]:
        """Return where an earlier call ended, and its steps; a training that has stopped counts as complete."""
        progress = None if self._checkpoint is None else self._checkpoint.read(trainee)
        if progress is None:
            return trainee, 0
        self._rows |= {name: values.tolist() for name, values in progress.history.items() if name != "epoch"}
        self._best, self.best_epoch = progress.best, progress.best_epoch
        epochs = self._epochs if progress.stopped else progress.epoch
        return progress.trainee, epochs * self._steps_per_epoch

    def keep(self, trainee: TrainState) -> TrainState:
        """Return the best epoch's flow and weights, or the last ones without validation."""
        if self._best is None:
            return trainee
        flow, weights, state = self._best
        return trainee._replace(flow=flow, weights=weights, state=state)
