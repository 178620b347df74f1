"""NUTS in the space of a fitted flow: exact draws from an approximate posterior.

The flow x = T(z) maps nearly independent noise to the posterior. NUTS runs on z, with the log density

    log p(x(z), data) + log |dx/dz|,

which is close to that of the noise whatever the shape of the posterior, so that long steps are accepted. The draws
T(z) follow the posterior for any flow; with a poor fit NUTS is only as efficient as without the flow. The samplers are
those of NumPyro and blackjax; this module provides the density, the starting points and the loop.

The method is due to Hoffman et al., "NeuTra-lizing bad geometry in Hamiltonian Monte Carlo using neural transport"
(2019).
"""

import warnings
from numbers import Real
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key
from tqdm.auto import tqdm

from bernflow.compiled import filter_jit
from bernflow.errors import ArgumentError
from bernflow.flows.base import AbstractDistribution, AbstractFlow
from bernflow.flows.external import FlowjaxFlow
from bernflow.flows.mixture import Mixture
from bernflow.flows.paper import PaperFlow
from bernflow.keys import as_key, portable
from bernflow.models.base import AbstractModel
from bernflow.posterior.arguments import check_count
from bernflow.posterior.chains import NutsRun
from bernflow.posterior.samplers import SAMPLERS, Points, Sampler, Whitened, import_blackjax, no_steps
from bernflow.precision import use_precision
from bernflow.watched import is_watched

if TYPE_CHECKING:
    from bernflow.posterior.posterior import Posterior

# Steps per call of the compiled function, which has one shape for any number of draws.
CHUNK = 50
# Candidate starting points per chain, drawn from q.
CANDIDATES = 8
# Distance from the draws, in standard deviations, at which a flow onto the whole space must have an inverse.
FAR = 30.0


def run_nuts(
    posterior: "Posterior",
    model: AbstractModel,
    num: int,
    warmup: int,
    chains: int,
    key: Any,
    sampler: str,
    target_accept: float,
    progress: bool,
) -> NutsRun:
    """Run NUTS in the space of the flow of a posterior; see `Posterior.to_nuts`."""
    num, warmup, chains = (
        check_count(value, name) for name, value in (("num", num), ("warmup", warmup), ("chains", chains))
    )
    if sampler not in SAMPLERS:
        raise ArgumentError(f"sampler={sampler!r} is unknown: expected one of {', '.join(SAMPLERS)}.")
    if not (isinstance(target_accept, Real) and 0.0 < target_accept < 1.0):
        raise ArgumentError(f"target_accept={target_accept!r}: expected a probability between 0 and 1.")
    if sampler == "blackjax":
        import_blackjax()
    with use_precision(posterior.precision):
        density = Whitened(_usable_flow(posterior.distribution), posterior.layout, model)
        # One key per chain, of JAX's default generator: our faster one does not guarantee independent streams.
        run_key = portable(as_key(key))
        method = SAMPLERS[sampler](warmup, float(target_accept))
        state, num_gradients, num_finite = _start(method, density, run_key, chains)
        if num_finite < chains:
            raise ArgumentError(
                f"to_nuts() found {int(num_finite)} starting points for {chains} chains: at the other "
                f"{CANDIDATES * chains - int(num_finite)} draws of the fit the posterior density or its gradient is "
                "not finite. Improve the fit with post.refine() or another family, or check the model."
            )
        x, stats, more_gradients = _sample(method, density, state, chains, num, progress)
    settings = {
        "sampler": sampler,
        "num": num,
        "warmup": warmup,
        "chains": chains,
        "target_accept": method.target_accept,
    }
    run = NutsRun(x, stats, posterior.layout, model, int(num_gradients) + more_gradients, settings)
    if run.diagnostics.verdict == "poor" or run.diagnostics.num_divergent:
        warnings.warn(f"bernflow: {run.diagnostics.status}", UserWarning, stacklevel=3)
    return run


