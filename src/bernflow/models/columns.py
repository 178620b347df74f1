"""Conversion of data frames, columns and lists of numbers to arrays."""

from collections.abc import Callable
from numbers import Number
from typing import Any, Literal, TypeVar

import jax
import numpy as np

from bernflow.errors import ModelError

# A list of at most this many integers may be a shape, so it is not converted at first.
MAX_SIZES = 32
# Errors of JAX when pandas or NumPy gets a traced array.
TRACER_ERRORS = (jax.errors.TracerArrayConversionError, jax.errors.TracerBoolConversionError)

Result = TypeVar("Result")
Tables = Literal["columns", "matrix", "given"]


def with_arrays(build: Callable[[Any], Result], arguments: Any, *, as_given: bool = True) -> Result:
    """Build a model from the user's arguments, with columns and lists of numbers converted to arrays.

    A short list of integers, such as the widths of layers, is converted only if `build` fails otherwise. A data frame
    becomes the dict of its columns, or a matrix if `build` refuses the dict. If `build` also fails with arrays, for
    example because it reads the columns of a data frame as attributes, it gets the arguments unchanged.

    Args:
        build: called with the arguments; it raises a `ModelError` if it needs another conversion.
        arguments: any nesting of dicts, lists and tuples.
        as_given: also try the arguments unchanged.
    """
    readings = [as_arrays(arguments, sizes=False), as_arrays(arguments), as_arrays(arguments, tables="matrix")]
    readings += [as_arrays(arguments, tables="given"), arguments] if as_given else []
    different = [tree for i, tree in enumerate(readings) if i == 0 or not _same(tree, readings[i - 1])]
    errors = []
    for reading in different:
        try:
            return build(reading)
        except ModelError as error:
            errors.append(error)
    raise _explained(_most_telling(errors), arguments)


def as_arrays(tree: Any, *, sizes: bool = True, tables: Tables = "columns") -> Any:
    """Convert data frame columns (pandas, polars, ...) and lists of numbers in a tree to NumPy arrays.

    Args:
        tree: any nesting of dicts, lists and tuples.
        sizes: also convert short lists of integers.
        tables: convert data frames to the dict of their "columns" or to a "matrix", or leave them as "given".

    Example:
        >>> as_arrays([[0.5, 1.5], ["a", "b"]])
        [array([0.5, 1.5]), ['a', 'b']]
    """

    def one(node: Any) -> Any:
        if is_frame(node):
            return node if tables == "given" else _table(node, tables == "matrix")
        if _is_column(node):
            return _column(node)
        if isinstance(node, list) and (sizes or not _is_sizes(node)):
            return _array_of(node)
        return node

    return jax.tree.map(one, tree, is_leaf=lambda node: _is_column(node) or _is_numbers(node))


def _table(frame: Any, matrix: bool) -> Any:
    """Return a table as the dict of its columns, or as a matrix; always as a matrix if several columns share a name."""
    names = list(frame.columns)
    if matrix or len(set(names)) < len(names):
        values = frame.to_numpy()
        return values if values.dtype.kind in "biufc" else frame
    return {name: _column(frame[name]) for name in names}


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


def _most_telling(errors: list[ModelError]) -> ModelError:
    """Select the most informative error of several conversions: errors of JAX about non-arrays hide others."""
    telling = [error for error in errors if not isinstance(error.__cause__, TRACER_ERRORS)]
    return (telling or errors)[0]


def _explained(error: ModelError, arguments: Any) -> ModelError:
    """Describe the conversion of tables and text columns, if it may have caused the error of a model."""
    leaves = jax.tree.leaves(as_arrays(arguments), is_leaf=_is_column)
    if any(map(_is_column, leaves)) and isinstance(error.__cause__, TypeError):
        hint = "An argument is a column of text or dates: give numbers, for example the codes of pandas.factorize."
    elif has_frame(arguments) and "'dict'" in str(error.__cause__):
        hint = "A table reaches the model as the dict of its columns, data['x'], or as a matrix, data[:, 0]."
    else:
        return error
    explained = ModelError(f"{error}\n{hint}")
    explained.__cause__ = error.__cause__
    return explained


def has_frame(tree: Any) -> bool:
    """Tell whether a table is among some arguments."""
    return any(map(is_frame, jax.tree.leaves(tree, is_leaf=is_frame)))


def _same(one: Any, other: Any) -> bool:
    """Tell whether two conversions of the same arguments have the same structure and leaf types."""
    leaves, structure = jax.tree.flatten(one)
    others, other_structure = jax.tree.flatten(other)
    return str(structure) == str(other_structure) and all(
        type(a) is type(b) for a, b in zip(leaves, others, strict=True)
    )
