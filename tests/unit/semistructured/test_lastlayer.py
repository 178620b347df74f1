import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bernflow.semistructured import lastlayer
from bernflow.semistructured.crossfit import agreement, find_layers, solve_folds_compiled, split_rows, stack_folds
from bernflow.semistructured.lastlayer import Kind, Prior, Rows, log_joint, predict_columns

GAUSSIAN = Kind("gaussian", 2, 1, 1)
BINARY = Kind("bernoulli", 2, 1, 0)
# Compiled as a whole: faster than operation by operation.
solve, solve_with_scale = map(eqx.filter_jit, (lastlayer.solve, lastlayer.solve_with_scale))


@pytest.fixture(autouse=True)
def _double():
    with jax.enable_x64(True):
        yield


def rows(outcome, seed=0, k=2, n=80, p=2, q=3):
    rng = np.random.default_rng(seed)
    x, z = rng.normal(size=(k, n, p)), rng.normal(size=(k, n, q))
    eta = x @ np.linspace(1, -1, p) + np.einsum("knq,kq->kn", z, rng.normal(size=(k, q)))
    y = eta + rng.normal(size=(k, n)) if outcome == "gaussian" else rng.random((k, n)) < 1 / (1 + np.exp(-eta))
    return Rows(*map(jnp.asarray, (x, z, y.astype(float), np.ones((k, n)))))


def test_with_a_known_sigma_the_last_layers_are_integrated_out_exactly():
    """The marginal of beta is that of a linear model whose columns of both networks are parameters, too."""
    data = rows("gaussian")
    tight = Prior(jnp.zeros(3), jnp.array([0.16, 0.16, 1e9]), jnp.full(3, 0.5))  # log sigma is 0
    found = solve(data, GAUSSIAN, tight, jnp.zeros(3))
    columns = np.zeros((160, 2 + 6))
    columns[:, :2] = np.reshape(data.x, (160, 2))
    columns[:80, 2:5], columns[80:, 5:] = data.z[0], data.z[1]
    precision = columns.T @ columns + np.diag([0.16] * 2 + [0.5] * 6)
    mean, covariance = np.linalg.solve(precision, columns.T @ np.reshape(data.y, -1)), np.linalg.inv(precision)
    theta, marginal = found.marginal()
    np.testing.assert_allclose(theta[:2], mean[:2], rtol=1e-5)
    np.testing.assert_allclose(marginal[:2, :2], covariance[:2, :2], rtol=1e-5)
    np.testing.assert_allclose(np.reshape(found.w, -1), mean[2:], rtol=1e-5)
    # The conditional mode of the last layers given other coefficients.
    other = np.array([0.3, -0.2])
    rest = np.reshape(data.y, -1) - columns[:, :2] @ other
    expected = np.linalg.solve(columns[:, 2:].T @ columns[:, 2:] + 0.5 * np.eye(6), columns[:, 2:].T @ rest)
    moved = found.w + found.slope[:, :, :2] @ (other - found.theta[:2])
    np.testing.assert_allclose(np.reshape(moved, -1), expected, rtol=1e-5)


@pytest.mark.parametrize(("outcome", "kind"), [("gaussian", GAUSSIAN), ("bernoulli", BINARY)])
def test_the_mode_is_a_stationary_point(outcome, kind):
    data = rows(outcome)
    num = 2 + kind.num_extra
    prior = Prior(jnp.zeros(num), jnp.full(num, 0.16), jnp.ones(3))
    found = solve(data, kind, prior, jnp.zeros(num))
    for gradient in jax.grad(lambda t, w: log_joint(data, kind, prior, t, w), (0, 1))(found.theta, found.w):
        np.testing.assert_allclose(gradient, 0.0, atol=1e-3)


def test_sigma_is_not_too_small_for_the_columns_that_were_fitted():
    """With a column for every second row, the mode of sigma is too small by 1 / sqrt(2); integrating puts it right."""
    ratios = []
    for seed in range(10):
        data = rows("gaussian", seed, n=80, p=1, q=40)
        prior = Prior(jnp.zeros(2), jnp.full(2, 1e-2), jnp.full(40, 1e-2))
        found = solve(data, GAUSSIAN, prior, jnp.zeros(2))
        ratios.append((found.theta[1], found.marginal()[0][1]))
    mode, corrected = np.exp(np.mean(ratios, 0))
    assert mode < 0.75
    assert corrected == pytest.approx(1.0, abs=0.12)


