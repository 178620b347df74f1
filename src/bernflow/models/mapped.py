"""Memory-mapped arrays: read in blocks, whose pages are released afterward."""

import mmap
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

# Block size in bytes of the widest array.
BLOCK_BYTES = 2**24
# Number of scattered rows that are read at once.
ROWS_AT_ONCE = 64


def is_mapped(value: Any) -> bool:
    """Tell whether an array is memory-mapped."""
    return isinstance(value, np.memmap) and getattr(value, "_mmap", None) is not None


def release(tree: PyTree) -> None:
    """Release the pages of memory-mapped files, which are read again when needed.

    Otherwise a process that has read every row once keeps all of them in memory.
    """
    for leaf in jax.tree.leaves(tree):
        # Changes of a copy-on-write map ("c") are only in these pages.
        if is_mapped(leaf) and leaf.mode != "c" and hasattr(mmap, "MADV_DONTNEED"):
            leaf._mmap.madvise(mmap.MADV_DONTNEED)


def gather(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Copy some rows of an array into memory.

    The system maps up to megabytes around every row that is read, so that many rows at once would map the whole file.
    """
    if not is_mapped(values):
        return np.asarray(values[rows])
    out = np.empty((len(rows), *values.shape[1:]), values.dtype)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        out[start : start + ROWS_AT_ONCE] = values[rows[start : start + ROWS_AT_ONCE]]
        release(values)
    return out


def rows_at_once(tree: PyTree) -> int:
    """Return the number of rows per block, determined by the widest array of a tree."""
    widest = max((leaf.nbytes // max(len(leaf), 1) for leaf in jax.tree.leaves(tree)), default=1)
    return max(1, BLOCK_BYTES // max(widest, 1))


def row_blocks(tree: PyTree, num_rows: int) -> Iterator[tuple[int, PyTree]]:
    """Yield (first row, rows) of arrays with equally many rows: all at once, or in blocks if any is memory-mapped."""
    step = rows_at_once(tree) if any(map(is_mapped, jax.tree.leaves(tree))) else max(num_rows, 1)
    for start in range(0, max(num_rows, 1), step):
        yield start, jax.tree.map(lambda leaf, start=start: leaf[start : start + step], tree)
        release(tree)
