"""Checks of the user's rows: table, images and outcome, of equal number."""

from typing import Any

import numpy as np

from bernflow.errors import ArgumentError
from bernflow.semistructured.design import Design
from bernflow.semistructured.members import check_images
from bernflow.semistructured.outcomes import check_y
from bernflow.semistructured.runs import Data


def check_rows(design: Design, table: Any, images: Any) -> tuple[np.ndarray, np.ndarray]:
    """Check rows without an outcome; return the standardized columns and the images."""
    matrix, images = design.standardize(design(table)), check_images(images)
    if len(matrix) != len(images):
        raise ArgumentError(_lengths(table=len(matrix), images=len(images)))
    return matrix, images


def check_data(
    outcome: str, design: Design, table: Any, images: Any, y: Any, num_classes: int | None, where: str = ""
) -> Data:
    """Check rows that have an outcome; return standardized columns, images and the outcome in its own units.

    Args:
        outcome: kind of the outcome.
        design: the columns of the formula.
        table: the table; that of the design if `num_classes` is None.
        images: inputs of the network.
        y: outcomes.
        num_classes: number of possible classes; None if y determines it.
        where: prefix of the names of the arguments in messages.
    """
    matrix = design.standardize(design.matrix if num_classes is None else design(table, f"{where}table"))
    checked = check_y(outcome, y, f"{where}y", num_classes)
    images = check_images(images, f"{where}images")
    if not len(matrix) == len(images) == len(checked):
        lengths = {f"{where}table": len(matrix), f"{where}images": len(images), f"{where}y": len(checked)}
        raise ArgumentError(_lengths(**lengths))
    if not len(checked):
        raise ArgumentError(f"{where}table, images and y are empty: expected at least one row.")
    return Data(matrix, images, checked)


def check_valid(outcome: str, design: Design, valid: Any, num_classes: int) -> Data | None:
    """Check the rows for validation, if there are any."""
    if valid is None:
        return None
    if not isinstance(valid, tuple | list) or len(valid) != 3:
        raise ArgumentError(f"valid is a {type(valid).__name__}: expected a tuple (table, images, y).")
    table, images, y = valid
    return check_data(outcome, design, table, images, y, num_classes, "valid ")


def check_groups(groups: Any, num: int) -> np.ndarray | None:
    """Check the groups of the rows, if there are any."""
    if groups is None:
        return None
    array = np.asarray(groups)
    if array.shape != (num,):
        raise ArgumentError(f"groups has shape {array.shape}: expected ({num},), one value per row.")
    return np.unique(array.astype(str), return_inverse=True)[1]


def take_column(table: Any, name: str, where: str = "table") -> np.ndarray:
    """Return the images in a column of the table, stacked."""
    try:
        column = table[name]
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"{where} has no column {name!r}, which images={name!r} names: expected the images."
        ) from error
    return np.stack([np.asarray(image) for image in list(column)])


def _lengths(**lengths: int) -> str:
    given = ", ".join(f"{name}: {num}" for name, num in lengths.items())
    return f"The numbers of rows differ ({given}): expected the same, one row per observation in each."
