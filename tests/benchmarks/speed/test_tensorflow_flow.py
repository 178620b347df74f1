"""The flow in TensorFlow Probability is the flow of the paper's text: same weights, same density."""

import equinox as eqx
import jax
import numpy as np
import pytest

from benchmarks.speed import tensorflow_flow
from benchmarks.speed.training import schools
from bernflow.flows.paper import PaperFlow
from bernflow.target import Target

DIM, ORDER = 10, 50
# TensorFlow and its friends warn about each other while they are imported.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


@pytest.fixture(scope="module", params=[False, True], ids=["powers", "beta densities"])
def rival(request):
    for name in tensorflow_flow.NEEDS:
        pytest.importorskip(name)
    return tensorflow_flow.TensorflowFlow(DIM, ORDER, beta_densities=request.param)


@pytest.fixture(scope="module")
def points():
    return np.random.default_rng(0).normal(size=(30, DIM)).astype(np.float32)


def test_same_weights_give_the_same_density(rival, points):
    flow = PaperFlow(jax.random.key(3), DIM, order=ORDER, variant="f1")
    moved = jax.tree.map(
        lambda leaf: leaf + 0.3 * jax.random.normal(jax.random.key(leaf.size), leaf.shape),
        eqx.filter(flow, eqx.is_inexact_array),
    )
    flow = eqx.combine(moved, flow)
    rival.copy(flow)
    x, log_q = rival.transform(points)
    expected, log_det = jax.vmap(flow.transform_and_log_det)(points)
    np.testing.assert_allclose(x.numpy(), expected, atol=1e-3)
    np.testing.assert_allclose(log_q.numpy(), jax.vmap(flow.base_log_prob)(points) - log_det, atol=1e-3)


def test_a_new_one_is_autoregressive_and_starts_alike(points):
    for name in tensorflow_flow.NEEDS:
        pytest.importorskip(name)
    new = tensorflow_flow.TensorflowFlow(DIM, ORDER)
    ours = PaperFlow(jax.random.key(0), DIM, order=ORDER, variant="f1")
    np.testing.assert_allclose(new.variables[-1], np.ravel(ours.bias), rtol=1e-5)
    changed = points.copy()
    changed[:, 4] += 1.0
    before, after = (new.transform(z)[0].numpy() for z in (points, changed))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert np.all(before[:, 4] != after[:, 4])


def test_the_target_is_ours(rival, points):
    expected = jax.vmap(Target(schools(DIM)).log_density)(points)
    np.testing.assert_allclose(tensorflow_flow.log_density(rival.tf, points).numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("mode", tensorflow_flow.MODES)
def test_every_mode_trains_and_keeps_the_masks(rival, mode):
    flow = tensorflow_flow.TensorflowFlow(DIM, ORDER)
    step = tensorflow_flow.make_step(flow, 10, mode)
    forbidden = [variable.numpy() == 0.0 for variable in flow.network.trainable_variables[::2]]
    before = [variable.numpy() for variable in flow.variables]
    for _ in range(3):
        assert np.isfinite(float(step()))
    assert all(np.any(old != new.numpy()) for old, new in zip(before, flow.variables, strict=True))
    for mask, variable in zip(forbidden, flow.network.trainable_variables[::2], strict=True):
        assert np.any(mask)
        assert np.all(variable.numpy()[mask] == 0.0)
