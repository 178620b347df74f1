"""Densities of awkward shape with known normalizing constant and exact draws; as NumPyro models without data.

Every one integrates to one over its parameters, so that its log evidence is zero, unless a constant is given.
"""

from functools import lru_cache

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Float
from scipy import stats
from scipy.special import log_ndtr
from scipy.stats import ortho_group

FUNNEL_SD = 3.0
RING_RADIUS, RING_SD = 4.0, 0.5
CONDITION = 1e6
DEGREES_OF_FREEDOM = 3.0

Draws = dict[str, Float[np.ndarray, "num ..."]]


def funnel(dim: int) -> None:
    """Neal's funnel: v ~ N(0, 3) sets the scale exp(v / 2) of all others."""
    v = numpyro.sample("v", dist.Normal(0.0, FUNNEL_SD))
    numpyro.sample("x", dist.Normal(0.0, jnp.exp(v / 2)).expand([dim - 1]).to_event(1))


def funnel_draws(dim: int, seed: int, num: int) -> Draws:
    """Draw from Neal's funnel."""
    rng = np.random.default_rng(seed)
    v = FUNNEL_SD * rng.normal(size=num)
    return {"v": v, "x": np.exp(v / 2)[:, None] * rng.normal(size=(num, dim - 1))}


def banana() -> None:
    """A parabola-shaped ridge: a is wide, b follows (a^2 - 1) with a tenth of its spread."""
    a = numpyro.sample("a", dist.Normal(0.0, 1.0))
    numpyro.sample("b", dist.Normal(2.0 * (a**2 - 1.0), 0.3))


def banana_draws(seed: int, num: int) -> Draws:
    """Draw from the banana."""
    rng = np.random.default_rng(seed)
    a = rng.normal(size=num)
    return {"a": a, "b": 2.0 * (a**2 - 1.0) + 0.3 * rng.normal(size=num)}


def ring() -> None:
    """A ring around an empty middle: |x| is normal around the radius."""
    x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real_vector, (), (2,)))
    numpyro.factor("ring", -0.5 * ((jnp.sqrt(jnp.sum(x**2) + 1e-12) - RING_RADIUS) / RING_SD) ** 2)


def ring_log_evidence() -> float:
    """Integrate the ring: 2 pi int_0^inf r exp(-(r - R)^2 / 2 s^2) dr."""
    ratio = RING_RADIUS / RING_SD
    tail = RING_SD**2 * np.exp(-0.5 * ratio**2)
    bulk = RING_RADIUS * RING_SD * np.sqrt(2 * np.pi) * np.exp(log_ndtr(ratio))
    return float(np.log(2 * np.pi) + np.log(tail + bulk))


def ring_draws(seed: int, num: int) -> Draws:
    """Draw from the ring by rejection: the radius has density r exp(-(r - R)^2 / 2 s^2)."""
    rng = np.random.default_rng(seed)
    radii = np.empty(0)
    highest = RING_RADIUS + 8.0 * RING_SD
    while len(radii) < num:
        r = RING_RADIUS + RING_SD * rng.normal(size=2 * num)
        radii = np.append(radii, r[(r > 0) & (rng.uniform(size=r.size) * highest < r)])
    angle = rng.uniform(0, 2 * np.pi, num)
    return {"x": radii[:num, None] * np.stack([np.cos(angle), np.sin(angle)], -1)}


@lru_cache
def correlated_factor(dim: int) -> np.ndarray:
    """Return the Cholesky factor of a covariance of condition number 10^6 in random directions."""
    rotation = ortho_group.rvs(dim, random_state=np.random.default_rng(7))
    return np.linalg.cholesky((rotation * np.geomspace(1.0 / CONDITION, 1.0, dim)) @ rotation.T)


def correlated(dim: int) -> None:
    """A Gaussian whose widest direction is a thousand times its narrowest."""
    factor = jnp.asarray(correlated_factor(dim))
    numpyro.sample("x", dist.MultivariateNormal(jnp.zeros(dim), scale_tril=factor))


