"""The progress bar, and the record of what training saw."""

import numpy as np
from tqdm.auto import tqdm

from bernflow.fit.chunk import Trace

# The record has one row per so many steps.
STEPS_PER_ROW = 25


class Recorder:
    """Hears of every chunk: keeps the ELBO with its Monte Carlo error, and moves a bar where one is wanted."""

    def __init__(self, progress: bool, num_particles: int, first_step: int = 0):
        # Nothing moves until the first chunk is compiled, which takes seconds.
        self._bar = tqdm(desc="bernflow: compiling", unit="step", disable=not progress, dynamic_ncols=True)
        self._num_particles = num_particles
        self._first_step = first_step
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
        self._bar.total = planned
        self._bar.set_description_str("bernflow", refresh=False)
        self._bar.update(done - self._bar.n)
        self._bar.set_postfix_str(f"ELBO {np.max(elbo):.3f}")

    def close(self) -> None:
        """End the bar at what was done."""
        self._bar.total = self._bar.n
        self._bar.refresh()
        self._bar.close()

    def record(self, num: int) -> dict[str, np.ndarray]:
        """Return the first rows of the record of all restarts as arrays, to be kept and given to `restore`."""
        steps, elbos, errors = zip(*self._rows[:num], strict=True) if num else ((), (), ())
        return {"step": np.array(steps, dtype=int), "elbo": np.array(elbos), "elbo_se": np.array(errors)}

    def restore(self, record: dict[str, np.ndarray]) -> None:
        """Go on from an earlier record."""
        steps = [int(step) for step in record["step"]]
        self._rows = list(zip(steps, record["elbo"], record["elbo_se"], strict=True))
        if steps:
            # Shown as done, but not as done in the time since the bar began.
            self._bar.initial = self._bar.n = steps[-1] - self._first_step

    def history(self, restart: int) -> dict[str, np.ndarray]:
        """Return the record of one restart: step, elbo, elbo_se."""
        return {
            "step": np.array([step for step, _, _ in self._rows], dtype=int),
            "elbo": np.array([elbo[restart] for _, elbo, _ in self._rows]),
            "elbo_se": np.array([error[restart] for _, _, error in self._rows]),
        }
