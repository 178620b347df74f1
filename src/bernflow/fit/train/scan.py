"""Several training steps as one compiled function, or one step at a time where a loop would slow them down."""

from collections.abc import Callable
from typing import Any

import jax
from jaxtyping import PyTree

# Steps of a network between two looks from the host, at most.
MAX_WITH_NETWORK = 50


def network_steps_at_once() -> int:
    """Return how many steps of a network to compile into one function.

    XLA runs a convolution inside of a loop ten times slower on a CPU than outside of one (measured: 3x3 kernels on
    pictures of 32 to 128 pixels); a step of a network takes so long there that calling it from the host costs nothing.
    """
    return 1 if jax.default_backend() == "cpu" else MAX_WITH_NETWORK


def scan(step: Callable[[PyTree, Any], tuple[PyTree, Any]], carry: PyTree, inputs: PyTree) -> tuple[PyTree, Any]:
    """Do as `jax.lax.scan`, without a loop where there is one step only."""
    if jax.tree.leaves(inputs)[0].shape[0] > 1:
        return jax.lax.scan(step, carry, inputs)
    carry, output = step(carry, jax.tree.map(lambda leaf: leaf[0], inputs))
    return carry, jax.tree.map(lambda leaf: leaf[None], output)
