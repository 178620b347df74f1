"""Columns of tables and lists of numbers as arrays: what JAX does not take, and users have."""

from collections.abc import Callable
from numbers import Number
from typing import Any, TypeVar

import jax
import numpy as np

from bernflow.errors import ModelError

# A list of at most so many whole numbers may be the shape of something, and is first left as it is.
MAX_SIZES = 32

Result = TypeVar("Result")


def with_arrays(build: Callable[[Any], Result], arguments: Any) -> Result:
    """Build something from a user's arguments, with columns and lists of numbers as arrays where it takes no others.

    A short list of whole numbers may be the widths of layers: it stays one unless the function refuses it. What the
    function does not take as arrays, such as a data frame whose columns it reads as attributes, it gets as given.
    """
    readings = [as_arrays(arguments, sizes=False), as_arrays(arguments), arguments]
    different = [tree for i, tree in enumerate(readings) if i == 0 or not _same(tree, readings[i - 1])]
    errors = []
    for reading in different:
        try:
            return build(reading)
        except ModelError as error:
            errors.append(error)
    # A table was given, and not the dict of its columns, about which the first error speaks.
    raise errors[-1] if _has_frame(arguments) else errors[0]


def as_arrays(tree: Any, *, sizes: bool = True) -> Any:
    """Return a tree with columns of pandas, polars and others, and lists of numbers, as NumPy arrays.

    Args:
        tree: any nesting of dicts, lists and tuples.
        sizes: convert short lists of whole numbers, too.

    Example:
        >>> as_arrays([[0.5, 1.5], ["a", "b"]])
        [array([0.5, 1.5]), ['a', 'b']]
    """

    def one(node: Any) -> Any:
        if is_frame(node):
            return {name: one(node[name]) for name in node.columns}
        if _is_column(node):
            return _column(node)
        if isinstance(node, list) and (sizes or not _is_sizes(node)):
            return _array_of(node)
        return node

    return jax.tree.map(one, tree, is_leaf=lambda node: _is_column(node) or _is_numbers(node))


def is_frame(value: Any) -> bool:
    """Tell whether something is a table of named columns, without importing the package that it comes from."""
    return hasattr(value, "columns") and hasattr(value, "to_numpy") and hasattr(value, "__getitem__")


def _is_column(value: Any) -> bool:
    return hasattr(value, "to_numpy") and not hasattr(value, "columns") and np.ndim(getattr(value, "shape", 0)) == 1


def _is_numbers(node: Any) -> bool:
    """Tell whether a list holds numbers only, or lists of them of one length."""
    if not isinstance(node, list) or not node:
        return False
    if all(isinstance(value, Number | np.generic) for value in node):
        return True
    lengths = {len(row) if isinstance(row, list) else -1 for row in node}
    return len(lengths) == 1 and -1 not in lengths and all(map(_is_numbers, node))


def _is_sizes(node: list) -> bool:
    whole = all(isinstance(value, int | np.integer) and not isinstance(value, bool) for value in node)
    return whole and len(node) <= MAX_SIZES


def _array_of(node: list) -> Any:
    array = np.asarray(node)
    return array if array.dtype.kind in "biufc" else node


def _column(column: Any) -> Any:
    """Return the numbers of a column, missing ones as NaN; a column of anything else stays as it is."""
    values = column.to_numpy()
    if values.dtype.kind == "O" and _is_nullable(column):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return values if values.dtype.kind in "biufc" else column


def _is_nullable(column: Any) -> bool:
    """Tell whether a column holds numbers, and objects only because some are missing (`Int64` of pandas)."""
    kind = getattr(getattr(column, "dtype", None), "kind", "O")
    return kind in "biuf"


def _has_frame(tree: Any) -> bool:
    return any(map(is_frame, jax.tree.leaves(tree, is_leaf=is_frame)))


def _same(one: Any, other: Any) -> bool:
    """Tell whether two readings of the same arguments agree in kind, leaf by leaf."""
    leaves, structure = jax.tree.flatten(one)
    others, other_structure = jax.tree.flatten(other)
    return str(structure) == str(other_structure) and all(
        type(a) is type(b) for a, b in zip(leaves, others, strict=True)
    )
