"""Random keys: an integer seed or a JAX key, never a hidden default."""

import operator

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, UInt32

from bernflow.errors import ArgumentError

# XLA's own generator compiles five times faster than JAX's default one and runs twice as fast.
GENERATOR = "rbg"


def as_key(key: object) -> Key[Array, ""]:
    """Turn an integer seed, a `jax.random.key` or an old-style `jax.random.PRNGKey` into a key of our generator.

    Example:
        >>> as_key(1) == as_key(jax.random.key(1))
        Array(True, dtype=bool)
    """
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ():
        return _convert(jax.random.key_data(key))
    if isinstance(key, jax.Array) and key.dtype == jnp.uint32 and key.shape == (2,):
        return _convert(key)
    if not isinstance(key, bool | jax.Array):
        try:
            # Seeds wrap at 32 bits, so that they mean the same in single and in double precision.
            return jax.random.key(operator.index(key) % 2**32, impl=GENERATOR)  # type: ignore[arg-type]
        except TypeError:
            pass
    raise ArgumentError(f"key={key!r} is not a random key: expected an integer seed or one jax.random.key(seed).")


def portable(key: Key[Array, "..."]) -> Key[Array, "..."]:
    """Return a key of JAX's default generator, for functions that take no other (`jax.random.poisson`)."""
    return jax.random.wrap_key_data(jax.random.key_data(key)[..., :2], impl="threefry2x32")


def _convert(data: UInt32[Array, " n"]) -> Key[Array, ""]:
    """Repeat the two words of a default key, as JAX itself does when it seeds this generator."""
    return jax.random.wrap_key_data(jnp.resize(data, (4,)), impl=GENERATOR)
