"""Checks of priors, and their order by dependence."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
from jaxtyping import Array, Key
from numpyro.distributions import Distribution

from bernflow.errors import ModelError
from bernflow.models.base import Site, Theta
from bernflow.models.inputs import user_code
from bernflow.models.supports import describe, probe, start_value


def check_prior(prior: Any, *, reserved: str) -> dict[str, Any]:
    """Return the priors; raise an error unless they are a dict of distributions and functions.

    Args:
        prior: the user's argument.
        reserved: the name of the observed data, which no parameter may have.
    """
    if not isinstance(prior, Mapping) or not prior:
        raise ModelError(
            f"Model: prior is {prior!r}: expected a dict with at least one distribution, such as "
            '{"mu": dist.Normal(0, 1)}.'
        )
    for name, fn in prior.items():
        if not isinstance(name, str):
            raise ModelError(f"Model: prior has the name {name!r} of type {type(name).__name__}: expected a string.")
        if name == reserved:
            raise ModelError(f"Model: prior has a parameter {name!r}, the name of the observed data. Rename it.")
        if not isinstance(fn, Distribution) and (not callable(fn) or isinstance(fn, type)):
            raise ModelError(
                f"Model: prior[{name!r}] is {fn!r}: expected a NumPyro distribution or a function theta -> "
                "distribution."
            )
    return dict(prior)


def resolve(prior: dict[str, Any]) -> tuple[Site, ...]:
    """Order the parameters so that each follows those on which its prior depends.

    A prior function that accesses a parameter without a value raises KeyError and is tried again later.
    """
    sites: list[Site] = []

    def visit(key: Key[Array, ""]) -> None:
        theta: Theta = {}
        pending = dict(prior)
        while pending:
            num_before = len(pending)
            missing: dict[str, KeyError] = {}
            for name in list(pending):
                fn = _evaluate(name, pending[name], theta)
                if isinstance(fn, KeyError):
                    missing[name] = fn
                    continue
                theta[name] = start_value(jax.random.fold_in(key, len(sites)), name, fn)
                sites.append(describe(name, theta[name].shape, fn.support))
                del pending[name]
            if len(pending) == num_before:
                _raise_unresolved(missing, prior)

    probe(visit)
    return tuple(sites)


def _evaluate(name: str, fn: Distribution | Callable, theta: Theta) -> Distribution | KeyError:
    if isinstance(fn, Distribution):
        return fn
    with user_code(f"The prior of {name!r}"):
        try:
            out = fn(dict(theta))
        except KeyError as error:
            return error
    if not isinstance(out, Distribution):
        raise ModelError(f"The prior of {name!r} returned a {type(out).__name__}: expected a NumPyro distribution.")
    return out


def _asks_for(error: KeyError) -> Any:
    return error.args[0] if error.args else None


def _raise_unresolved(missing: dict[str, KeyError], prior: dict[str, Any]) -> None:
    for name, error in missing.items():
        if _asks_for(error) not in missing:
            raise ModelError(
                f"The prior of {name!r} uses {_asks_for(error)!r}, which is not a parameter that it can depend on. The "
                f"model defines {', '.join(map(repr, prior))}."
            ) from error
    chain = ", ".join(f"{name!r} needs {_asks_for(error)!r}" for name, error in missing.items())
    raise ModelError(f"The priors depend on each other in a circle: {chain}. Give one of them a prior of its own.")
