"""Random keys: an integer seed or a JAX key, never a hidden default."""

import operator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from bernflow.errors import ArgumentError


def as_key(key: object) -> Key[Array, ""]:
    """Turn an integer seed, a `jax.random.key` or an old-style `jax.random.PRNGKey` into a typed key.

    Example:
        >>> as_key(1) == jax.random.key(1)
        Array(True, dtype=bool)
    """
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ():
        return key
    if isinstance(key, jax.Array) and key.dtype == jnp.uint32 and key.shape == (2,):
        return jax.random.wrap_key_data(key)
    if not isinstance(key, bool | jax.Array):
        try:
            # Seeds wrap at 32 bits, so that they mean the same in single and in double precision.
            return jax.random.key(operator.index(key) % 2**32)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise ArgumentError(f"key={key!r} is not a random key: expected an integer seed or one jax.random.key(seed).")
