import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import stats

from bernflow.errors import ArgumentError, ModelError
from bernflow.semistructured.design import Design, Formula
from bernflow.semistructured.outcomes import (
    OrderedNormal,
    check_network_output,
    check_outcome,
    check_prior,
    check_y,
    make_prior,
)

TABLE = {"age": [30.0, 50.0, 70.0, 60.0], "sex": ["f", "m", "m", "f"]}
DESIGN = Design(Formula("age + sex"), TABLE)


@pytest.mark.parametrize(
    ("outcome", "y", "message"),
    [
        ("bernoulli", [0, 1, 2], r"1 values that are not 0 or 1, the first in row 2 \(2\)"),
        ("poisson", [0, -1], r"not counts 0, 1, 2, .*row 1 \(-1\)"),
        ("poisson", [0.5, 1], r"not counts .*row 0 \(0.5\)"),
        ("gaussian", ["a", "b"], "expected numbers of shape"),
        ("gaussian", [[1.0], [2.0]], r"shape \(2, 1\).*expected numbers of shape \(N,\)"),
        ("gaussian", [1.0, np.nan], r"1 values that are not finite numbers, the first in row 1"),
        ("gaussian", [2.0, 2.0], "expected an outcome that varies"),
        ("ordinal", [1, 2, 3], r"classes \[1, 2, 3\].*expected all of 0, 1, ..., K-1"),
        ("ordinal", [0, 1.5], r"not the classes 0, 1, ..., K-1, the first in row 1"),
        ("categorical", [0, 0], "at least two of them"),
        ("categorical", ["a", "b"], "return_inverse=True"),
    ],
)
def test_outcomes_of_the_wrong_kind(outcome, y, message):
    with pytest.raises(ArgumentError, match=message):
        check_y(outcome, y)


def test_classes_are_those_of_the_training():
    assert check_y("ordinal", [2, 2], num_classes=3).tolist() == [2, 2]
    with pytest.raises(ArgumentError, match="the classes of the training, 0 to 2"):
        check_y("ordinal", [3], num_classes=3)


def test_an_unknown_outcome():
    with pytest.raises(ArgumentError, match="outcome='binary' is unknown: expected one of 'bernoulli'"):
        check_outcome("binary")


@pytest.mark.parametrize(
    ("outcome", "shape", "message"),
    [
        ("bernoulli", (2,), r"returns shape \(2,\) per row.*expected \(\) or \(1,\)"),
        ("categorical", (4,), r"expected \(3,\): one logit for each of the classes 1 to 3, against class 0"),
    ],
)
def test_networks_of_the_wrong_shape(outcome, shape, message):
    with pytest.raises(ModelError, match=message):
        check_network_output(outcome, shape, 4)


def test_priors_by_column():
    priors = make_prior("categorical", DESIGN, {"age": dist.Normal(0, 1)}, np.array([0, 1, 2, 0]), 3)
    assert {name: prior.shape() for name, prior in priors.items()} == {"age": (2,), "sex[T.m]": (2,), "level": (2,)}
    assert priors["age"].log_prob(jnp.zeros(2)) == pytest.approx(2 * stats.norm.logpdf(0))
    # 2.5 per standard deviation of a column, which is 1/2 here.
    assert priors["sex[T.m]"].log_prob(jnp.zeros(2)) == pytest.approx(2 * stats.norm(0, 5.0).logpdf(0))


def test_a_prior_of_the_intercept_is_one_of_the_level():
    prior = make_prior("bernoulli", DESIGN, {"Intercept": dist.Normal(1.0, 2.0)}, np.array([0, 1, 1, 0]), 2)["level"]
    theta = {"age": jnp.array(0.04), "sex[T.m]": jnp.array(-0.5)}
    shift = 0.04 * 52.5 - 0.5 * 0.5
    assert prior(theta).log_prob(jnp.array(3.0)) == pytest.approx(stats.norm(1 + shift, 2).logpdf(3.0), rel=1e-5)


@pytest.mark.parametrize(
    ("prior", "message"),
    [({"weight": dist.Normal()}, "'weight', which is no column"), (dist.Normal(jnp.zeros(2)), r"shape \(2,\)")],
)
def test_priors_that_do_not_fit(prior, message):
    with pytest.raises(ArgumentError, match=message):
        make_prior("bernoulli", DESIGN, prior, np.array([0, 1, 1, 0]), 1)


def test_priors_that_are_none():
    with pytest.raises(ArgumentError, match="expected a NumPyro distribution for all coefficients"):
        check_prior(2.5)


def test_cutpoints_integrate_to_one_over_ordered_pairs():
    grid = np.linspace(-30, 30, 601)
    first, second = np.meshgrid(grid, grid, indexing="ij")
    density = np.exp(OrderedNormal(5.0, 2).log_prob(jnp.stack([first, second], -1)))
    # Half of the diagonal belongs to either side.
    weight = np.where(first < second, 1.0, np.where(first == second, 0.5, 0.0))
    assert np.sum(density * weight) * 0.1**2 == pytest.approx(1.0, rel=1e-4)
    draws = OrderedNormal(5.0, 3).sample(jax.random.key(0), (100,))
    assert draws.shape == (100, 3)
    assert np.all(np.diff(draws) > 0)