def test_features_that_say_nothing_are_shrunk():
    rng = np.random.default_rng(0)
    data = rows("gaussian", q=20, n=200)
    noise = data._replace(y=jnp.asarray(data.x @ np.array([1.0, -1.0]) + rng.normal(size=(2, 200))))
    prior = Prior(jnp.zeros(3), jnp.full(3, 1e-2), jnp.ones(20))
    scales = [float(solve_with_scale(d, GAUSSIAN, prior, 20, jnp.zeros(3))[1]) * 20**0.5 for d in (data, noise)]
    assert scales[0] >= 2.0
    assert scales[1] <= 0.1


def test_columns_are_predicted_from_features():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(400, 5))
    columns = np.column_stack([features @ np.arange(5.0), rng.normal(size=400)])
    weight = jnp.asarray((np.arange(400) < 300).astype(float))
    weights = np.asarray(predict_columns(jnp.asarray(features), jnp.asarray(columns), weight))
    np.testing.assert_allclose(weights[:, 0], np.arange(5.0), atol=0.05)
    np.testing.assert_allclose(weights[:, 1], 0.0, atol=0.2)
    changed = features + np.where(np.arange(400) < 300, 0.0, 100.0)[:, None]
    again = predict_columns(jnp.asarray(changed), jnp.asarray(columns), weight)
    np.testing.assert_allclose(again, weights, atol=1e-8)


def test_rows_that_fill_up_a_fold_change_nothing():
    rng = np.random.default_rng(1)
    x, out, features = rng.normal(size=(1, 60, 2)), rng.normal(size=(1, 60, 1)), rng.normal(size=(1, 60, 4))
    y = (rng.random((1, 60)) < 0.5).astype(float)
    prior = (jnp.zeros(2), jnp.full(2, 0.16))
    more = [np.concatenate([a, 1e3 * np.ones_like(a[:, :7])], 1) for a in (x, out, features, y)]
    plain = solve_folds_compiled(x, False, out, features, y, np.ones((1, 60)), BINARY, prior, jnp.zeros(2))[0]
    weight = np.concatenate([np.ones((1, 60)), np.zeros((1, 7))], 1)
    filled = solve_folds_compiled(
        *map(jnp.asarray, more[:1]), False, *map(jnp.asarray, (*more[1:], weight)), BINARY, prior, jnp.zeros(2)
    )[0]
    np.testing.assert_allclose(filled.marginal()[0], plain.marginal()[0], atol=1e-6)


def test_a_constant_feature_is_left_out():
    rng = np.random.default_rng(1)
    features = rng.normal(size=(1, 50, 3))
    features[..., 1] = 7.0
    layers = find_layers(
        *map(jnp.asarray, (rng.normal(size=(1, 50, 2)), rng.normal(size=(1, 50, 1)), features, np.ones((1, 50))))
    )
    z = np.asarray(layers(jnp.zeros((1, 50, 1)), jnp.asarray(features)))
    assert np.all(np.isfinite(z))
    assert np.all(z[..., -2] == 0.0)


def test_the_agreement_is_the_share_of_signal():
    """Signal and noise of equal variance; what a network remembers of its own rows does not count."""
    rng = np.random.default_rng(0)
    signal, noise, memory = rng.normal(size=(3, 2, 20_000))
    other = signal + rng.normal(size=(2, 20_000)) + 3 * memory
    assert agreement(*map(jnp.asarray, (signal + noise, other, np.ones((2, 20_000))))) == pytest.approx(0.5, abs=0.06)


def test_groups_share_a_fold():
    groups = np.repeat(np.arange(30), np.arange(1, 31))
    fold = split_rows(len(groups), 3, 0, groups)
    assert all(len(set(fold[groups == g])) == 1 for g in range(30))
    sizes = np.bincount(fold)
    assert sizes.max() - sizes.min() < 10
    rows, weight = stack_folds(split_rows(11, 2, 0), 2)
    assert rows.shape == (2, 6)
    assert sorted(rows[weight > 0].tolist()) == list(range(11))
