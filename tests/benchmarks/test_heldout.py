"""The test set can be built, and is what its recipe says; none of it is fitted here."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import heldout
from benchmarks.accuracy.cases import GROUPS, HELD_OUT, all_cases
from benchmarks.heldout import DRAWS, RECIPES
from bernflow.models import as_model
from bernflow.target import Target


def target_of(name):
    benchmark = heldout.HELD_OUT[name]
    return Target(as_model(benchmark.model, benchmark.args, {}))


@pytest.mark.parametrize("kind", RECIPES)
def test_a_density_is_finite_where_chains_start_and_not_that_of_another_draw(kind):
    with jax.enable_x64(True):
        targets = [target_of(f"{kind}-{number}") for number in range(DRAWS)]
        values = []
        for target in targets:
            x = 0.5 * np.random.default_rng(0).normal(size=target.dim)
            value, gradient = jax.value_and_grad(target.log_density)(jnp.asarray(x))
            assert np.isfinite(value)
            assert np.isfinite(gradient).all()
            values.append(float(value))
        assert len(set(values)) == DRAWS


@pytest.mark.parametrize("name", ["warped-0", "islands-1"])
def test_exact_draws_have_the_score_of_the_density(name):
    """E[d/dx_j log p] = 0 and E[x_j d/dx_j log p] = -1 for draws of p; wrong scales and centers break it."""
    with jax.enable_x64(True):
        target, num = target_of(name), 4000
        theta = {s: jnp.asarray(v) for s, v in heldout.HELD_OUT[name].exact_draws(3, num).items()}
        x = np.asarray(jax.vmap(lambda t: target.layout.unconstrain(t)[0])(theta))
        score = np.asarray(jax.vmap(jax.grad(target.log_density))(jnp.asarray(x)))
    for values in (score, x * score + 1.0):
        # Five standard errors: one of a million correct figures is refused, and some dozens are compared.
        assert np.all(np.abs(values.mean(0)) < 5.0 * values.std(0) / np.sqrt(num) + 1e-12)


def test_the_same_seeds_give_the_same_targets():
    for name, benchmark in heldout.HELD_OUT.items():
        load = benchmark.model.args[1]
        assert all(np.array_equal(a, b) for a, b in zip(load(), load(), strict=True)), name


def test_the_suite_has_them_as_a_group_of_their_own():
    found = {name for name, case in all_cases().items() if case.group == HELD_OUT}
    assert found == set(heldout.HELD_OUT)
    assert next(iter(GROUPS)) == HELD_OUT