def _sample(
    method: Sampler, density: Whitened, state: Any, chains: int, num: int, progress: bool
) -> tuple[np.ndarray, dict[str, np.ndarray], int]:
    """Run the chains; return x and the statistics of the draws, chains first, and the number of gradients."""
    num_gradients, num_divergent, kept = 0, 0, []
    total = method.warmup_steps + num
    with tqdm(
        total=total, desc="NUTS", unit="draw", disable=not (progress and is_watched()), dynamic_ncols=True
    ) as bar:
        done = 0
        while done < total:
            # The warmup ends with a chunk, so that chunks are kept or dropped as a whole.
            end = method.warmup_steps if done < method.warmup_steps else total
            steps = min(CHUNK, end - done)
            state, chunk = _advance(method, density, state, jnp.asarray(steps), chains)
            x, stats = jax.tree.map(lambda a, steps=steps: np.asarray(a)[:steps], chunk)
            done += steps
            num_gradients += int(np.sum(stats["n_steps"]))
            bar.update(steps)
            if done > method.warmup_steps:
                kept.append((x, stats))
                num_divergent += int(np.sum(stats["diverging"]))
            bar.set_postfix_str("warmup" if done <= method.warmup_steps else f"{num_divergent} divergences")
    x, stats = jax.tree.map(lambda *parts: np.swapaxes(np.concatenate(parts), 0, 1), *kept)
    return x, stats, num_gradients


@filter_jit
def _start(
    method: Sampler, density: Whitened, key: Key[Array, ""], chains: int
) -> tuple[Any, Int[Array, ""], Int[Array, ""]]:
    """Start the chains at draws of q where the density and its gradient are finite.

    Returns:
        The state of the chains, the number of gradient evaluations so far, and the number of finite candidates.
    """
    base_key, chain_key = jax.random.split(key)
    z = density.flow.sample_base(base_key, CANDIDATES * chains)
    value, gradient = jax.lax.map(jax.value_and_grad(density), z, batch_size=chains)
    finite = jnp.isfinite(value) & jnp.all(jnp.isfinite(gradient), axis=1)
    first = jnp.argsort(~finite)[:chains]
    points = Points(z[first], value[first], gradient[first])
    state, num_gradients = method.start(density, points, jax.random.split(chain_key, chains))
    return state, num_gradients + len(z), jnp.sum(finite)


@filter_jit
def _advance(
    method: Sampler, density: Whitened, state: Any, steps: Int[Array, ""], chains: int
) -> tuple[Any, tuple[Array, dict[str, Array]]]:
    """Take `steps` steps, up to `CHUNK`; further rows are empty."""

    def body(i, carry):
        state, rows = carry
        state, row = method.step(density, state)
        return state, jax.tree.map(lambda rows, row: rows.at[i].set(row.astype(rows.dtype)), rows, row)

    state, rows = jax.lax.fori_loop(0, steps, body, (state, no_steps(CHUNK, chains, density.flow.dim)))
    x, log_det = jax.vmap(jax.vmap(density.flow.transform_and_log_det))(rows.z)
    return state, (x, {"lp": rows.log_density - log_det, **rows.stats})


def _usable_flow(distribution: AbstractDistribution) -> AbstractFlow:
    """Return the flow for NUTS; raise an error if the distribution is not a suitable flow."""
    if isinstance(distribution, Mixture):
        if len(distribution.components) == 1:
            return _usable_flow(distribution.components[0])
        raise ArgumentError(
            f"to_nuts() needs a single flow, and this posterior is a mixture of {len(distribution.components)}: NUTS "
            "chains stay in the mode where they start, so modes would not be weighted by their mass. Use "
            "post.draws(weighted=True), or fit with components=1."
        )
    if not isinstance(distribution, AbstractFlow):
        raise ArgumentError(
            f"to_nuts() needs a flow, and this posterior is a {type(distribution).__name__}, which does not map noise "
            "to parameters: fit with a named family, such as 'bernstein'."
        )
    if isinstance(distribution, PaperFlow) or getattr(distribution, "bounded", False) or _is_bounded(distribution):
        raise ArgumentError(
            "to_nuts() needs a flow onto the whole space, and this one has a bounded range, outside which NUTS would "
            "never draw. Fit a family without bounds, such as 'bernstein' (bernstein-paper is bounded by its sigmoid)."
        )
    return distribution


def _is_bounded(flow: AbstractFlow) -> bool:
    """Tell whether a user's own flow is not onto the whole space, which shows as a non-finite inverse."""
    if not isinstance(flow, FlowjaxFlow) or flow.name is not None:
        return False
    try:
        return not bool(_reaches_far(flow))
    except ArgumentError:  # no inverse at all, as for planar flows
        return False


@filter_jit
def _reaches_far(flow: AbstractFlow) -> Array:
    x, _ = jax.vmap(flow.transform_and_log_det)(flow.sample_base(jax.random.key(0), 100))
    away = FAR * jnp.diag(jnp.std(x, axis=0))
    z, _ = jax.vmap(flow.inverse_and_log_det)(jnp.mean(x, axis=0) + jnp.concatenate([away, -away]))
    return jnp.all(jnp.isfinite(z))
