from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.background import Effort
from bernflow.fit.train.recipe import Recipe, StepConfig
from bernflow.fit.work import SMALL, effort_for_start, work
from bernflow.posterior.sampling import MANY_ROWS
from bernflow.target import Target


def target(density, dim=2):
    return Target(bf.from_log_density(density, init=jnp.zeros(dim)))


def test_work_counts_what_is_computed_also_inside_of_compiled_parts():
    few = work(target(lambda x: -jnp.sum(x**2)))
    many = work(target(lambda x: jax.jit(lambda y: -jnp.sum(jnp.exp(y * np.ones(1000))))(x[0])))
    product = work(target(lambda x: -jnp.sum((np.ones((100, 50)) @ (x[0] * np.ones(50))) ** 2)))
    assert few < 100
    assert 2000 <= many < 4000
    assert 5000 < product < 6000


@pytest.mark.parametrize(
    "loop",
    [
        lambda x: jax.lax.fori_loop(0, 9, lambda i, total: total - x @ x, 0.0),
        lambda x: jax.lax.scan(lambda total, y: (total - y**2, None), 0.0, x)[0],
    ],
)
def test_loops_may_be_any_work(loop):
    assert work(target(loop)) == np.inf


def test_the_search_for_a_start_is_compiled_as_hard_as_it_has_to_work():
    assert effort_for_start(target(lambda x: -jnp.sum(x**2))) is Effort.LEAST
    assert effort_for_start(target(lambda x: -jnp.sum((x[0] - np.zeros(SMALL)) ** 2))) is Effort.LIGHT


def test_only_few_steps_are_compiled_with_less_effort():
    recipes = (Recipe(StepConfig(None, True), None, 8, tolerance=tolerance) for tolerance in (0.01, None))
    assert [recipe.effort for recipe in recipes] == [Effort.LIGHT, Effort.FULL]


def test_many_rows_are_worth_wide_vectors():
    y = np.zeros(MANY_ROWS + 1)
    normal = bf.Model(prior={"mu": dist.Normal(0.0, 1.0)}, likelihood=lambda theta: dist.Normal(theta["mu"], 1.0), y=y)
    assert effort_for_start(Target(normal)) is Effort.WIDE


def test_a_density_that_fails_is_left_to_the_checks_before_a_fit():
    def fail(x):
        raise ValueError("no density there")

    assert work(SimpleNamespace(dim=2, log_density=fail)) == np.inf


def test_what_a_model_says_is_not_swallowed():
    def fail(x):
        raise bf.ModelError("no density there")

    with pytest.raises(bf.ModelError, match="no density there"):
        work(SimpleNamespace(dim=2, log_density=fail))
