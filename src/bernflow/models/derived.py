"""Derived quantities, computed from the parameters by a user-defined function."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from bernflow.errors import ModelError
from bernflow.models.base import Site, Theta
from bernflow.models.inputs import call, name_of, user_code
from bernflow.precision import float_dtype


def derive(function: Callable | None, theta: Theta | Any, *data: Any) -> Theta:
    """Evaluate derived quantities at theta; empty without a function."""
    if function is None:
        return {}
    return {name: jnp.asarray(value) for name, value in call(function, theta, *data).items()}


def check_derived(function: Any, sites: Sequence[Site], evaluate: Callable[[Theta], Theta], reserved: str = "") -> None:
    """Raise an error unless a function returns a dict of arrays with unused names.

    Args:
        function: the user's function, or None.
        sites: the parameters.
        evaluate: computes the quantities from the parameters by name.
        reserved: a name that is used besides those of the parameters.
    """
    if function is None:
        return
    if not callable(function):
        raise ModelError(
            f"derived is a {type(function).__name__}: expected a function of the parameters that returns a dict, such "
            'as `derived=lambda theta: {"ratio": theta["a"] / theta["b"]}`.'
        )
    theta: Any = {site.name: jax.ShapeDtypeStruct(site.shape, float_dtype()) for site in sites}
    with user_code(f"The function {name_of(function)!r} given as derived"):
        found = _returned(function, evaluate, theta)
    taken = sorted(set(found) & {*theta, reserved})
    if taken:
        raise ModelError(
            f"derived returned {', '.join(map(repr, taken))}, which the model already defines: expected unused names."
        )


def _returned(function: Callable, evaluate: Callable[[Theta], Theta], theta: Theta) -> Mapping[str, Any]:
    try:
        return jax.eval_shape(evaluate, theta)
    except AttributeError as error:
        if "items" not in str(error):
            raise
        raise ModelError(
            f"The function {name_of(function)!r} given as derived did not return a dict: expected quantities by name, "
            'such as {"ratio": theta["a"] / theta["b"]}.'
        ) from error
