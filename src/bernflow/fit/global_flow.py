"""The flow of the globals: trained on their marginal, which is known where the locals were integrated out.

A regression through a few hundred values of the marginal may be wrong between them. The draws of the flow that was
trained on it show where: the marginal is evaluated there as well, and the regression repeated with all that is known.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.background import Effort, background_jit
from bernflow.diagnostics.importance import ess_fraction
from bernflow.fit.conditionals import Moments, join
from bernflow.fit.deadline import Deadline, Pace
from bernflow.fit.evaluation import pick
from bernflow.fit.marginal import GlobalGaussian
from bernflow.fit.settings import Settings
from bernflow.fit.surrogate import MAX_GLOBALS, Surrogate, fit_surrogate
from bernflow.fit.train.objective import AllRows
from bernflow.fit.train.recipe import CHUNK, Recipe, StepConfig
from bernflow.fit.train.state import begin
from bernflow.fit.train.steps import Chunk, prepare_chunk, take_steps
from bernflow.flows.autoregressive import BernsteinFlow
from bernflow.flows.base import inlined
from bernflow.keys import generator, nth
from bernflow.placement import placed

# Rounds of regression, training and a look at the marginal at so many draws, and at more in the tails: in one
# coordinate each their noise is this much larger.
MAX_ROUNDS, NUM_DRAWS, NUM_FAR, FAR = 3, 128, 48, 3.0
# Effective draws, as a fraction, at which the rounds end, and below which a flow is no better than the Gaussian.
ENOUGH, USEFUL = 0.995, 0.1
# Points with fewer nats than this below the highest are negligible.
FARTHEST = 25.0
# Chunks of steps: the share of the learning rate, and the divergence. The later ones carry the fit into the tails.
CHUNKS = ((1.0, 0.0), (0.5, 1.0), (0.5, 1.0))


def prepare_globals(flow: BernsteinFlow, settings: Settings) -> None:
    """Begin to compile what trains such a flow and draws from it; only shapes matter."""
    if flow.dim <= MAX_GLOBALS:
        surrogate = placed(Surrogate.empty(np.zeros(flow.dim), np.eye(flow.dim)))
        prepare_chunk(_stacked(flow), AllRows(surrogate), _recipe(settings, flow.dim))
        _push.prepare(flow, np.zeros((NUM_DRAWS + NUM_FAR, flow.dim)))


def fit_globals(
    flow: BernsteinFlow,
    gaussian: GlobalGaussian,
    at: Moments,
    leaders: list[int],
    moments_of: Callable[[Float[np.ndarray, "k c"]], Moments],
    settings: Settings,
    key: Key[Array, ""],
) -> tuple[BernsteinFlow, Moments]:
    """Return a flow of the globals, and the points at which their marginal is known and not negligible.

    Args:
        flow: the Gaussian that it starts from.
        gaussian: the same, with the locals.
        at: points at which the marginal is known.
        leaders: the dimensions of the globals.
        moments_of: evaluates the marginal.
        settings: how flows are trained.
        key: a random key.
    """
    best, most = flow, USEFUL
    for number in range(MAX_ROUNDS):
        trained = train_globals(flow, gaussian, at, leaders, settings, nth(key, 2 * number))
        if trained is None:
            break
        z = generator(nth(key, 2 * number + 1)).standard_normal((NUM_DRAWS + NUM_FAR, flow.dim))
        far = NUM_DRAWS + np.arange(NUM_FAR)
        z[far, np.arange(NUM_FAR) % flow.dim] *= FAR
        g, minus_log_q = draw_globals(trained, z)
        seen = moments_of(g)
        sound = np.isfinite(seen.log_density)
        log_weights = np.where(sound, seen.log_density + minus_log_q, -np.inf)[:NUM_DRAWS]
        ess = float(ess_fraction(log_weights)) if sound[:NUM_DRAWS].any() else 0.0
        at = join([at, seen.at(sound)])
        if ess > most:
            best, most = trained, ess
        if ess > ENOUGH:
            break
    return best, at.at(at.log_density > np.max(at.log_density) - FARTHEST)


def train_globals(
    flow: BernsteinFlow,
    gaussian: GlobalGaussian,
    at: Moments,
    leaders: list[int],
    settings: Settings,
    key: Key[Array, ""],
) -> BernsteinFlow | None:
    """Return a flow trained on a regression through known values of the marginal; None if that predicts badly.

    The arguments are those of `fit_globals`.
    """
    if flow.dim > MAX_GLOBALS:
        return None
    surrogate = fit_surrogate(gaussian.loc, gaussian.tril, at.x[:, leaders], at.log_density)
    return None if surrogate is None else _train(flow, surrogate, settings, key)


def draw_globals(
    flow: BernsteinFlow, z: Float[np.ndarray, "s c"]
) -> tuple[Float[np.ndarray, "s c"], Float[np.ndarray, " s"]]:
    """Map noise, of any number of draws, to globals, with -log q."""
    block = NUM_DRAWS + NUM_FAR
    filled = np.concatenate([z, np.zeros((-len(z) % block, z.shape[1]))])
    parts = [_push(flow, filled[i : i + block]) for i in range(0, len(filled), block)]
    g, minus_log_q = (np.concatenate([np.asarray(part) for part in column]) for column in zip(*parts, strict=True))
    return g[: len(z)], minus_log_q[: len(z)]


@background_jit(Effort.LEAST)
def _push(flow: BernsteinFlow, z: Float[Array, "s c"]) -> tuple[Array, Array]:
    """Map noise to globals, with -log q."""
    with inlined(flow):
        g, log_det = jax.vmap(flow.transform_and_log_det)(z)
    return g, log_det - jax.vmap(flow.base_log_prob)(z)


def _train(flow: BernsteinFlow, surrogate: Surrogate, settings: Settings, key: Key[Array, ""]) -> BernsteinFlow:
    """Return a flow of the globals trained on their log density."""
    recipe, objective = _recipe(settings, flow.dim), AllRows(placed(surrogate))
    state, pace = begin(_stacked(flow), settings.optimizer), Pace(Deadline.start())
    for number, (share, power) in enumerate(CHUNKS):
        rates = recipe.rates(CHUNK, share)
        state, _ = take_steps(Chunk(state, objective, nth(key, number), rates, np.full(1, power), recipe, pace))
    return pick(state.flow, 0)  # type: ignore[return-value]


def _recipe(settings: Settings, dim: int) -> Recipe:
    return Recipe(
        StepConfig(settings.optimizer, use_score=True),
        learning_rate=settings.rate_in(dim),
        num_particles=settings.num_particles,
        widened=True,
        tolerance=settings.tolerance,
    )


def _stacked(flow: BernsteinFlow) -> BernsteinFlow:
    is_array = eqx.is_array
    return placed(
        jax.tree.map(
            lambda leaf: np.asarray(leaf)[None] if is_array(leaf) or isinstance(leaf, np.ndarray) else leaf, flow
        )
    )
