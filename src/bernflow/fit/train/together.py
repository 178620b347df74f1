"""Many fits at once: each is the same as it would be alone, and those that need steps at the same time share calls."""

from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from bernflow.fit.train.loop import Result, Steps
from bernflow.fit.train.steps import Chunk, take_steps, take_steps_together

# A call that is less than one part in so many full takes longer than its chunks would alone.
MIN_FULL = 4


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
