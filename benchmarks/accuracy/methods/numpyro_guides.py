"""NumPyro's automatic guides, trained as its users train them."""

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jaxtyping import Array, Float
from numpyro.infer import SVI, Trace_ELBO, autoguide

from benchmarks.accuracy.density import Density
from benchmarks.accuracy.methods.base import DIVERGED, Drawn, Fitted, Method, RefusedError, Settings
from benchmarks.targets import Benchmark
from bernflow import BernflowError

LABELS = {
    "AutoDiagonalNormal": "mean-field normal (NumPyro)",
    "AutoMultivariateNormal": "full-rank normal (NumPyro)",
    "AutoIAFNormal": "IAF (NumPyro)",
    "AutoBNAFNormal": "BNAF (NumPyro)",
}
LAPLACE = "AutoLaplaceApproximation"
# Steps at the end of training whose mean loss is compared with the evaluation.
TAIL = 500
# What a table says where the curvature at the mode is no precision.
NO_CURVATURE = "curvature not positive"
# Draws of that comparison.
NUM_CHECKED = 2000


class Problem(NamedTuple):
    """A NumPyro model with its arguments, and its density, which maps points of the guide to draws of the target."""

    model: Callable[..., None]
    args: tuple[Any, ...]
    density: Any


def as_it_is(benchmark: Benchmark, key: int) -> Problem:
    """Return the target as its users have it."""
    return Problem(benchmark.model, benchmark.args, Density(benchmark))


def fit(
    benchmark: Benchmark,
    key: int,
    settings: Settings,
    guide_name: str,
    make_problem: Callable[[Benchmark, int], Problem] = as_it_is,
) -> Fitted:
    """Train one guide by SVI."""
    with jax.enable_x64(True):
        started = time.perf_counter()
        model, args, density = make_problem(benchmark, key)
        guide = getattr(autoguide, guide_name)(model)
        schedule = optax.cosine_decay_schedule(settings["learning_rate"], settings["steps"], alpha=0.01)
        svi = SVI(model, guide, optax.adam(schedule), Trace_ELBO(num_particles=settings["num_particles"]))
        try:
            train_key = jax.random.split(jax.random.key(key))[0]
            result = svi.run(train_key, settings["steps"], *args, progress_bar=False)
        except ValueError as error:
            if "latent dim = 1" in str(error):
                raise RefusedError("refuses 1-D") from error
            raise
        jax.block_until_ready(result.params)
        posterior = guide.get_posterior(result.params)
        seconds = time.perf_counter() - started

    def draw(num: int, seed: int) -> Drawn:
        with jax.enable_x64(True):
            x, log_q = _draw(posterior, jax.random.key(seed), num)
            return Drawn(density.constrain(x), density.evaluate(x) - np.asarray(log_q))

    if guide_name == LAPLACE:  # it is trained as a point, whose loss is no ELBO
        if not np.isfinite(np.asarray(draw(NUM_CHECKED, key).log_weights)).any():
            raise RefusedError(NO_CURVATURE)
    else:
        _check_against_training(draw(NUM_CHECKED, key).log_weights, np.asarray(result.losses[-TAIL:]))
    return Fitted(draw, seconds, settings["steps"] * settings["num_particles"])


def _draw(posterior: Any, key: Array, num: int) -> tuple[Float[Array, "num p"], Float[Array, " num"]]:
    """Sample with log q; the intermediate values of a flow spare its inverse, which is slow or unknown."""
    x, intermediates = posterior.sample_with_intermediates(key, sample_shape=(num,))
    log_q = posterior.log_prob(x, intermediates) if intermediates else posterior.log_prob(x)
    # AutoDiagonalNormal describes its posterior as independent scalars.
    return x, log_q.sum(axis=-1) if log_q.ndim == 2 else log_q


def _check_against_training(log_weights: Any, losses: np.ndarray) -> None:
    """Refuse an evaluation that contradicts the ELBO that NumPyro saw at the end of training.

    Both estimate the same number by different code, so a mistake here cannot pass for a poor guide.
    """
    elbo, trained = np.mean(log_weights), -np.mean(losses)
    if np.isnan(trained):
        raise RefusedError(DIVERGED)
    # The tolerance comes from the losses alone: a wrong evaluation has a huge spread and would excuse itself by it.
    # Three standard deviations of a single loss leave room for the last moves of a guide that is still far from the
    # posterior; a wrong order of the parameters is off by hundreds.
    if not abs(elbo - trained) < 0.05 + 3.0 * np.std(losses):
        raise BernflowError(
            f"The evaluated ELBO {elbo:.4f} contradicts that of the training, {trained:.4f}: expected a difference "
            "within the noise of the losses. The guide's parameters may be in another order."
        )


METHODS = (
    *(
        Method(
            name,
            label,
            functools.partial(fit, guide_name=name),
            f"NumPyro's {name} with its default size and starting point: SVI on Trace_ELBO with 10 particles, 20,000 "
            "steps of Adam from 5e-3 with a cosine decay to 1 % of it. One learning rate serves all targets.",
            settings={"steps": 20_000, "num_particles": 10, "learning_rate": 5e-3},
            quick={"steps": 5_000},
        )
        for name, label in LABELS.items()
    ),
    Method(
        LAPLACE,
        "Laplace (NumPyro)",
        functools.partial(fit, guide_name=LAPLACE),
        "NumPyro's AutoLaplaceApproximation: the mode by 20,000 steps of Adam from 5e-3 with a cosine decay to 1 % of "
        "it, and the curvature there.",
        settings={"steps": 20_000, "num_particles": 1, "learning_rate": 5e-3},
        quick={"steps": 5_000},
    ),
)
