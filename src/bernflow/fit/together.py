"""Many fits at once: each is that of `bf.fit`, and those that need steps at the same time share calls."""

import functools
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from bernflow.fit.automatic import fit_target
from bernflow.fit.run import Run
from bernflow.fit.settings import Settings
from bernflow.fit.train.loop import Result, Steps
from bernflow.fit.train.steps import Chunk, take_steps, take_steps_together
from bernflow.models.base import AbstractModel
from bernflow.posterior import Posterior
from bernflow.target import Target

# A call that is less than one part in so many full takes longer than its chunks would alone.
MIN_FULL = 4


def fit_together(
    models: Sequence[AbstractModel], settings: Settings, keys: Sequence[Key[Array, ""]], size: int
) -> Iterator[tuple[int, Posterior]]:
    """Fit models that differ in their data alone; yield every posterior, with its number, when it is there.

    Every fit is that of `bf.fit` with these settings and its key: the same start, stopping rule, verdict and, where one
    flow is not enough, mixture. Training steps, which take longest where the density is expensive, are taken by up to
    `size` fits in one call; starts, structured ones among them, and verdicts are computed one fit after the other. To
    be called in the precision of the settings. An interruption stops all fits.
    """
    # Without a number of steps a fit that misses mass is followed by a mixture: only a whole verdict tells.
    run = Run(is_one_of_many=True, is_brief=settings.steps is not None)
    fits = [
        functools.partial(fit_target, Target(model), settings, key, run)
        for model, key in zip(models, keys, strict=True)
    ]
    return run_together(fits, size)


def run_together(fits: Sequence[Callable[[], Steps[Result]]], size: int) -> Iterator[tuple[int, Result]]:
    """Run fits, at most `size` of them at a time, and yield their results as they end, with their numbers.

    What a fit does beside taking steps is done one fit after the other. As soon as one ends, the next begins, so that
    calls of compiled steps are as full as can be.
    """
    waiting = deque(enumerate(fits))
    running: dict[int, tuple[Steps[Result], Chunk]] = {}
    while waiting or running:
        while waiting and len(running) < size:
            number, begin = waiting.popleft()
            steps = begin()
            try:
                running[number] = steps, next(steps)
            except StopIteration as end:
                yield number, end.value
        groups: dict[Hashable, list[int]] = {}
        for number, (_, chunk) in running.items():
            groups.setdefault(_shape_of(chunk), []).append(number)
        for group in groups.values():
            chunks = [running[number][1] for number in group]
            # Copies would fill up a call of few: alone they take less time.
            few = len(chunks) * MIN_FULL < size
            taken = list(map(take_steps, chunks)) if few else take_steps_together(chunks, size)
            for number, result in zip(group, taken, strict=True):
                steps, _ = running.pop(number)
                try:
                    running[number] = steps, steps.send(result)
                except StopIteration as end:
                    yield number, end.value


def _shape_of(chunk: Chunk) -> Hashable:
    """Return what is the same for all chunks whose steps can be taken in one call."""
    leaves, structure = jax.tree.flatten((chunk.state, chunk.objective, chunk.rates, chunk.powers))
    kinds = tuple(
        (leaf.shape, str(leaf.dtype)) if isinstance(leaf, np.ndarray | np.generic | jax.Array) else _identity(leaf)
        for leaf in leaves
    )
    return structure, kinds, chunk.recipe


def _identity(leaf: Any) -> Hashable:
    try:
        hash(leaf)
    except TypeError:
        return id(leaf)
    return leaf
