"""Supports of parameters, and whether they depend on other parameters."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpyro.distributions import Distribution, MaskedDistribution, biject_to, constraints
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.distribution import Unit

from bernflow.compiled import jit
from bernflow.errors import ModelError
from bernflow.keys import QUICK
from bernflow.models.base import Site


def can_sample(draw: Callable[[Key[Array, ""]], Any]) -> bool:
    """Tell whether all priors can be sampled; improper ones cannot."""
    try:
        jax.eval_shape(lambda key: draw(key), _shape_of_a_key())
    except NotImplementedError:
        return False
    return True


@functools.cache
def _shape_of_a_key() -> jax.ShapeDtypeStruct:
    return jax.eval_shape(lambda: jax.random.key(0))  # creating a key would compile a function


def probe(function: Callable[[Key[Array, ""]], Any]) -> None:
    """Call a function with a traced key, such that all values that do not depend on the key are concrete.

    Under `vmap` only values that depend on the mapped key are traced, whereas `jit` would trace everything. So a
    support that contains tracers depends on parameters, and one that depends only on data is concrete.
    """

    def run(key: Key[Array, ""]) -> Key[Array, ""]:
        function(key)
        return key

    data = np.zeros((1, 4), np.uint32)  # NumPy compiles nothing
    jax.vmap(run)(jax.random.wrap_key_data(data, impl=QUICK))  # type: ignore[arg-type]


def traced_shapes(function: Callable[[Key[Array, ""]], dict[str, dict]]) -> dict[str, dict]:
    """Return the sites of an abstract run, in which only NumPy computes values.

    This takes a tenth of the time of `probe`, in which every JAX function is compiled separately. Values that depend
    only on data are also tracers, unless they were computed by NumPy.
    """
    sites: dict[str, dict] = {}

    def run(key: Key[Array, ""]) -> None:
        sites.update(function(key))

    jax.eval_shape(run, _shape_of_a_key())
    return sites


def describe(name: str, shape: tuple[int, ...], support: Constraint) -> Site:
    """Build the site of a parameter from a run under `probe`."""
    leaves = jax.tree.leaves(support)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        return Site(name, tuple(shape), None)
    # NumPy arrays adopt the precision of the computation.
    return Site(name, tuple(shape), jax.tree.map(lambda leaf: np.asarray(leaf) if _is_array(leaf) else leaf, support))


def start_value(key: Key[Array, ""], name: str, fn: Distribution, sample_shape: tuple[int, ...] = ()) -> Array:
    """Return a value inside the support, uniform on (-2, 2) on the unconstrained scale; improper priors are allowed.

    The value depends only on the name, because a random draw by JAX would be compiled for every shape. It is a tracer
    if the key is one.
    """
    check_continuous(name, fn.support)
    try:
        transform = biject_to(fn.support)
    except NotImplementedError as error:
        raise ModelError(
            f"The parameter {name!r} ({type(unwrap(fn)).__name__}) has the support {fn.support!r}, for which no map "
            "from R^n is known. Write the model with a parameter that has a supported constraint (real, positive, "
            "interval, simplex, ordered, Cholesky factor, covariance, ...) and transform it."
        ) from error
    shape = tuple(sample_shape) + tuple(transform.inverse_shape(fn.shape()))
    return transform(_tied(key, np.random.default_rng(list(name.encode())).uniform(-2.0, 2.0, shape)))


@jit
def _tied(key: Key[Array, ""], value: Float[Array | np.ndarray, "..."]) -> Float[Array, "..."]:
    """Make a value depend on a key; one jitted function, because separate operations are compiled separately."""
    return jnp.asarray(value) + jnp.any(jax.random.key_data(key) < 0)


def check_continuous(name: str, support: Constraint) -> None:
    """Raise an error for a discrete parameter."""
    if support.is_discrete:
        raise ModelError(
            f"The parameter {name!r} is discrete (support {support!r}): expected continuous parameters only. "
            "Marginalize it out (for instance with numpyro.distributions.MixtureSameFamily), or observe it."
        )


def check_observed(what: str, fn: Distribution, value: Any) -> None:
    """Raise an error for data outside the support of their distribution.

    NumPyro's densities are often finite there (an exponential density grows for negative values), so the fit would
    succeed and be wrong. The boundary of an interval is accepted, because the density there is mostly well defined, and
    so are undecidable cases: bounds that depend on parameters, masked data, angles beyond pi.
    """
    if isinstance(fn, MaskedDistribution) or not isinstance(fn, Distribution):
        return
    outside = _outside(fn.support, value)
    if outside is None or isinstance(outside, jax.core.Tracer) or not np.any(outside):
        return
    outside = np.asarray(outside)
    index = tuple(int(i) for i in np.argwhere(outside)[0])
    raise ModelError(
        f"{what} has {int(outside.sum())} values outside the support {fn.support!r} of its distribution "
        f"({type(unwrap(fn)).__name__}), the first at index {index} ({np.asarray(value)[index]}). Correct the data, "
        "or choose a distribution that allows them."
    )


def _outside(support: Constraint, value: Any) -> Any:
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    if support.is_discrete:
        return ~jnp.asarray(support(value))
    if isinstance(support, type(constraints.circular)):
        return None
    lower, upper = getattr(support, "lower_bound", None), getattr(support, "upper_bound", None)
    below = None if lower is None else value < lower
    above = None if upper is None else value > upper
    if below is None or above is None:
        return above if below is None else below
    return below | above


def unwrap(fn: Distribution) -> Distribution:
    """Remove the wrappers that plates, masks and `expand` add to a distribution."""
    while hasattr(fn, "base_dist"):
        fn = fn.base_dist
    return fn


def is_factor(fn: Any) -> bool:
    """Tell whether a site comes from `numpyro.factor`, a term of the density without a value."""
    return isinstance(unwrap(fn), Unit)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)
