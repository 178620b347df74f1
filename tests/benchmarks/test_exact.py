"""Exact draws against two laws that every density on R^p obeys: E[d_i log p] = 0 and E[x_i d_i log p] = -1."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer.util import unconstrain_fn

from benchmarks import exact
from benchmarks.accuracy.density import Density
from benchmarks.targets import BENCHMARKS

NUM = 20_000
# At most 44 figures in all; with five standard errors one run of 40,000 fails by chance.
NUM_ERRORS = 5.0


@pytest.mark.parametrize("name", [name for name, b in BENCHMARKS.items() if b.exact_draws is not None])
def test_draws_obey_the_laws_of_their_density(name):
    benchmark = BENCHMARKS[name]
    draws = benchmark.exact_draws(3, NUM)
    with jax.enable_x64(True):
        density = Density(benchmark)
        sites = {site: draws[site] for site in density.sites}
        to_reals = jax.jit(jax.vmap(lambda theta: unconstrain_fn(benchmark.model, benchmark.args, {}, theta)))
        pieces = to_reals(jax.tree.map(jnp.asarray, sites))
        x = jnp.concatenate([pieces[site].reshape(NUM, -1) for site in density.sites], axis=1)
        score = np.asarray(jax.jit(jax.vmap(jax.grad(density.log_density)))(x))
    for values, expected in ((score, 0.0), (np.asarray(x) * score, -1.0)):
        error = np.std(values, axis=0) / np.sqrt(NUM)
        assert np.all(np.abs(values.mean(axis=0) - expected) < NUM_ERRORS * error)


def test_eight_schools_against_an_integral():
    tau = exact.eight_schools(0, NUM)["tau"]
    # By quadrature over log tau in other code: mean 3.5977, sd 3.2200.
    assert abs(tau.mean() - 3.5977) < 4 * 3.2200 / np.sqrt(NUM)


def test_seeds_matter_and_are_all_that_does():
    first, again, other = (exact.cauchy(seed, 10)["xi"] for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
