"""Compiled functions of a posterior: draws, densities and predictions in blocks of one fixed shape.

Every computation runs on `BLOCK` points at a time. So there is one compilation for any number of draws, memory is
bounded, and draws(100, key) are the first 100 of draws(4000, key).
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Key

from bernflow import target
from bernflow.background import Effort, background_jit
from bernflow.compiled import filter_jit
from bernflow.diagnostics.importance import psis
from bernflow.flows.base import AbstractDistribution, AbstractFlow, inlined
from bernflow.flows.factors import is_dense
from bernflow.keys import as_key, generator, nth, portable
from bernflow.models.base import AbstractModel, Theta, num_rows
from bernflow.models.inputs import user_code
from bernflow.placement import replicated
from bernflow.target import AbstractLayout

BLOCK = 1000
# In high dimensions a block has at most this many coordinates in total, but at least MIN_BLOCK points.
WIDE_NUMBERS, MIN_BLOCK = 500_000, 8
# With more rows of data than this, a CPU evaluates densities in smaller blocks, because padding would be expensive.
MANY_ROWS = 4096
SMALL_BLOCK = 48
# Rows of data times draws that are evaluated at once. A CPU is four times faster if they fit into its cache; an
# accelerator needs large batches.
ROWS_TIMES_DRAWS_ON_CPU, ROWS_TIMES_DRAWS_ON_ACCELERATOR = 2**16, 2**25
# Up to so many dimensions, the density of a flow is compiled as fast as possible.
FEW_DIM = 20
# Proposals per weighted draw: with equal weights every proposal is used at most once.
OVERSAMPLING = 4


@background_jit(Effort.LIGHT)
def noise_block(flow: AbstractFlow, key: Key[Array, ""]) -> Float[Array, "s p"]:
    """Draw one block of base noise."""
    return flow.sample_base(key, block_of(flow.dim))


@background_jit(Effort.LIGHT)
def push_block(flow: AbstractFlow, z: Float[Array, "s p"], rest: Float[Array, "s p"]) -> tuple[Array, Array]:
    """Map one block of noise z to parameters; return log |dx/dz| - log f(rest), which is -log q for rest = z."""
    with inlined(flow):
        x, log_det = jax.vmap(flow.transform_and_log_det)(z)
    return x, log_det - jax.vmap(flow.base_log_prob)(rest)


@filter_jit
def _sample_block(distribution: AbstractDistribution, key: Key[Array, ""]) -> tuple[Array, Array]:
    return distribution.sample_and_log_prob(key, block_of(distribution.dim))


@filter_jit
def _constrain_block(
    layout: AbstractLayout, model: AbstractModel | None, x: Float[Array, "s p"], only: tuple[str, ...] | None
) -> Theta:
    def one(x: Float[Array, " p"]) -> Theta:
        theta, _ = layout.constrain(x)
        if model is None:
            return theta
        with user_code("The model, run for its derived quantities,"):
            derived = model.deterministic(theta)
        # Sites last, so that a derived quantity never replaces a parameter of the same name.
        return {**{name: v for name, v in derived.items() if only is None or name in only}, **theta}

    return jax.vmap(one)(x)


@background_jit(Effort.LIGHT)
def log_density_block(layout: AbstractLayout, model: AbstractModel, x: Float[Array, "s p"]) -> Float[Array, " s"]:
    """Evaluate the log density at one block of points."""
    at_once = draws_at_once(num_rows(model), len(x))
    return replicated(jax.lax.map(lambda x: target.log_density(layout, model, x), x, batch_size=at_once))


@filter_jit
def _log_prob_block(distribution: AbstractDistribution, layout: AbstractLayout, theta: Theta) -> Float[Array, " s"]:
    def one(theta: Theta) -> tuple[Array, Array, Array]:
        x, log_jacobian = layout.unconstrain(theta)
        inside = layout.contains(theta) & jnp.all(jnp.isfinite(x)) & jnp.isfinite(log_jacobian)
        # Replace points outside the support, because the inverse of the flow may not converge at NaN.
        return jnp.where(inside, x, 0.0), log_jacobian, inside

    x, log_jacobian, inside = jax.vmap(one)(theta)
    return jnp.where(inside, distribution.log_prob(x) - log_jacobian, -jnp.inf)


@filter_jit
def _predict_block(
    model: AbstractModel, key: Key[Array, ""], block: Array, theta: Theta, args: tuple, kwargs: dict[str, Any]
) -> Theta:
    keys = portable(jax.random.split(jax.random.fold_in(key, block), BLOCK))
    return jax.vmap(lambda k, t: model.predict(k, t, *args, **kwargs))(keys, theta)


@filter_jit
def _log_prior_block(model: AbstractModel, theta: Theta) -> Theta:
    return jax.vmap(model.log_prior)(theta)


@filter_jit
def _log_likelihood_block(model: AbstractModel, theta: Theta) -> Theta:
    return jax.vmap(model.log_likelihood)(theta)


def prepare(flow: AbstractFlow, layout: AbstractLayout, model: AbstractModel) -> None:
    """Start compiling the functions that draw from flows of these shapes and evaluate the density."""
    block = np.zeros((block_of(flow.dim), flow.dim))
    log_density_block.with_effort(_effort(model)).prepare(layout, model, block[: density_block(model, flow.dim)])
    push_block.prepare(flow, block, block)
    noise_block.prepare(flow, as_key(0))


@background_jit(Effort.LIGHT)
def _log_q_block(distribution: AbstractDistribution, x: Float[Array, "s p"]) -> Float[Array, " s"]:
    return distribution.log_prob(x)


def _effort(model: AbstractModel) -> Effort:
    return Effort.LIGHT if num_rows(model) <= MANY_ROWS else Effort.WIDE


def draws_at_once(rows: int, num: int) -> int:
    """Return the optimal number of draws, out of `num`, at which to evaluate the density at once.

    It is a divisor of `num`, because a remainder would need another compilation. Proper divisors are even: XLA
    distributes the draws over the cores, and an odd number would leave them unbalanced.
    """
    most = ROWS_TIMES_DRAWS_ON_CPU if jax.default_backend() == "cpu" else ROWS_TIMES_DRAWS_ON_ACCELERATOR
    parts = (n for n in range(2, num + 1) if num % n == 0 and (n % 2 == 0 or n == num) and n * rows <= most)
    return max(parts, default=1)


def block_of(dim: int) -> int:
    """Return the number of points per block in `dim` dimensions."""
    return BLOCK if is_dense(dim) else max(MIN_BLOCK, min(BLOCK, WIDE_NUMBERS // dim))


def density_block(model: AbstractModel, dim: int) -> int:
    """Return the number of points per call of the density of a model."""
    few = num_rows(model) > MANY_ROWS and jax.default_backend() == "cpu"
    return min(SMALL_BLOCK, block_of(dim)) if few else block_of(dim)


def sample(
    distribution: AbstractDistribution, key: Key[Array, ""], num: int, first: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Draw `num` points in R^p with their log q, starting with block `first`."""
    keys = [nth(key, first + block) for block in range(math.ceil(num / block_of(distribution.dim)))]
    if isinstance(distribution, AbstractFlow):
        # In two functions, which are also used elsewhere and compiled once.
        noise = [noise_block(distribution, key) for key in keys]
        x, minus_log_q = _concatenate([push_block(distribution, z, z) for z in noise], num)
        return x, -minus_log_q
    return _concatenate([_sample_block(distribution, key) for key in keys], num)


