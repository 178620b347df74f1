"""How much work a density is, before it is compiled."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from bernflow.background import Effort
from bernflow.errors import BernflowError
from bernflow.posterior.sampling import MANY_ROWS, num_rows
from bernflow.target import Target

# With fewer numbers on the way to one density, thousands of densities take milliseconds, however they are compiled.
SMALL = 10_000
# What is more work than what comes out of it: the numbers that go in count as well.
PRODUCTS = ("dot_general", "conv_general_dilated")
# What takes as many operations as the cube of the rows of a matrix, if they are more than this.
DECOMPOSITIONS = ("cholesky", "triangular_solve", "eigh", "eig", "lu", "qr", "geqrf", "svd", "schur")
LARGE_MATRIX = 64
# What may run for long although little goes in and comes out.
UNKNOWN = ("scan", "while", "callback", "ffi_call")


def effort_for_start(target: Target) -> Effort:
    """Choose how hard to compile the search for a start, which evaluates a density some thousand times."""
    if num_rows(target) > MANY_ROWS:
        return Effort.WIDE
    return Effort.LEAST if work(target) < SMALL else Effort.LIGHT


def work(target: Target) -> float:
    """Count the numbers that are computed on the way to one density; inf where there are loops, or no density.

    Example:
        >>> import bernflow as bf, jax.numpy as jnp
        >>> work(Target(bf.from_log_density(lambda x: -jnp.sum(x**2), init=jnp.zeros(3)))) < 100
        True
    """
    try:
        jaxpr = jax.make_jaxpr(target.log_density)(np.zeros(target.dim)).jaxpr
    except BernflowError:
        raise
    except Exception:  # of JAX: the checks before a fit say what is wrong
        return math.inf
    return sum(map(_size, equations(jaxpr)))


def has_large_matrices(target: Target) -> bool:
    """Tell whether the density factors large matrices, as Gaussian processes do: its Hessian is expensive then.

    Example:
        >>> import bernflow as bf, jax.numpy as jnp
        >>> has_large_matrices(Target(bf.from_log_density(lambda x: -jnp.sum(x**2), init=jnp.zeros(3))))
        False
    """
    jaxpr = jax.make_jaxpr(target.log_density)(np.zeros(target.dim)).jaxpr
    return any(
        equation.primitive.name in DECOMPOSITIONS and max(equation.invars[0].aval.shape) > LARGE_MATRIX
        for equation in equations(jaxpr)
    )


def equations(jaxpr: Any) -> Iterator[Any]:
    """Yield all equations of a function, those of the functions inside of it included, each once."""
    for equation in jaxpr.eqns:
        yield equation
        for part in jax.tree.leaves(tuple(equation.params.values()), is_leaf=lambda leaf: hasattr(leaf, "eqns")):
            if hasattr(part, "eqns"):
                yield from equations(part)


def _size(equation: Any) -> float:
    if any(name in equation.primitive.name for name in UNKNOWN):
        return math.inf
    counted = [*equation.outvars, *(equation.invars if equation.primitive.name in PRODUCTS else ())]
    return sum(math.prod(variable.aval.shape) for variable in counted)