def correlated_draws(dim: int, seed: int, num: int) -> Draws:
    """Draw from the correlated Gaussian."""
    return {"x": np.random.default_rng(seed).normal(size=(num, dim)) @ correlated_factor(dim).T}


def student(dim: int) -> None:
    """Independent Student-t variates: heavy tails along every axis."""
    numpyro.sample("x", dist.StudentT(DEGREES_OF_FREEDOM, 0.0, 1.0).expand([dim]).to_event(1))


def student_draws(dim: int, seed: int, num: int) -> Draws:
    """Draw independent Student-t variates."""
    return {"x": np.random.default_rng(seed).standard_t(DEGREES_OF_FREEDOM, size=(num, dim))}


def multivariate_student(dim: int) -> None:
    """A multivariate Student-t: all dimensions are far out together."""
    numpyro.sample("x", dist.MultivariateStudentT(DEGREES_OF_FREEDOM, jnp.zeros(dim), jnp.eye(dim)))


def multivariate_student_draws(dim: int, seed: int, num: int) -> Draws:
    """Draw from the multivariate Student-t."""
    rng = np.random.default_rng(seed)
    scale = np.sqrt(DEGREES_OF_FREEDOM / rng.chisquare(DEGREES_OF_FREEDOM, size=(num, 1)))
    return {"x": scale * rng.normal(size=(num, dim))}


def mode_centers(num_modes: int, dim: int) -> Float[np.ndarray, "k p"]:
    """Place modes: opposite corners for two; a circle in two dimensions, the corners of a cube in more, for eight."""
    if num_modes == 2:
        return np.stack([np.full(dim, -1.0), np.full(dim, 1.0)]) * (6.0 / np.sqrt(dim))
    if dim == 2:
        angle = np.arange(num_modes) * 2 * np.pi / num_modes
        return 10.0 * np.stack([np.cos(angle), np.sin(angle)], -1)
    corners = np.array(np.meshgrid(*[[-5.0, 5.0]] * 3)).reshape(3, -1).T
    return np.pad(corners, ((0, 0), (0, dim - 3)))


def mode_weights(num_modes: int) -> Float[np.ndarray, " k"]:
    """Return unequal weights: the largest mode holds twice the mass of the smallest."""
    weights = np.linspace(1.0, 2.0, num_modes)
    return weights / weights.sum()


def modes(num_modes: int, dim: int) -> None:
    """Unit Gaussians far apart."""
    centers, weights = mode_centers(num_modes, dim), mode_weights(num_modes)
    parts = dist.MultivariateNormal(jnp.asarray(centers), jnp.eye(dim))
    numpyro.sample("x", dist.MixtureSameFamily(dist.Categorical(jnp.asarray(weights)), parts))


def modes_draws(num_modes: int, dim: int, seed: int, num: int) -> Draws:
    """Draw from the separate modes."""
    rng = np.random.default_rng(seed)
    chosen = rng.choice(num_modes, size=num, p=mode_weights(num_modes))
    return {"x": mode_centers(num_modes, dim)[chosen] + rng.normal(size=(num, dim))}


# Parameters of the boundary target: two Beta variates and a Dirichlet vector, all with mass against the boundary.
BETA_LOW, BETA_HIGH = (0.5, 30.0), (40.0, 0.6)
CORNER = (0.4, 0.5, 3.0, 8.0)


def boundary() -> None:
    """Probabilities near 0 and near 1, and a simplex vector in its corners."""
    numpyro.sample("low", dist.Beta(*BETA_LOW))
    numpyro.sample("high", dist.Beta(*BETA_HIGH))
    numpyro.sample("shares", dist.Dirichlet(jnp.asarray(CORNER)))


def boundary_draws(seed: int, num: int) -> Draws:
    """Draw from the boundary target."""
    rng = np.random.default_rng(seed)
    tiny = np.finfo(np.float64).tiny
    return {
        "low": np.maximum(rng.beta(*BETA_LOW, size=num), tiny),
        "high": rng.beta(*BETA_HIGH, size=num),
        "shares": stats.dirichlet(CORNER).rvs(num, random_state=rng),
    }
