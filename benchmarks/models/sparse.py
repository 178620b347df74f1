"""Simulated sparse regressions with the regularized horseshoe prior of Piironen and Vehtari (2017)."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float

# The slab: Student-t with 4 degrees of freedom and scale 2.
SLAB_DF, SLAB_SCALE = 4.0, 2.0


def horseshoe(x: Float[Array, "n d"], y: Float[Array, " n"], tau_scale: float) -> None:
    """Linear regression with a regularized horseshoe prior, standardized coefficients."""
    tau = numpyro.sample("tau", dist.HalfCauchy(tau_scale))
    slab = numpyro.sample("slab", dist.InverseGamma(SLAB_DF / 2.0, SLAB_DF / 2.0 * SLAB_SCALE**2))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    with numpyro.plate("predictors", x.shape[1]):
        local = numpyro.sample("local", dist.HalfCauchy(1.0))
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    b = z * tau * local * jnp.sqrt(slab / (slab + (tau * local) ** 2))
    numpyro.sample("y", dist.Normal(x @ b, sigma), obs=y)


def horseshoe_data(num_predictors: int, num_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Return predictors, five of which matter, the outcome, and the prior scale of tau for five."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_rows, num_predictors))
    b = np.zeros(num_predictors)
    b[:5] = 2.0, -1.5, 1.0, 0.7, -0.4
    tau_scale = 5.0 / (num_predictors - 5.0) / np.sqrt(num_rows)
    return x, x @ b + rng.normal(size=num_rows), float(tau_scale)
