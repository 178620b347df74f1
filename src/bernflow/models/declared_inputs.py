"""Checks and conversions of the arguments of `Model`."""

from typing import Any

import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Distribution

from bernflow.errors import ModelError, UnknownArgumentError
from bernflow.models import network as networks
from bernflow.models.columns import Tables, as_arrays
from bernflow.models.inputs import NUMERIC_KINDS, check_values, pack
from bernflow.models.mapped import is_mapped
from bernflow.models.network import Network
from bernflow.nearest import nearest


def check_unknown(given: dict[str, Any], known: tuple[str, ...]) -> None:
    """Raise an error for unknown keyword arguments of `Model`, with a suggestion."""
    for name in given:
        raise UnknownArgumentError(
            f"Model got an unexpected keyword argument {name!r}: expected {', '.join(known)}.{nearest(name, known)}"
        )


def check_shape(shape: tuple[int, ...], batch: tuple[int, ...], event: tuple[int, ...]) -> None:
    """Raise an error unless the likelihood returns one log probability per data point."""
    split = len(shape) - len(event)
    given = f"y has shape {shape}, the likelihood has batch_shape {batch} and event_shape {event}"
    if split < 0 or shape[split:] != event:
        raise ModelError(
            f"{given}: expected the shape of y to end in the event_shape {event}. Reshape y, or change to_event(...) "
            "in the likelihood."
        )
    try:
        points = jnp.broadcast_shapes(shape[:split], batch)
    except ValueError:
        points = None
    if points != shape[:split]:
        outcome = "which cannot be broadcast" if points is None else f"which broadcast to {points}"
        raise ModelError(
            f"{given}, {outcome}: expected one log probability per data point, shape {shape[:split]}. Make the "
            "parameters of the likelihood as long as y: a column of shape (N, 1) becomes (N,) by `[:, 0]` or "
            "`.squeeze(-1)`."
        )


def check_functions(likelihood: Any, log_likelihood: Any, y: Any) -> None:
    """Check that exactly one of the functions is given, and data for it."""
    if (likelihood is None) == (log_likelihood is None):
        given = "neither" if likelihood is None else "both"
        raise ModelError(f"Model got {given} of likelihood= and log_likelihood=: expected exactly one of them.")
    for name, function in (("likelihood", likelihood), ("log_likelihood", log_likelihood)):
        if function is not None and (not callable(function) or isinstance(function, Distribution)):
            raise ModelError(
                f"Model: {name} is a {type(function).__name__}: expected a function of theta, for example "
                f"`{name}=lambda theta, {'x' if name == 'likelihood' else 'y, x'}: ...`."
            )
    if likelihood is not None and y is None:
        raise ModelError("Model got likelihood= without y=: expected the observed data as y=...")


def network_parts(network: Any, images: Any, y: Any) -> tuple[Network | None, Any, Any]:
    """Check network and images; the output of the network is zero until it is trained."""
    if (network is None) != (images is None):
        given, missing = ("network", "images") if images is None else ("images", "network")
        raise ModelError(f"Model got {given}= without {missing}=: expected both, or neither.")
    if network is None:
        return None, None, None
    network, images = networks.as_network(network), as_images(images)
    if y is None or len(images) != len(np.atleast_1d(y)):
        num = 0 if y is None else len(np.atleast_1d(y))
        raise ModelError(f"Model: images has {len(images)} rows and y has {num}: expected one image per observation.")
    return network, images, np.zeros((len(images), *networks.check_output(network, images)), np.float32)


def as_images(images: Any) -> np.ndarray:
    """Return the inputs of a network as an array with one row per observation."""
    # Keep a memory-mapped file, so that its rows are read when needed.
    array = images if is_mapped(images) else np.asarray(images)
    if array.ndim < 1 or array.dtype.kind not in NUMERIC_KINDS:
        raise ModelError(
            f"images has shape {array.shape} and type {array.dtype}: expected numbers, one row per observation."
        )
    return array


def as_outcome(y: Any) -> np.ndarray:
    """Return an outcome as an array of numbers."""
    check_values(y, "Model: y")
    y = as_arrays(y)
    array = y if is_mapped(y) else np.asarray(y)
    if array.dtype.kind not in NUMERIC_KINDS:
        raise ModelError(f"Model: y has dtype {array.dtype}: expected numbers. Encode it as integers or floats.")
    if is_mapped(array):
        # View booleans as integers, without reading the file.
        return array.view(np.uint8) if array.dtype.kind == "b" else array
    check_values(array, "Model: y")
    return array.astype(int) if array.dtype.kind == "b" else array


def as_covariates(x: Any, tables: Tables = "columns") -> Any:
    """Pack x; columns and lists of numbers become arrays, a data frame the dict of its columns or a matrix."""
    x = as_arrays(x, tables=tables)
    check_values(x, "Model: x")
    return pack(x)
