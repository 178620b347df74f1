"""Batches of rows: shuffled without replacement, kept on the device where they fit, streamed where they do not."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from bernflow.errors import ArgumentError
from bernflow.models.mapped import gather, is_mapped
from bernflow.precision import float_dtype, use_precision

# Rows up to this size are moved to the device once; larger ones, and files mapped into memory, are streamed.
MAX_RESIDENT_BYTES = 4 * 2**30
# Up to so many rows an epoch is shuffled in memory; the order of more is computed row by row.
MAX_SHUFFLED_ROWS = 2**22
# Rounds of the Feistel network that computes it.
NUM_ROUNDS = 6


class Batches:
    """An endless sequence of batches, epoch after epoch; the same seed gives the same sequence.

    Rows that do not fill a last batch are left out of an epoch; every epoch leaves out others.

    Args:
        rows: arrays (N, ...) on the host.
        num_rows: N.
        batch_size: rows of a batch.
        seed: for the order of the rows.
        resident: whether all rows are moved to the device once; None decides by their size.
        put: sends batches (steps, rows, ...) to the device or devices.
        num_processes: how many processes each have as many rows, and take a batch of this size from them.
    """

    def __init__(
        self,
        rows: PyTree,
        num_rows: int,
        batch_size: int,
        seed: int,
        resident: bool | None = None,
        put: Callable[[np.ndarray], Array] = jnp.asarray,
        num_processes: int = 1,
    ):
        if batch_size > num_rows:
            raise ArgumentError(
                f"batch_size={batch_size} with {num_rows} rows: expected at most as many. Leave it out to use all rows."
            )
        self.rows = rows
        # Where each of several processes has rows of its own, these are its own, and so is its part of a batch.
        self.total_rows = num_rows * num_processes
        self._num_processes = num_processes
        self._put = put
        self.num_rows = num_rows
        self.batch_size = batch_size
        self.steps_per_epoch = num_rows // batch_size
        self._seed = seed
        # The order of the epoch that was asked for last.
        self._order: tuple[int, np.ndarray] = (-1, np.empty(0, self._dtype))
        self.resident = _fits(rows) if resident is None else resident

    def indices(self, first: int, num: int) -> Int[np.ndarray, "num b"]:
        """Return the rows of `num` steps from step `first` on."""
        steps = np.arange(first, first + num)
        epochs, places = steps // self.steps_per_epoch, steps % self.steps_per_epoch
        return np.concatenate([self._rows_of(epoch, places[epochs == epoch]) for epoch in np.unique(epochs)])

    def in_order(self, block: int | None = None) -> Iterator[Int[np.ndarray, " b"]]:
        """Yield all rows once, in batches or blocks; the last may be shorter."""
        block = block or self.batch_size
        for start in range(0, self.num_rows, block):
            yield np.arange(start, min(start + block, self.num_rows), dtype=self._dtype)

    def first(self, num: int) -> PyTree:
        """Return a random choice of rows, on the device."""
        return jax.tree.map(lambda leaf: leaf[0], self.take(self.sample(num)[None]))

    def share(self, num: int) -> int:
        """Return how many of so many rows this process brings."""
        return num // self._num_processes

    def sample(self, num: int) -> Int[np.ndarray, " num"]:
        """Choose rows at random, without replacement."""
        if self.num_rows > MAX_SHUFFLED_ROWS:
            return permuted(np.arange(num), self.num_rows, [self._seed, 0]).astype(self._dtype)
        return np.random.default_rng([self._seed, 0]).permutation(self.num_rows)[:num].astype(self._dtype)

    @property
    def _dtype(self) -> type:
        return np.int32 if self.num_rows < 2**31 else np.int64

    def _rows_of(self, epoch: int, places: Int[np.ndarray, " k"]) -> Int[np.ndarray, "k b"]:
        """Return the batches of an epoch at the given places."""
        if self.num_rows > MAX_SHUFFLED_ROWS:
            positions = places[:, None] * self.batch_size + np.arange(self.batch_size)
            rows = permuted(positions.reshape(-1), self.num_rows, [self._seed, int(epoch)])
            return rows.reshape(positions.shape).astype(self._dtype)
        known, order = self._order
        if known != epoch:
            order = np.random.default_rng([self._seed, int(epoch)]).permutation(self.num_rows).astype(self._dtype)
            self._order = (int(epoch), order)
        return order[: self.steps_per_epoch * self.batch_size].reshape(-1, self.batch_size)[places]

    def take(self, indices: Int[np.ndarray, "num b"]) -> PyTree:
        """Gather rows on the host and send them to the device."""
        return jax.tree.map(
            lambda leaf: self._put(gather(leaf, indices.reshape(-1)).reshape(*indices.shape, *leaf.shape[1:])),
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
                yield on_device, self.indices(*job)
            return
        precision = str(float_dtype())

        def take(job: tuple[int, int]) -> PyTree:
            with use_precision(precision):  # another thread does not share it
                return self.take(self.indices(*job))

        with ThreadPoolExecutor(1) as pool:
            ahead = [pool.submit(take, job) for job in jobs[:1]]
            for following in [*jobs[1:], None]:
                batch = ahead.pop().result()
                if following is not None:
                    ahead.append(pool.submit(take, following))
                yield batch, None


def _fits(rows: PyTree) -> bool:
    leaves = jax.tree.leaves(rows)
    mapped = any(map(is_mapped, leaves))
    return not mapped and sum(leaf.nbytes for leaf in leaves) <= MAX_RESIDENT_BYTES


def permuted(positions: Int[np.ndarray, " k"], size: int, seed: list[int]) -> Int[np.ndarray, " k"]:
    """Return which of `size` rows stand at the given positions of a random order.

    A Feistel network on the next power of four is a bijection whatever its rounds compute; what falls beyond `size` is
    sent through it again until it falls inside (cycle walking), which leaves a bijection of the rows.

    Example:
        >>> sorted(permuted(np.arange(5), 5, [0]).tolist())
        [0, 1, 2, 3, 4]
    """
    half = np.uint64(max(1, ((size - 1).bit_length() + 1) // 2))
    mask = np.uint64((1 << int(half)) - 1)
    keys = np.random.default_rng(seed).integers(0, 2**63, NUM_ROUNDS, dtype=np.uint64)

    def once(values: np.ndarray) -> np.ndarray:
        left, right = values >> half, values & mask
        for key in keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        return (left << half) | right

    out = once(np.asarray(positions).astype(np.uint64))
    outside = np.flatnonzero(out >= size)
    while outside.size:
        out[outside] = once(out[outside])
        outside = outside[out[outside] >= size]
    return out.astype(np.int64)


def _mix(values: np.ndarray) -> np.ndarray:
    """Scatter 64-bit words (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
