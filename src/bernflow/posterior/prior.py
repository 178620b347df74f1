"""Draws from the prior of a model, and new observations given them."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Key

from bernflow.compiled import filter_jit
from bernflow.errors import ModelError
from bernflow.keys import as_key, grid, nth
from bernflow.models.base import AbstractModel, Theta
from bernflow.models.inputs import user_code
from bernflow.posterior import sampling
from bernflow.posterior.sampling import BLOCK
from bernflow.precision import use_precision

Draws = dict[str, np.ndarray]
# Makes the random numbers differ from those of posterior draws with the same key.
STREAM = 0x7072696F


def prior_draws(model: AbstractModel, precision: str, num: int, key: Any, deterministic: bool = True) -> Draws:
    """Draw the parameters from the prior, (num, *shape) each, with derived quantities."""
    with use_precision(precision):
        keys = grid(nth(as_key(key), STREAM), (-(-num // BLOCK) * BLOCK,))
        blocks = [_draw(model, keys[start : start + BLOCK], deterministic) for start in range(0, len(keys), BLOCK)]
        if blocks[0] is None:
            raise ModelError(
                f"The prior of this {type(model).__name__} cannot be sampled: a prior is improper, or the model does "
                "not separate prior and likelihood (a Stan program, a log density). Give every parameter a proper "
                "prior in a bf.Model, a NumPyro or a PyMC model."
            )
        return {name: np.concatenate([np.asarray(b[name]) for b in blocks])[:num] for name in blocks[0]}  # type: ignore[index]


def predictions(
    model: AbstractModel, precision: str, theta: Draws, key: Any, args: tuple, kwargs: dict[str, Any]
) -> Draws:
    """Draw new observations, one set per draw of the parameters."""
    with use_precision(precision):
        return sampling.predict(model, nth(as_key(key), STREAM), theta, *model.prepare(args, kwargs))


def groups(model: AbstractModel, precision: str, num: int, key: Any) -> dict[str, Draws]:
    """Return the groups prior and prior_predictive of ArviZ."""
    theta = prior_draws(model, precision, num, key)
    sites = {site.name: theta[site.name] for site in model.sites}
    return {"prior": theta, "prior_predictive": predictions(model, precision, sites, key, (), {})}


@filter_jit
def _draw(model: AbstractModel, keys: Key[Array, " s"], deterministic: bool) -> Theta | None:
    with user_code("The model, run to draw from its prior,"):
        if jax.eval_shape(model.sample_prior, keys[0]) is None:
            return None
        theta = jax.vmap(model.sample_prior)(keys)
        names = [site.name for site in model.sites]
        sites = {name: theta[name] for name in names}  # type: ignore[index]
        return {**(jax.vmap(model.deterministic)(sites) if deterministic else {}), **sites}
