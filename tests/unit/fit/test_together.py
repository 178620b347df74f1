"""Many data sets at once are fitted as `bf.fit` fits each of them."""

import numpy as np
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.fit import together
from bernflow.fit.settings import resolve_settings
from bernflow.fit.together import fit_together
from bernflow.keys import as_key
from bernflow.precision import use_precision

RNG = np.random.default_rng(0)
DATA = RNG.normal([[0.0], [0.5], [3.0], [-1.0]], [[1.0], [0.3], [2.0], [0.1]], (4, 6))


def regression(y):
    return bf.Model(
        prior={"s": dist.HalfNormal(1.0), "b": dist.Normal(0.0, 1.0).expand([2]).to_event(1)},
        likelihood=lambda theta, x: dist.Normal(theta["b"][0] + theta["b"][1] * x, theta["s"]),
        y=y,
        x=np.linspace(-1, 1, 6),
    )


@pytest.fixture
def calls(monkeypatch):
    """Count how many fits take their steps in every call of compiled ones."""
    nums, call = [], together.take_steps_together

    def counted(chunks, size):
        nums.append(len(chunks))
        return call(chunks, size)

    monkeypatch.setattr(together, "take_steps_together", counted)
    return nums


def compared(models, size, **how):
    settings = resolve_settings(**how)
    with use_precision(settings.precision):
        found = dict(fit_together(models, settings, [as_key(key) for key in range(len(models))], size))
    for key, model in enumerate(models):
        alone, post = bf.fit(model, key=key, progress=False, **how), found[key]
        assert post.settings["steps"] == alone.settings["steps"]
        assert post.diagnostics.verdict == alone.diagnostics.verdict
        # The compiler orders sums in other ways; training makes no more of that than this.
        np.testing.assert_allclose(post.history["elbo"], alone.history["elbo"], rtol=1e-7)
        for name, values in alone.draws(100, weighted=False).items():
            np.testing.assert_allclose(post.draws(100, weighted=False)[name], values, rtol=1e-6, atol=1e-7)
        yield alone, post


def test_default_fits_of_several_data_sets_are_those_of_each_alone(calls):
    model = regression(DATA[0])
    models = [model.with_observed({"y": y}) for y in DATA]
    steps = [alone.settings["steps"] for alone, _ in compared(models, 3)]
    # The first three begin together, and the last as soon as one of them has ended.
    assert calls[0] == 3
    assert sum(calls) == sum(num // 250 for num in steps)


def test_a_given_number_of_steps_is_judged_briefly(calls):
    model = regression(DATA[0])
    for alone, post in compared([model.with_observed({"y": y}) for y in DATA[:2]], 2, steps=500):
        assert post.diagnostics.num_draws < alone.diagnostics.num_draws
    assert calls == [2, 2]


@pytest.mark.slow
def test_structured_starts_are_found_one_after_the_other():
    groups = np.repeat(np.arange(36), 4)

    def model(y):
        return bf.Model(
            prior={
                "m": dist.Normal(0.0, 1.0),
                "t": dist.HalfNormal(1.0),
                "a": lambda th: dist.Normal(th["m"], th["t"]).expand([36]).to_event(1),
            },
            likelihood=lambda theta, x: dist.Normal(theta["a"][x], 0.5),
            y=y,
            x=groups,
        )

    rng = np.random.default_rng(1)
    first = model(rng.normal(size=len(groups)))
    models = [first, first.with_observed({"y": 2.0 * rng.normal(size=len(groups))})]
    for alone, _ in compared(models, 2):
        assert type(alone.distribution).__name__ == "StructuredBernsteinFlow"
