"""The log likelihood of one outcome given its linear predictors, and its Fisher information."""

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import Distribution

# Outcomes whose likelihood has parameters besides the linear predictor: log sigma, and K-1 cutpoints.
GAUSSIAN, ORDINAL, CATEGORICAL = "gaussian", "ordinal", "categorical"


def num_predictors(outcome: str, num_classes: int) -> int:
    """Return the number of linear predictors per row."""
    return num_classes - 1 if outcome == CATEGORICAL else 1


def num_extra(outcome: str, num_classes: int) -> int:
    """Return the number of unconstrained parameters besides coefficients."""
    return {GAUSSIAN: 1, ORDINAL: num_classes - 1}.get(outcome, 0)


def distribution(outcome: str, eta: Array, extra: Array) -> Distribution:
    """Return the distribution of rows.

    Args:
        outcome: kind of the outcome.
        eta: linear predictors (..., d).
        extra: log sigma (1,), or the first cutpoint and the logs of the distances of the others (K-1,).
    """
    if outcome == "bernoulli":
        return dist.Bernoulli(logits=eta[..., 0])
    if outcome == GAUSSIAN:
        return dist.Normal(eta[..., 0], jnp.exp(extra[..., 0]))
    if outcome == "poisson":
        return dist.Poisson(jnp.exp(eta[..., 0]))
    if outcome == ORDINAL:
        return dist.OrderedLogistic(eta[..., 0], ordered(extra))
    return dist.Categorical(logits=jnp.concatenate([jnp.zeros_like(eta[..., :1]), eta], -1))


def ordered(free: Array) -> Array:
    """Return increasing values from the first one and the logs of the distances."""
    return jnp.cumsum(jnp.concatenate([free[..., :1], jnp.exp(free[..., 1:])], -1), -1)


def free_of_order(values: Array) -> Array:
    """Return the first of increasing values and the logs of the distances."""
    return jnp.concatenate([values[..., :1], jnp.log(jnp.diff(values, axis=-1))], -1)


def log_prob(outcome: str, eta: Array, extra: Array, y: Array) -> Float[Array, "..."]:
    """Evaluate the log likelihood of rows, eta (..., d), extra (e,), y (...)."""
    if outcome == "bernoulli":
        return y * eta[..., 0] - jax.nn.softplus(eta[..., 0])
    fn = distribution(outcome, eta, extra)
    return fn.log_prob(y if outcome == GAUSSIAN else y.astype(jnp.int32))


def information(outcome: str, num_classes: int, eta: Array, extra: Array) -> Float[Array, "... u u"]:
    """Evaluate the Fisher information of a row about its predictors and the extra parameters."""
    if outcome == "bernoulli":
        p = jax.nn.sigmoid(eta)
        return (p * (1 - p))[..., None]
    if outcome == "poisson":
        return jnp.exp(eta)[..., None]
    if outcome == GAUSSIAN:
        precision = jnp.broadcast_to(jnp.exp(-2 * extra[0]), eta.shape[:-1])
        return jnp.stack([precision, jnp.full_like(precision, 2.0)], -1)[..., None] * jnp.eye(2, dtype=eta.dtype)
    flat = eta.reshape(-1, eta.shape[-1])

    def one(eta: Array) -> Array:
        both, split = jnp.concatenate([eta, extra]), eta.shape[0]

        def log_probs(both: Array) -> Array:
            classes = jnp.arange(num_classes)
            return jax.vmap(lambda k: log_prob(outcome, both[:split], both[split:], k))(classes)

        score = jax.jacfwd(log_probs)(both)
        return jnp.einsum("k,ka,kb->ab", jnp.exp(log_probs(both)), score, score)

    return jax.vmap(one)(flat).reshape(*eta.shape[:-1], flat.shape[1] + extra.shape[0], -1)
