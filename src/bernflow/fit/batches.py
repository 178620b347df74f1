"""Batches of rows: shuffled without replacement, kept on the device where they fit, streamed where they do not."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PyTree

from bernflow.errors import ArgumentError

# Rows up to this size are moved to the device once; larger ones, and files mapped into memory, are streamed.
MAX_RESIDENT_BYTES = 4 * 2**30


class Batches:
    """An endless sequence of batches, epoch after epoch; the same seed gives the same sequence.

    Rows that do not fill a last batch are left out of an epoch; every epoch leaves out others.
    """

    def __init__(self, rows: PyTree, num_rows: int, batch_size: int, seed: int, resident: bool | None = None):
        if batch_size > num_rows:
            raise ArgumentError(
                f"batch_size={batch_size} with {num_rows} rows: expected at most as many. Leave it out to use all rows."
            )
        self.rows = rows
        self.num_rows = num_rows
        self.batch_size = batch_size
        self.steps_per_epoch = num_rows // batch_size
        self._seed = seed
        self.resident = _fits(rows) if resident is None else resident

    def indices(self, first: int, num: int) -> Int[np.ndarray, "num b"]:
        """Return the rows of `num` steps from step `first` on."""
        return np.stack(
            [
                self._epoch(step // self.steps_per_epoch)[step % self.steps_per_epoch]
                for step in range(first, first + num)
            ]
        )

    def in_order(self) -> Iterator[Int[np.ndarray, " b"]]:
        """Yield all rows once, in batches; the last may be shorter."""
        for start in range(0, self.num_rows, self.batch_size):
            yield np.arange(start, min(start + self.batch_size, self.num_rows), dtype=np.int32)

    def first(self, num: int) -> PyTree:
        """Return a random choice of rows, on the device."""
        order = np.random.default_rng([self._seed, 0]).permutation(self.num_rows)[:num].astype(np.int32)
        return jax.tree.map(lambda leaf: leaf[0], self.take(order[None]))

    def _epoch(self, epoch: int) -> Int[np.ndarray, "steps b"]:
        order = np.random.default_rng([self._seed, epoch]).permutation(self.num_rows).astype(np.int32)
        return order[: self.steps_per_epoch * self.batch_size].reshape(self.steps_per_epoch, self.batch_size)

    def take(self, indices: Int[np.ndarray, "num b"]) -> PyTree:
        """Gather rows on the host and send them to the device."""
        return jax.tree.map(
            lambda leaf: jnp.asarray(np.asarray(leaf[indices.reshape(-1)]).reshape(*indices.shape, *leaf.shape[1:])),
            self.rows,
        )

    def chunks(self, lengths: list[int], first_step: int = 0) -> Iterator[tuple[PyTree, PyTree]]:
        """Yield, for chunks of so many steps, (rows on the device, indices), or (batches on the device, None).

        While one streamed chunk computes, the next is gathered in the background.
        """
        starts = first_step + np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(int)
        jobs = [(int(start), num) for start, num in zip(starts, lengths, strict=True)]
        if self.resident:
            on_device = jax.tree.map(jnp.asarray, self.rows)
            for job in jobs:
                yield on_device, jnp.asarray(self.indices(*job))
            return
        with ThreadPoolExecutor(1) as pool:
            ahead = [pool.submit(lambda job: self.take(self.indices(*job)), job) for job in jobs[:1]]
            for following in [*jobs[1:], None]:
                batch = ahead.pop().result()
                if following is not None:
                    ahead.append(pool.submit(lambda job: self.take(self.indices(*job)), following))
                yield batch, None


def _fits(rows: PyTree) -> bool:
    leaves = jax.tree.leaves(rows)
    mapped = any(isinstance(leaf, np.memmap) for leaf in leaves)
    return not mapped and sum(leaf.nbytes for leaf in leaves) <= MAX_RESIDENT_BYTES
