"""The record of what training saw, which also moves the progress bar."""

import numpy as np

from bernflow.fit.bar import Bar
from bernflow.fit.train.state import Trace

# The record has one row per so many steps.
STEPS_PER_ROW = 25


class Recorder:
    """Hears of every chunk: keeps the ELBO with its Monte Carlo error, and tells the bar.

    Args:
        bar: shows it.
        num_particles: draws per step.
        first_step: number of steps before this training.
        may_end: training ends after the planned steps only if the fit is good enough then.
    """

    def __init__(self, bar: Bar, num_particles: int, first_step: int = 0, may_end: bool = False):
        self._bar = bar
        self._num_particles = num_particles
        self._first_step = first_step
        self._may_end = may_end
        self._rows: list[tuple[int, np.ndarray, np.ndarray]] = []

    @property
    def num_rows(self) -> int:
        """How many rows the record has."""
        return len(self._rows)

    def __call__(self, done: int, planned: int, trace: Trace) -> None:
        """Record one chunk."""
        num = trace.elbo.shape[1]
        for start in range(0, num, STEPS_PER_ROW):
            stop = min(start + STEPS_PER_ROW, num)
            elbo, variance = (np.mean(values[:, start:stop], 1) for values in trace)
            error = np.sqrt(variance / ((stop - start) * self._num_particles))
            self._rows.append((self._first_step + done - num + stop, elbo, error))
        if done:  # the record of a start that needs no training has no steps
            self._bar.trained(done, planned, float(np.max(np.mean(trace.elbo, 1))), self._may_end)

    def record(self, num: int) -> dict[str, np.ndarray]:
        """Return the first rows of the record of all restarts as arrays, to be kept and given to `restore`."""
        steps, elbos, errors = zip(*self._rows[:num], strict=True) if num else ((), (), ())
        return {"step": np.array(steps, dtype=int), "elbo": np.array(elbos), "elbo_se": np.array(errors)}

    def restore(self, record: dict[str, np.ndarray]) -> None:
        """Go on from an earlier record."""
        steps = [int(step) for step in record["step"]]
        self._rows = list(zip(steps, record["elbo"], record["elbo_se"], strict=True))

    def history(self, restart: int) -> dict[str, np.ndarray]:
        """Return the record of one restart: step, elbo, elbo_se."""
        return {
            "step": np.array([step for step, _, _ in self._rows], dtype=int),
            "elbo": np.array([elbo[restart] for _, elbo, _ in self._rows]),
            "elbo_se": np.array([error[restart] for _, _, error in self._rows]),
        }
