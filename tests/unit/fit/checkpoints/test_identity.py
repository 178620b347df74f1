"""What a fit depends on: other constants, code or data are another fit."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import bernflow as bf
from bernflow.errors import ArgumentError
from bernflow.fit.checkpoints.identity import differences, identify
from bernflow.fit.settings import Training, resolve_settings
from bernflow.keys import as_key
from bernflow.models import as_model

Y = np.random.default_rng(0).normal(0.3, 1.0, 20_000)
CODE = "another code or constants"


def settings(optimizer=None):
    return resolve_settings(family="gaussian", steps=10, training=Training(optimizer=optimizer))


def told(one, other):
    return differences(*(identify(model, settings(), as_key(0)) for model in (one, other)))


def scaled(y, scale):
    mu = numpyro.sample("mu", dist.Normal(0.0, scale))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def test_the_posterior_of_another_prior_is_not_returned(tmp_path):
    how = {"family": "gaussian", "steps": 20, "progress": False, "resume": tmp_path}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "bernflow: ")
        bf.fit(scaled, Y, 1.0, **how)
    with pytest.raises(ArgumentError, match=rf"result of another fit \({CODE}; another log density"):
        bf.fit(scaled, Y, 2.0, **how)


def density(shift, scale=1.0):
    data = Y + shift
    return bf.from_log_density(lambda x: -0.5 * scale * jnp.sum((data - x) ** 2), init=np.array(0.0))


def declared(scale):
    return bf.Model(prior={"mu": dist.Normal(0.0, scale)}, likelihood=lambda th: dist.Normal(th["mu"], 1.0), y=Y)


def test_arrays_that_a_density_closes_over_count():
    assert told(density(0.0), density(0.0)) == []
    assert CODE in told(density(0.0), density(1e-9))
    assert told(density(0.0), density(0.0, 1.0 + 1e-12)) == [CODE]


def test_parameters_of_a_prior_count():
    assert told(declared(1.0), declared(1.0)) == []
    assert told(declared(1.0), declared(2.0)) != []
    assert told(declared(1.0), declared(np.array(1.0 + 1e-12))) != []


class Hidden:
    """Its content is not to be seen, but the density tells it."""

    def __init__(self, scale):
        self.scale = scale

    def __reduce_ex__(self, protocol):
        raise TypeError("not this one")


def hidden(scale):
    inside = Hidden(scale)

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, inside.scale))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    return as_model(model, (Y,), {})


def test_terms_are_compared_to_rounding():
    assert told(hidden(1.0), hidden(1.0)) == []
    assert told(hidden(1.0), hidden(1.0 + 1e-6)) == ["another log density"]
    ours = identify(hidden(1.0), settings(), as_key(0))
    terms = ours["log_density"]
    rounded = {name: [repr(float(value) * (1 + 1e-13)) for value in values] for name, values in terms.items()}
    assert differences({**ours, "log_density": rounded}, ours) == []
    for other in ({}, None, ["0.0"], {name: values[:1] for name, values in terms.items()}):
        assert differences({**ours, "log_density": other}, ours) == ["another log density"]


@pytest.mark.parametrize(
    "other",
    [optax.adam(optax.cosine_decay_schedule(1e-2, 2000)), optax.chain(optax.clip(1e6), optax.adam(1e-2))],
)
def test_optimizers_are_told_apart_beyond_their_first_steps(other):
    model, mine = density(0.0), optax.adam(optax.cosine_decay_schedule(1e-2, 1000))
    one, two = (identify(model, settings(optimizer), as_key(0)) for optimizer in (mine, other))
    assert differences(one, two) == ["another optimizer"]


def test_networks_are_told_apart_by_more_than_their_weights():
    eqx = pytest.importorskip("equinox")

    def model(activation):
        network = eqx.nn.MLP(1, 1, 2, 1, activation=activation, key=jax.random.key(0))
        likelihood = lambda th, x, h: dist.Normal(th["a"] + h[:, 0], 1.0)  # noqa: E731
        return bf.Model(
            prior={"a": dist.Normal(0, 1)},
            likelihood=likelihood,
            y=Y[:20],
            x=Y[:20],
            network=network,
            images=np.zeros((20, 1)),  # for which all activations of zero are the same
        )

    assert told(model(jax.nn.relu), model(jax.nn.relu)) == []
    assert CODE in told(model(jax.nn.relu), model(jnp.tanh))


@pytest.mark.filterwarnings("ignore")
def test_pymc_models_are_told_apart():
    pm = pytest.importorskip("pymc")

    def model(scale, wide=False):
        with pm.Model() as built:
            mu = pm.Normal("mu", 0.0, scale)
            s = pm.Uniform("s", 0.0, 4.0 if wide else 3.0)
            pm.CustomDist("z", mu, logp=lambda value, mu: -((value - mu) ** 2) * scale)
            pm.Normal("y", mu, s, observed=Y[:50])
        return bf.from_pymc(built)

    assert told(model(1.0), model(1.0)) == []
    assert CODE in told(model(1.0), model(1.0 + 1e-12))
    assert CODE in told(model(1.0), model(1.0, wide=True))
