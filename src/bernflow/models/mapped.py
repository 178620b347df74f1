"""Arrays in files mapped into memory: read in blocks, and given back to the system after each."""

import mmap
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

# Bytes of one array that are read at once.
BLOCK_BYTES = 2**24
# Scattered rows that are read at once.
ROWS_AT_ONCE = 64


def is_mapped(value: Any) -> bool:
    """Tell whether an array lies in a file that is mapped into memory."""
    return isinstance(value, np.memmap) and getattr(value, "_mmap", None) is not None


def release(tree: PyTree) -> None:
    """Give the pages of mapped files back to the system; what is read again comes from the file again.

    Otherwise a process that has looked at every row once holds all of them.
    """
    for leaf in jax.tree.leaves(tree):
        # Changes of a private copy ("c") are in these pages alone.
        if is_mapped(leaf) and leaf.mode != "c" and hasattr(mmap, "MADV_DONTNEED"):
            leaf._mmap.madvise(mmap.MADV_DONTNEED)


def gather(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return some rows of an array, in memory.

    Around every row that is read from a mapped file the system maps up to megabytes: many at once are all of it.
    """
    if not is_mapped(values):
        return np.asarray(values[rows])
    out = np.empty((len(rows), *values.shape[1:]), values.dtype)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        out[start : start + ROWS_AT_ONCE] = values[rows[start : start + ROWS_AT_ONCE]]
        release(values)
    return out


def rows_at_once(tree: PyTree) -> int:
    """Return how many rows of the widest array of a tree are read at once."""
    widest = max((leaf.nbytes // max(len(leaf), 1) for leaf in jax.tree.leaves(tree)), default=1)
    return max(1, BLOCK_BYTES // max(widest, 1))


def row_blocks(tree: PyTree, num_rows: int) -> Iterator[tuple[int, PyTree]]:
    """Yield (first row, rows) of arrays with the same number of rows: all at once, or in blocks where one is mapped."""
    step = rows_at_once(tree) if any(map(is_mapped, jax.tree.leaves(tree))) else max(num_rows, 1)
    for start in range(0, max(num_rows, 1), step):
        yield start, jax.tree.map(lambda leaf, start=start: leaf[start : start + step], tree)
        release(tree)
