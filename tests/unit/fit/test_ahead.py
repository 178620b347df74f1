from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import bernflow as bf
from bernflow import background


def fit(scale):
    model = bf.from_log_density(lambda x: -0.5 * jnp.sum(x**2 / scale + jnp.cos(x)), init=jnp.zeros(3))
    return bf.fit(model, steps=2, training=bf.Training(num_particles=4, order=3), progress=False)


@pytest.mark.filterwarnings("ignore:bernflow")
def test_everything_is_compiled_once_and_the_posterior_is_the_same(monkeypatch):
    expected = fit(2.0).draws(5)
    jax.clear_caches()
    monkeypatch.setattr(background, "num_cores", lambda: 2)
    compiled = Counter()

    def listen(event, *_, fun_name="", **__):
        compiled[fun_name] += "backend_compile" in event

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        posterior = fit(2.0)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    # Prepared for the very shapes and types that are needed: else there would be two.
    names = ("draw_starts", "find_start", "_stacked", "fresh_state", "draw_noise", "run_chunk")
    names += ("noise_block", "push_block", "log_density_block")
    assert {name: compiled[f"jit({name})"] for name in names} == dict.fromkeys(names, 1)
    for name, values in posterior.draws(5).items():
        assert np.array_equal(values, expected[name])
