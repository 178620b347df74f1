"""Multi-path Pathfinder of blackjax: a mixture of normals found by L-BFGS, resampled by importance."""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from benchmarks.accuracy.density import Density
from benchmarks.accuracy.methods.base import Drawn, Fitted, Method, Settings
from benchmarks.targets import Benchmark
from bernflow import BernflowError

# What blackjax says of its Pareto shape: reliable below the first, perhaps unreliable above the second.
RELIABLE, UNRELIABLE = 0.5, 0.7


class Normals(NamedTuple):
    """One normal per path: mean and lower triangular factor of the covariance."""

    mean: Float[Array, "k p"]
    factor: Float[Array, "k p p"]


def fit(benchmark: Benchmark, key: int, settings: Settings) -> Fitted:
    """Run Pathfinder from several points with blackjax's defaults."""
    import blackjax
    from blackjax.vi.multipathfinder import psis_weights

    with jax.enable_x64(True):
        started = time.perf_counter()
        density = Density(benchmark)
        start_key, path_key, resample_key = jax.random.split(jax.random.key(key), 3)
        points = density.starting_points(start_key, settings["num_paths"])
        algorithm = blackjax.multipathfinder(density.log_density)
        state, _ = jax.jit(algorithm.init)(path_key, points)
        state = _usable(state)
        _, shape = psis_weights(state)
        jax.block_until_ready(algorithm.sample(resample_key, state, 1000))
        seconds = time.perf_counter() - started
        normals = _normals(state.path_states)

    def draw(num: int, seed: int) -> Drawn:
        with jax.enable_x64(True):
            mix_key, pool_key, resample_key = jax.random.split(jax.random.key(seed), 3)
            x, log_q = _draw_mixture(normals, mix_key, num)
            pool = _refill(state, pool_key, density, -(-num // len(normals.mean)))
            if not settings["resampled"]:
                return Drawn(density.constrain(x), density.evaluate(x) - np.asarray(log_q))
            weights = np.exp(np.asarray(psis_weights(pool)[0]))
            sites = density.constrain(algorithm.sample(resample_key, pool, num))
            return Drawn(sites, None, weights.sum() ** 2 / np.sum(weights**2))

    found = float(shape)
    verdict = "good" if found < RELIABLE else "usable" if found <= UNRELIABLE else "poor"
    details = {"pareto_k": found, "num_paths": len(normals.mean)}
    return Fitted(draw, seconds, settings["num_paths"] * settings["maxiter"], verdict, details)


def _usable(state: Any) -> Any:
    """Keep the paths whose normals exist: a path that left the support has draws that are not numbers."""
    good = np.flatnonzero(np.isfinite(np.asarray(state.samples)).all(axis=(1, 2)) & np.isfinite(state.logq).all(axis=1))
    if not good.size:
        raise BernflowError("No path of Pathfinder has found a normal distribution: every covariance is degenerate.")
    return jax.tree.map(lambda leaf: leaf[good], state)


def _normals(paths: Any) -> Normals:
    """Return mean and factor of each path's normal, the ones that `blackjax.optimizers.lbfgs.bfgs_sample` draws."""
    from blackjax.optimizers.lbfgs import lbfgs_inverse_hessian_formula_1

    def one(path: Any) -> Normals:
        covariance = lbfgs_inverse_hessian_formula_1(path.alpha, path.beta, path.gamma)
        # blackjax minimizes the negative log density, but its history keeps the gradient of the log density.
        return Normals(path.position + covariance @ path.grad_position, jnp.linalg.cholesky(covariance))

    return jax.vmap(one)(paths)


@jax.jit
def _log_prob(normals: Normals, x: Float[Array, "num p"]) -> Float[Array, " num"]:
    """Evaluate the mixture of the paths, all of the same weight."""

    def component(mean: Array, factor: Array) -> Array:
        z = solve_triangular(factor, (x - mean).T, lower=True)
        log_det = jnp.sum(jnp.log(jnp.diagonal(factor)))
        return -0.5 * jnp.sum(z**2, axis=0) - log_det - 0.5 * x.shape[1] * jnp.log(2 * jnp.pi)

    return logsumexp(jax.vmap(component)(*normals), axis=0) - jnp.log(len(normals.mean))


def _draw_mixture(normals: Normals, key: Array, num: int) -> tuple[Array, Array]:
    which_key, noise_key = jax.random.split(key)
    which = jax.random.randint(which_key, (num,), 0, len(normals.mean))
    z = jax.random.normal(noise_key, (num, normals.mean.shape[1]))
    x = normals.mean[which] + jnp.einsum("npq,nq->np", normals.factor[which], z)
    return x, _log_prob(normals, x)


def _refill(state: Any, key: Array, density: Density, num: int) -> Any:
    """Draw anew from every path: the draws that chose the normals would flatter them."""
    from blackjax.vi.pathfinder import sample

    keys = jax.random.split(key, len(state.logq))
    samples, log_q = jax.vmap(lambda key, path: sample(key, path, num))(keys, state.path_states)
    log_p = density.evaluate(samples.reshape(-1, samples.shape[-1])).reshape(log_q.shape)
    return state._replace(samples=samples, logp=jnp.asarray(log_p), logq=log_q)


_PATHS = {"num_paths": 20, "maxiter": 30}
_RUN = (
    "blackjax's multi-path Pathfinder with its defaults (30 iterations, 200 draws per point of a path), 20 paths from "
    "uniform points of (-2, 2)^p. Its verdict is its Pareto shape: good below 0.5, usable up to 0.7. Gradients: "
    "iterations of all paths; line searches and the densities of its draws are not counted."
)

METHODS = (
    Method(
        "pathfinder-psis",
        "Pathfinder, resampled (blackjax)",
        fit,
        f"{_RUN} Its draws are resampled by PSIS from those of all paths, as Stan does it; they have no density.",
        settings={**_PATHS, "resampled": True},
        needs=("blackjax", "peers"),
    ),
    Method(
        "blackjax-pathfinder",
        "Pathfinder, mixture of paths (blackjax)",
        fit,
        f"{_RUN} All figures are those of the even mixture of the paths.",
        settings={**_PATHS, "resampled": False},
        needs=("blackjax", "peers"),
    ),
)
