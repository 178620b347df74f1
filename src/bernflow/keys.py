"""Random keys from integer seeds or JAX keys.

Keys are derived on the host by NumPy, because JAX would compile its hash for every number of keys, and again inside
every function that splits a key.
"""

import math
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, UInt32

from bernflow.errors import ArgumentError

# The generator of XLA compiles five times faster than the default one of JAX and runs twice as fast.
GENERATOR = "rbg"
# The same generator with keys that are split without a hash.
QUICK = "unsafe_rbg"


def as_key(key: object) -> Key[Array, ""]:
    """Convert an integer seed, a `jax.random.key` or an old-style `jax.random.PRNGKey` to a key of `GENERATOR`.

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
            # Seeds wrap at 32 bits, so that they are the same in single and double precision.
            return _convert(np.array([0, operator.index(key) % 2**32], np.uint32))  # type: ignore[arg-type]
        except TypeError:
            pass
    raise ArgumentError(f"key={key!r} is not a random key: expected an integer seed or one jax.random.key(seed).")


def as_seed(key: Key[Array, ""]) -> int | list[int]:
    """Return the integer seed of a key of `as_key`, or its data if it was made otherwise.

    Example:
        >>> as_seed(as_key(7))
        7
    """
    high, low, *_ = (int(part) for part in np.asarray(jax.random.key_data(key)))
    return low if high == 0 else [high, low]


def portable(key: Key[Array, "..."]) -> Key[Array, "..."]:
    """Return a key of JAX's default generator, for functions that need one (`jax.random.poisson`)."""
    return jax.random.wrap_key_data(jax.random.key_data(key)[..., :2], impl="threefry2x32")


def quick(key: Key[Array, ""]) -> Key[Array, ""]:
    """Return a key that splits without a hash, which is slow to compile; for uses that need no high quality.

    Example:
        >>> jax.random.key_impl(quick(as_key(1)))
        'unsafe_rbg'
    """
    return jax.random.wrap_key_data(jnp.resize(jax.random.key_data(key), (4,)), impl=QUICK)


def nth(key: Key[Array, ""], number: int) -> Key[Array, ""]:
    """Derive a key from a key and a number, outside compiled code.

    Example:
        >>> nth(as_key(1), 0) == nth(as_key(1), 1)
        Array(False, dtype=bool)
    """
    return _wrap(key, _seeds(key, number), ())


def spawn(key: Key[Array, ""], num: int) -> list[Key[Array, ""]]:
    """Derive several keys from a key, outside compiled code.

    Example:
        >>> first, second = spawn(as_key(1), 2)
    """
    return [nth(key, number) for number in range(num)]


def grid(key: Key[Array, ""], shape: tuple[int, ...]) -> Key[Array, "..."]:
    """Derive an array of keys from a key, outside compiled code.

    Example:
        >>> grid(as_key(1), (2, 3)).shape
        (2, 3)
    """
    return _wrap(key, _seeds(key), shape)


def generator(key: Key[Array, ""]) -> np.random.Generator:
    """Return a NumPy generator seeded by a key, for random numbers on the host.

    Example:
        >>> bool(generator(as_key(1)).random() == generator(as_key(1)).random())
        True
    """
    return np.random.default_rng(_seeds(key, -1))


def _seeds(key: Key[Array, ""], *path: int) -> np.random.SeedSequence:
    # Numbers in a spawn key must not be negative.
    return np.random.SeedSequence(np.asarray(jax.random.key_data(key)).tolist(), spawn_key=[n + 1 for n in path])


def _wrap(key: Key[Array, ""], seeds: np.random.SeedSequence, shape: tuple[int, ...]) -> Key[Array, "..."]:
    """Make keys of the same generator as `key`."""
    width = jax.random.key_data(key).shape[-1]
    words = seeds.generate_state(math.prod(shape) * width).reshape(*shape, width)
    return _on_device(words, jax.random.key_impl(key))


def _convert(data: UInt32[Array | np.ndarray, " n"]) -> Key[Array, ""]:
    """Repeat the two words of a default key, as JAX does to seed this generator."""
    return _on_device(np.resize(np.asarray(data), (4,)), GENERATOR)


def _on_device(words: np.ndarray, impl: Any) -> Key[Array, "..."]:
    with jax.transfer_guard("allow"):  # intended transfer, even if the user disallows others
        return jax.random.wrap_key_data(words, impl=impl)  # type: ignore[arg-type]
