"""Steps compiled together and one at a time do the same."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bernflow.fit.train import scan as steps


@pytest.mark.parametrize("length", [1, 3])
def test_scan_does_as_jax_does(length):
    def step(carry, inputs):
        a, b = inputs
        return carry + a, {"product": carry * b}

    inputs = jnp.arange(1.0, 1.0 + length), jnp.arange(2.0 * length).reshape(length, 2)
    expected = jax.lax.scan(step, jnp.array(2.0), inputs)
    jax.tree.map(np.testing.assert_array_equal, steps.scan(step, jnp.array(2.0), inputs), expected)


def test_one_step_is_compiled_without_a_loop():
    def one(carry, inputs):
        return carry * inputs, carry

    def has_loop(length):
        return "while" in jax.jit(lambda x: steps.scan(one, jnp.array(1.0), x)).lower(jnp.ones(length)).as_text()

    assert has_loop(2)
    assert not has_loop(1)


def test_network_steps_are_single_on_a_cpu(monkeypatch):
    monkeypatch.setattr(steps.jax, "default_backend", lambda: "cpu")
    assert steps.network_steps_at_once() == 1
    monkeypatch.setattr(steps.jax, "default_backend", lambda: "gpu")
    assert steps.network_steps_at_once() == steps.MAX_WITH_NETWORK
