import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from bernflow.semistructured.likelihoods import distribution, free_of_order, information, log_prob, ordered


def test_the_first_class_is_the_reference():
    probs = distribution("categorical", jnp.array([[2.5, -2.0]]), jnp.zeros(0)).probs
    np.testing.assert_allclose(np.log(probs[0, 1:] / probs[0, 0]), [2.5, -2.0], rtol=1e-5)


def test_ordinal_probabilities_are_cumulative_logits():
    extra = free_of_order(jnp.array([-1.0, 1.0]))
    np.testing.assert_allclose(ordered(extra), [-1.0, 1.0], rtol=1e-6)
    probs = distribution("ordinal", jnp.array([[2.5]]), extra).probs
    np.testing.assert_allclose(probs[0], np.diff([0, *stats.logistic.cdf(np.array([-1.0, 1.0]) - 2.5), 1]), rtol=1e-5)


@pytest.mark.parametrize(
    ("outcome", "eta", "extra", "values"),
    [
        ("bernoulli", [0.7], [], [0, 1]),
        ("poisson", [0.3], [], range(40)),
        ("ordinal", [0.4], [-0.5, 0.2], range(3)),
        ("categorical", [0.4, -1.0], [], range(3)),
    ],
)
def test_the_information_is_the_expected_curvature(outcome, eta, extra, values):
    """Summed over all outcomes with their probabilities, the negative Hessian is the Fisher information."""
    with jax.enable_x64(True):
        both, split = jnp.array([*eta, *extra]), len(eta)

        def value(both, y):
            return log_prob(outcome, both[:split], both[split:], y)

        expected = sum(-jnp.exp(value(both, jnp.array(y))) * jax.hessian(value)(both, jnp.array(y)) for y in values)
        found = information(outcome, 3, both[None, :split], both[split:])[0]
        np.testing.assert_allclose(found, expected, atol=1e-9)


def test_the_information_of_a_normal_outcome():
    found = information("gaussian", 2, jnp.zeros((1, 1)), jnp.log(jnp.array([2.0])))[0]
    np.testing.assert_allclose(found, np.diag([0.25, 2.0]), rtol=1e-6)
