"""Packages of the extra `images`: imported where they are used, with a sentence if they are missing."""

import importlib
from typing import Any

from bernflow import BernflowError


def import_extra(module: str) -> Any:
    """Import a module of pyarrow or Pillow.

    Example:
        >>> import_extra("PIL.Image").__name__
        'PIL.Image'
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = {"PIL": "pillow"}.get(module.split(".")[0], module.split(".")[0])
        raise BernflowError(
            f"The melanoma pictures need the package {package} ({error}): install it with pip install "
            "'bernflow[images]'."
        ) from error
