"""NumPyro's automatic guides, trained as its users train them, in double precision."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from numpyro.infer import SVI, Trace_ELBO, autoguide
from numpyro.infer.util import potential_energy

GUIDES = ("AutoDiagonalNormal", "AutoMultivariateNormal", "AutoIAFNormal", "AutoBNAFNormal")
SETTINGS = {"steps": 20_000, "num_particles": 10, "learning_rate": 5e-3}
DESCRIPTION = (
    "NumPyro's guides with their default sizes and starting points: SVI on Trace_ELBO with 10 particles, "
    "20,000 steps of Adam from 5e-3 with a cosine decay to 1% of it, float64. One learning rate serves all "
    "targets; on the toy regression 1e-2 suits AutoIAFNormal better (median KL, five keys: 0.039, not 0.064)."
)
REFUSAL = "refuses 1-D"
# Steps at the end of training whose mean loss is compared with the evaluation.
TAIL = 500


class RefusedError(Exception):
    """The method declares that it does not fit this model."""


def fit_and_weigh(guide_name, benchmark, key, num_draws, settings):
    """Train one guide and evaluate it at fresh draws.

    Returns:
        log p - log q at the draws, the draws of each site on the unconstrained scale, and the seconds of
        training, compilation included.
    """
    train_key, draw_key = jax.random.split(jax.random.key(key))
    started = time.perf_counter()
    guide = getattr(autoguide, guide_name)(benchmark.model)
    schedule = optax.cosine_decay_schedule(settings["learning_rate"], settings["steps"], alpha=0.01)
    svi = SVI(benchmark.model, guide, optax.adam(schedule), Trace_ELBO(num_particles=settings["num_particles"]))
    try:
        result = svi.run(train_key, settings["steps"], *benchmark.args, progress_bar=False)
    except ValueError as error:
        if "latent dim = 1" in str(error):
            raise RefusedError(REFUSAL) from error
        raise
    jax.block_until_ready(result.params)
    seconds = time.perf_counter() - started
    x, log_q = _draw(guide.get_posterior(result.params), draw_key, num_draws)
    log_weights = np.asarray(_log_density(benchmark, guide, x) - log_q)
    _check_against_training(log_weights, np.asarray(result.losses[-TAIL:]))
    return log_weights, jax.vmap(guide._unpack_latent)(x), seconds


def _draw(posterior, key, num):
    """Sample with log q; the intermediate values of a flow spare its inverse, which is slow or unknown."""
    x, intermediates = posterior.sample_with_intermediates(key, sample_shape=(num,))
    log_q = posterior.log_prob(x, intermediates) if intermediates else posterior.log_prob(x)
    # AutoDiagonalNormal describes its posterior as independent scalars.
    return x, log_q.sum(axis=-1) if log_q.ndim == 2 else log_q


def _log_density(benchmark, guide, x):
    """Evaluate the log density of the rows of x on R^p."""
    # The guide's own unpacking: it keeps the sites in model order, where flattening a dictionary sorts them.
    unpack = guide._unpack_latent
    args = tuple(jnp.asarray(a) for a in benchmark.args)

    @jax.jit
    def evaluate(points, args):
        def one(point):
            return -potential_energy(benchmark.model, args, {}, unpack(point))

        # Chunks bound the memory: all draws at once would need 2 GB for the diamonds.
        return jax.lax.map(one, points, batch_size=500)

    return evaluate(x, args)


def _check_against_training(log_weights, losses):
    """Refuse an evaluation that contradicts the ELBO that NumPyro saw at the end of training.

    Both estimate the same number by different code, so a mistake in this module cannot pass for a poor guide.
    """
    elbo, trained = np.mean(log_weights), -np.mean(losses)
    # The tolerance comes from the losses alone: a wrong evaluation has a huge spread and would excuse
    # itself by it. Three standard deviations of a single loss leave room for the last moves of a guide that is
    # still far from the posterior; a wrong order of the parameters is off by hundreds.
    if not abs(elbo - trained) < 0.05 + 3.0 * np.std(losses):
        raise RuntimeError(f"evaluated ELBO {elbo:.4f} contradicts the ELBO in training {trained:.4f}")
