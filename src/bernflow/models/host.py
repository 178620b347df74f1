"""Host callbacks: functions of NumPy arrays called from JAX code."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def host_call(function: Callable[..., Sequence[Any]], results: Sequence[Any], *arguments: Array) -> list[Array]:
    """Call a function on the host from JAX code, once per element of vmapped axes.

    Args:
        function: takes and returns NumPy arrays.
        results: shapes and dtypes of the results, as in `jax.ShapeDtypeStruct`.
        *arguments: its arguments.
    """
    ranks = [jnp.ndim(argument) for argument in arguments]
    # Determined here, because the callback may run with another precision.
    dtypes = [jax.dtypes.canonicalize_dtype(r.dtype) for r in results]

    def one_by_one(*inputs: np.ndarray) -> list[np.ndarray]:
        # Mapped axes come first; those of arguments that are not mapped have length one.
        lead = [v.shape[: v.ndim - rank] for v, rank in zip(inputs, ranks, strict=True)]
        batch = np.broadcast_shapes(*lead)
        outputs = [np.empty((*batch, *r.shape), dtype) for r, dtype in zip(results, dtypes, strict=True)]
        for index in np.ndindex(batch):
            own = [tuple(i % n for i, n in zip(index, shape, strict=True)) for shape in lead]
            drawn = function(*(v[place] for v, place in zip(inputs, own, strict=True)))
            for output, value in zip(outputs, drawn, strict=True):
                output[index] = value
        return outputs

    return batched_host_call(one_by_one, results, *arguments, vmap_method="expand_dims")


def batched_host_call(
    function: Callable[..., Sequence[Any]], results: Sequence[Any], *arguments: Array, vmap_method: str
) -> list[Array]:
    """Call a function on the host from JAX code, once for all elements of vmapped axes.

    JAX runs callbacks in another thread, where a local precision has no effect and 64-bit numbers are rounded to 32
    bits. So they are passed as pairs of 32-bit words.

    Args:
        function: takes and returns NumPy arrays with the vmapped axes first.
        results: shapes and dtypes of the results for one element, as in `jax.ShapeDtypeStruct`.
        *arguments: its arguments.
        vmap_method: see `jax.pure_callback`.
    """
    values = [jnp.asarray(argument) for argument in arguments]
    dtypes = [value.dtype for value in values]
    returned = [jax.ShapeDtypeStruct(r.shape, jax.dtypes.canonicalize_dtype(r.dtype)) for r in results]

    def on_host(*words: Any) -> list[np.ndarray]:
        outputs = function(*(_from_words(w, dtype) for w, dtype in zip(words, dtypes, strict=True)))
        return [_to_words(np.asarray(output, r.dtype)) for output, r in zip(outputs, returned, strict=True)]

    shapes = [jax.ShapeDtypeStruct((*r.shape, 2), jnp.uint32) if _is_long(r.dtype) else r for r in returned]
    words = [jax.lax.bitcast_convert_type(v, jnp.uint32) if _is_long(v.dtype) else v for v in values]
    outputs = jax.pure_callback(on_host, shapes, *words, vmap_method=vmap_method)
    return [
        jax.lax.bitcast_convert_type(output, r.dtype) if _is_long(r.dtype) else output
        for output, r in zip(outputs, returned, strict=True)
    ]


def _is_long(dtype: Any) -> bool:
    return np.dtype(dtype).itemsize == 8


def _from_words(words: Any, dtype: Any) -> np.ndarray:
    array = np.asarray(words)
    return np.ascontiguousarray(array).view(dtype)[..., 0] if _is_long(dtype) else array


def _to_words(array: np.ndarray) -> np.ndarray:
    return array[..., None].view(np.uint32) if _is_long(array.dtype) else array
