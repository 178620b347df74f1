"""Models that go wrong: each ends in a posterior with a true verdict or in an error that says what happened."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.models import as_model
from bernflow.models.inputs import compiled_code
from bernflow.posterior import sampling
from bernflow.target import layout_of

QUICK = {"family": "gaussian-fullrank", "steps": 20, "progress": False}


class Moody:
    """A model that raises the n-th time that it is run."""

    def __init__(self, at):
        self.calls, self.at = 0, at

    def count(self):
        self.calls += 1
        if self.calls == self.at:
            raise RuntimeError(f"not today, number {self.at}")

    def __call__(self, y):
        self.count()
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)

    def density(self, x):
        self.count()
        return -0.5 * x**2


# From the first look at the model, over the draws of its prior and the start, to the training.
@pytest.mark.parametrize("at", [1, 3, 4, 5, 6])
def test_a_model_that_raises_later(at):
    model = Moody(at)
    with pytest.raises(bf.ModelError, match=f"failed with RuntimeError: not today, number {at}"):
        bf.fit(model, np.array([0.1, 0.2]), **QUICK)
    assert model.calls == at


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_log_density_that_raises_later(at):
    model = Moody(at)
    with pytest.raises(bf.ModelError, match=f"failed with RuntimeError: not today, number {at}"):
        bf.fit(bf.from_log_density(model.density, 0.0), **QUICK)


def test_a_host_function_that_fails_while_it_is_computed():
    def on_host(x):
        raise RuntimeError("the solver did not converge")

    @jax.custom_jvp
    def logp(x):
        return jax.pure_callback(on_host, jax.ShapeDtypeStruct((), x.dtype), x, vmap_method="sequential")

    logp.defjvp(lambda primals, tangents: (logp(*primals), -primals[0] * tangents[0]))
    with pytest.raises(bf.ModelError, match="failed while it was computed: RuntimeError: the solver did not converge"):
        bf.fit(bf.from_log_density(lambda x: logp(x), 0.0), **QUICK)


def test_too_little_memory_is_told_with_what_to_do():
    text = "RESOURCE_EXHAUSTED: Out of memory allocating 1099511627776 bytes."
    with pytest.raises(bf.ModelError, match=r"more memory than is available: RESOURCE_EXHAUSTED.*\n.*batch_size="):  # noqa: SIM117
        with compiled_code():
            raise jax.errors.JaxRuntimeError(text)


def test_derived_quantities_that_fail():
    broken = []

    def model(y):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
        if broken:
            raise RuntimeError("gone")

    accepted = as_model(model, (np.array([0.1, 0.2]),), {})
    broken.append(True)
    with pytest.raises(bf.ModelError, match="run for its derived quantities, failed with RuntimeError: gone"):
        sampling.constrain(layout_of(accepted), accepted, np.zeros((3, 1)))


# One compiled model with many faces: what is wrong is in the data.
OUTSIDE = np.array([-np.inf, np.nan, np.inf])


def face(x, y, edge, outside, scale):
    b = numpyro.sample("b", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    numpyro.factor("edge", jnp.where(b[0] < edge, 0.0, jnp.asarray(OUTSIDE)[outside]))
    numpyro.sample("y", dist.Normal(x @ b, s * scale), obs=y)


ROWS = np.random.default_rng(3).normal(size=(8, 2))
RESPONSE = ROWS @ [1.0, -0.5] + 0.3 * np.random.default_rng(4).normal(size=8)
USUAL = {"x": ROWS, "y": RESPONSE, "edge": np.inf, "outside": 0, "scale": 1.0}
VERDICTS = ("good", "usable", "poor")
FACES = {
    "zero on one side": ({"edge": 1.0}, ("usable", "poor")),
    "not a number on one side": ({"edge": 1.0, "outside": 1}, ("usable", "poor")),
    "infinite on one side": ({"edge": 1.0, "outside": 2}, ("poor",)),
    "a huge outlier": ({"y": np.append(RESPONSE[:-1], 1e6)}, VERDICTS),
    "a column of zeros": ({"x": ROWS * [1.0, 0.0]}, VERDICTS),
    "columns that repeat each other": ({"x": ROWS[:, :1] * [1.0, 3.0]}, VERDICTS),
    "hardly any variance": ({"scale": 1e-9}, VERDICTS),
}


def arguments(changes):
    """Return arrays, because other numbers would compile anew."""
    return [np.asarray(value) for value in (USUAL | changes).values()]


@pytest.mark.filterwarnings("ignore:bernflow. ")
@pytest.mark.parametrize("name", FACES)
def test_what_is_wrong_with_the_data_or_the_density(name):
    changes, verdicts = FACES[name]
    post = bf.fit(face, *arguments(changes), **QUICK)
    found = post.diagnostics
    assert found.verdict in verdicts
    assert found.improper is None
    assert all(np.isfinite(values).all() for values in post.draws(100).values())
    if found.verdict == "good":  # then its draws are those of the posterior
        assert found.ess_fraction > 0.96
        assert found.num_nonfinite == 0


def test_data_that_overflow_are_refused():
    with pytest.raises(bf.ModelError, match=r"the term of 'y' is -inf at 104 of 104.*standardize"):
        bf.fit(face, *arguments({"y": np.append(RESPONSE[:-1], 1e200)}), **QUICK)