def push(flow: AbstractFlow, z: np.ndarray, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Apply `push_block` to any number of points."""
    return in_blocks(lambda part, _: push_block(flow, *part), (z, rest), block_of(flow.dim))


def _concatenate(blocks: list, num: int) -> Any:
    return jax.tree.map(lambda *parts: np.concatenate(parts)[:num], *blocks)


def constrain(
    layout: AbstractLayout, model: AbstractModel | None, x: np.ndarray, only: tuple[str, ...] | None = None
) -> dict[str, np.ndarray]:
    """Map points in R^p to named values; with a model, include derived quantities, all or those in `only`."""
    names = layout.names
    theta = in_blocks(lambda part, _: _constrain_block(layout, model, part, only), x)
    derived = [name for name in theta if name not in names]
    return {name: theta[name] for name in (*names, *derived)}


def log_density(layout: AbstractLayout, model: AbstractModel, x: np.ndarray) -> np.ndarray:
    """Evaluate the unnormalized log posterior density on R^p."""
    block = log_density_block.with_effort(_effort(model))
    return in_blocks(lambda part, _: block(layout, model, part), x, density_block(model, x.shape[-1]))


def log_q(distribution: AbstractDistribution, x: np.ndarray) -> np.ndarray:
    """Evaluate log q on R^p; -inf if the inverse overflows."""
    # A verdict takes a few blocks, each of them dim steps: in few dimensions less time than a better compilation.
    block = _log_q_block.with_effort(Effort.LEAST if distribution.dim <= FEW_DIM else Effort.LIGHT)
    found = in_blocks(lambda part, _: block(distribution, part), x, block_of(distribution.dim))
    return np.where(np.isnan(found), -np.inf, found)


def log_prob(distribution: AbstractDistribution, layout: AbstractLayout, theta: dict[str, np.ndarray]) -> np.ndarray:
    """Evaluate log q on the constrained scale; -inf outside the support."""
    return in_blocks(lambda part, _: _log_prob_block(distribution, layout, part), theta, block_of(distribution.dim))


def log_prior(model: AbstractModel, theta: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Evaluate the log prior of every parameter."""
    return in_blocks(lambda part, _: _log_prior_block(model, part), theta)


def log_likelihood(model: AbstractModel, theta: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Evaluate the pointwise log likelihood."""
    return in_blocks(lambda part, _: _log_likelihood_block(model, part), theta)


def predict(
    model: AbstractModel,
    key: Key[Array, ""],
    theta: dict[str, np.ndarray],
    args: tuple,
    kwargs: dict[str, Any],
) -> dict[str, np.ndarray]:
    """Draw new observations, one set per draw of theta."""
    # Makes the random numbers differ from those of theta, which may come from the same key.
    key = nth(key, 0x70726564)
    return in_blocks(lambda part, b: _predict_block(model, key, jnp.uint32(b), part, args, kwargs), theta)


def predict_mean(
    model: AbstractModel, theta: dict[str, np.ndarray], args: tuple, kwargs: dict[str, Any]
) -> dict[str, np.ndarray]:
    """Average the expected observations over draws of theta, sequentially."""
    num = len(next(iter(theta.values())))
    totals = []
    for start in range(0, num, BLOCK):
        rows = np.arange(start, start + BLOCK)
        part = {name: values[np.minimum(rows, num - 1)] for name, values in theta.items()}
        totals.append(_sum_of_means(model, part, jnp.asarray(rows < num), args, kwargs))
    return jax.tree.map(lambda *parts: np.asarray(sum(parts)) / num, *totals)


@filter_jit
def _sum_of_means(
    model: AbstractModel, theta: Any, counts: Bool[Array, " s"], args: tuple, kwargs: dict[str, Any]
) -> Theta:
    def add(total, inputs):
        theta, counts = inputs
        mean = model.mean(theta, *args, **kwargs)
        return jax.tree.map(lambda t, m: t + jnp.where(counts, m, 0.0), total, mean), None

    first = jax.tree.map(lambda leaf: leaf[0], theta)
    zero = jax.tree.map(jnp.zeros_like, model.mean(first, *args, **kwargs))
    return jax.lax.scan(add, zero, (theta, counts))[0]


def resample(key: Key[Array, ""], log_weights: np.ndarray, num: int) -> np.ndarray:
    """Choose `num` indices by Pareto-smoothed weights.

    Systematic resampling is unbiased and repeats a draw only if its weight requires it; a shuffle removes the order of
    the proposals.
    """
    smoothed, _ = psis(log_weights)
    random = generator(nth(key, 0x70736973))
    edges = np.cumsum(np.exp(smoothed))
    chosen = np.searchsorted(edges / edges[-1], (np.arange(num) + random.random()) / num, side="right")
    return np.minimum(chosen, len(edges) - 1)[random.permutation(num)]


def in_blocks(function: Callable[[Any, int], Any], inputs: Any, size: int = BLOCK) -> Any:
    """Apply a compiled function to blocks of one shape; the last is padded with copies of the final row."""
    num = len(jax.tree.leaves(inputs)[0])
    outputs: list = []
    for block, start in enumerate(range(0, num, size)):
        rows = np.minimum(np.arange(start, start + size), num - 1)
        outputs.append(jax.tree.map(np.asarray, function(jax.tree.map(lambda a, rows=rows: a[rows], inputs), block)))
    return _concatenate(outputs, num)
