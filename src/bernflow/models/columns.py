"""Conversion of data frames, columns and lists of numbers to arrays."""

from collections.abc import Callable
from numbers import Number
from typing import Any, TypeVar

import jax
import numpy as np

from bernflow.errors import ModelError

# A list of at most this many integers may be a shape, so it is not converted at first.
MAX_SIZES = 32

Result = TypeVar("Result")


def with_arrays(build: Callable[[Any], Result], arguments: Any) -> Result:
    """Build a model from the user's arguments, with columns and lists of numbers converted to arrays.

    A short list of integers, such as the widths of layers, is converted only if `build` fails otherwise. If `build`
    also fails with arrays, for example because it reads the columns of a data frame as attributes, it gets the
    arguments unchanged.
    """
    readings = [as_arrays(arguments, sizes=False), as_arrays(arguments), arguments]
    different = [tree for i, tree in enumerate(readings) if i == 0 or not _same(tree, readings[i - 1])]
    errors = []
    for reading in different:
        try:
            return build(reading)
        except ModelError as error:
            errors.append(error)
    # If a data frame was given, the first error is about its conversion to a dict, the last about the data frame.
    raise errors[-1] if _has_frame(arguments) else errors[0]


def as_arrays(tree: Any, *, sizes: bool = True) -> Any:
    """Convert data frame columns (pandas, polars, ...) and lists of numbers in a tree to NumPy arrays.

    Args:
        tree: any nesting of dicts, lists and tuples.
        sizes: also convert short lists of integers.

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
    """Tell whether something is a data frame, without importing its package."""
    return hasattr(value, "columns") and hasattr(value, "to_numpy") and hasattr(value, "__getitem__")


def _is_column(value: Any) -> bool:
    return hasattr(value, "to_numpy") and not hasattr(value, "columns") and np.ndim(getattr(value, "shape", 0)) == 1


def _is_numbers(node: Any) -> bool:
    """Tell whether a list contains only numbers, or only lists of numbers of equal length."""
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
    """Return a numeric column as an array with NaN for missing values, and any other column unchanged."""
    values = column.to_numpy()
    if values.dtype.kind == "O" and _is_nullable(column):
        values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    return values if values.dtype.kind in "biufc" else column


def _is_nullable(column: Any) -> bool:
    """Tell whether a column of objects is numeric with missing values (`Int64` of pandas)."""
    kind = getattr(getattr(column, "dtype", None), "kind", "O")
    return kind in "biuf"


def _has_frame(tree: Any) -> bool:
    return any(map(is_frame, jax.tree.leaves(tree, is_leaf=is_frame)))


def _same(one: Any, other: Any) -> bool:
    """Tell whether two conversions of the same arguments have the same structure and leaf types."""
    leaves, structure = jax.tree.flatten(one)
    others, other_structure = jax.tree.flatten(other)
    return str(structure) == str(other_structure) and all(
        type(a) is type(b) for a, b in zip(leaves, others, strict=True)
    )
