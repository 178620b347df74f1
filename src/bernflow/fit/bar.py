"""The progress bar of a fit: one for all of its stages, which never goes back."""

import threading
import time
from collections.abc import Callable
from typing import Any

from tqdm.auto import tqdm

from bernflow.fit.deadline import Deadline
from bernflow.watched import in_notebook, is_watched

# While compiled code runs, nothing is reported: the clock of the bar moves all the same.
REFRESH_SECONDS = 0.5
# Whether another stage follows, such as a mixture, is known only after the verdict on this one: a stage fills this
# share of what is left of the bar, and the last one the rest when the fit ends.
STAGE_SHARE = 0.8
# Of a stage, training fills at most this share; the verdict follows.
TRAINING_SHARE = 0.9
# Training that may end after the planned steps goes on where they are not enough: for the bar, so much longer.
OPEN_END_SECONDS = 10.0
# Changes of the ELBO below this are not shown as a change.
SMALL_CHANGE = 0.005
# Below this, the estimate of the KL divergence is rounding.
SMALL_KL = 1e-5


class Bar:
    """Shows how far a fit is: stage and phase, elapsed time, what is left, the ELBO, and the KL divergence.

    Args:
        progress: whether a bar is wanted; it is shown in terminals and notebooks only.
        deadline: when the fit must be over.
        name: what is fitted; the first stage of most fits has no name.
        clock: returns the time in seconds.

    Example:
        >>> with Bar(progress=False) as bar:
        ...     bar.phase("starting")
    """

    _first: tuple[int, float] | None
    _left_from: tuple[float, float] | None
    _elbo: float | None
    _change: float | None
    _nats: float | None

    def __init__(
        self,
        progress: bool,
        deadline: Deadline | None = None,
        name: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._shown = bool(progress) and is_watched()
        self._deadline = deadline or Deadline.start()
        self._clock = clock
        self._name, self._stage, self._phase, self._detail = name, "", "starting", ""
        self._filled, self._base = 0.0, 0.0
        self._ended = threading.Event()
        self._begin_training()
        if not self._shown:
            return
        # Of a fixed width, so that it does not shrink where the text grows; a notebook has its own.
        shape = "{desc} |{bar}| {elapsed}{postfix}" if in_notebook() else "{desc} |{bar:12}| {elapsed}{postfix}"
        self._bar: Any = tqdm(
            desc=f"{self.title}: {self._phase}",
            total=1.0,
            bar_format=shape,
            dynamic_ncols=True,
            miniters=0,
            mininterval=0.0,
        )
        self._write()
        self._thread = threading.Thread(target=self._tick, name="bernflow-progress", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Bar":
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self.close(completed=kind is None)

    def stage(self, name: str) -> None:
        """Begin another stage, such as a mixture; the first has no name."""
        self._stage = name
        self._base = max(self._filled, self._base + STAGE_SHARE * (1.0 - self._base))
        self._begin_training()
        self.phase("starting")

    def phase(self, name: str, detail: str = "") -> None:
        """Say what is done now: starting, compiling, training or judging; and, if known, what that consists of."""
        self._phase, self._detail = name, detail
        self._write()

    def trained(self, done: int, planned: int, elbo: float, may_end: bool) -> None:
        """Hear of a chunk of steps.

        Args:
            done: number of steps taken.
            planned: number of steps that are planned so far.
            elbo: its estimate from this chunk.
            may_end: whether training ends after the planned steps only if the fit is good enough then.
        """
        now = self._clock()
        if not self._first:
            self._first = (done, now)
        elif done > self._first[0]:
            rate = (now - self._first[1]) / (done - self._first[0])
            self._left_from = (now, rate * max(planned - done, 0))
        self._change = None if self._elbo is None else elbo - self._elbo
        self._elbo, self._steps, self._may_end = elbo, (done, planned), may_end
        if self._phase != "judging":
            self._phase, self._detail = "training", ""
        self._write()

    def seen(self, nats: float) -> None:
        """Hear of an estimate of the KL divergence from the posterior."""
        self._nats = nats
        self._write()

    def close(self, completed: bool = True) -> None:
        """End the bar; full, unless an error has ended the fit."""
        if not self._shown or self._ended.is_set():
            return
        self._ended.set()
        self._thread.join()
        if completed:
            self._filled, self._phase, self._detail = 1.0, "done", ""
        self._write()
        self._bar.close()

    @property
    def title(self) -> str:
        """What the bar is of."""
        what = ", ".join(part for part in (self._name, self._stage) if part)
        return f"bernflow {what}".rstrip()

    def text(self) -> str:
        """Return what stands behind the bar."""
        parts = [self._detail]
        if self._phase == "training":
            parts.append(self._expectation())
            if not self._may_end:
                parts.append("{:,}/{:,} steps".format(*self._steps))
        if self._nats is not None:
            parts.append(f"KL {self._nats:.2g}" if self._nats >= SMALL_KL else f"KL < {SMALL_KL:g}")
        if self._elbo is not None:
            parts.append(f"ELBO {_short(self._elbo)}{self._written_change()}")
        return ", ".join(part for part in parts if part)

    @property
    def filled(self) -> float:
        """The share of the bar that is filled; it never falls."""
        share, left = 0.0, self._left()
        if left is not None and self._first:
            spent = self._clock() - self._first[1]
            left += OPEN_END_SECONDS if self._may_end else 0.0
            share = TRAINING_SHARE * spent / max(spent + left, 1e-9)
        if self._phase == "judging":
            share = TRAINING_SHARE
        self._filled = max(self._filled, self._base + STAGE_SHARE * (1.0 - self._base) * share)
        return self._filled

    def _begin_training(self) -> None:
        """Forget the figures of the stage before."""
        self._first = None
        self._left_from = None
        self._elbo = None
        self._change = None
        self._nats = None
        self._steps, self._may_end = (0, 0), True

    def _written_change(self) -> str:
        change = self._change or 0.0
        return f" ({'+' if change > 0 else ''}{_short(change)})" if abs(change) >= SMALL_CHANGE else ""

    def _left(self) -> float | None:
        """Return the seconds until the planned steps are done, as far as their rate is known."""
        if self._left_from is None:
            return None
        then, seconds = self._left_from
        return max(0.0, seconds - (self._clock() - then))

    def _expectation(self) -> str:
        """Say how much longer it takes: planned steps and the verdict at least, and at most what a limit allows."""
        left = self._left()
        if left is None:
            return ""
        least, limit = tqdm.format_interval(round(left)), self._deadline.left()
        if self._deadline.limit is not None:
            most = tqdm.format_interval(round(max(limit, left)))
            return f"{least} to {most} left" if least < most else f"{most} left"
        if not self._may_end:
            return f"{least} left + verdict"
        # "At least nothing" says nothing.
        return f"{least}+ left" if round(left) else ""

    def _write(self) -> None:
        if not self._shown:
            return
        with self._bar.get_lock():
            self._bar.set_description_str(f"{self.title}: {self._phase}", refresh=False)
            self._bar.set_postfix_str(self.text(), refresh=False)
            self._bar.n = self.filled
            self._bar.refresh()

    def _tick(self) -> None:
        while not self._ended.wait(REFRESH_SECONDS):
            self._write()


def _short(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 1e6 else f"{value:.2g}"
