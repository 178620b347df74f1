"""A random order of very many rows that is computed where it is needed and never stored."""

import numpy as np
from jaxtyping import Int

NUM_ROUNDS = 6


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
