import numpy as np
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.diagnostics.importance import ess_fraction, log_evidence
from bernflow.diagnostics.verdict import judge
from bernflow.fit.batches import many_rows, stage
from bernflow.fit.batches.many_rows import Judged, find_mode, judge_by_part, with_part
from bernflow.fit.batches.rows import Batches
from bernflow.fit.train.objective import BatchDensity
from bernflow.keys import as_key
from bernflow.posterior import sampling
from bernflow.precision import use_precision
from bernflow.target import Target

NUM, PART = 40_000, 16_000


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    x = rng.normal(size=NUM)
    y = (rng.uniform(size=NUM) < 1 / (1 + np.exp(1 - x))).astype(int)
    return bf.Model(
        prior={"a": dist.Normal(0, 5), "b": dist.Normal(0, 5)},
        likelihood=lambda th, x: dist.Bernoulli(logits=th["a"] + th["b"] * x),
        y=y,
        x=x,
    )


@pytest.fixture(scope="module")
def few_are_many():
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(stage, "MAX_JUDGED_ROWS", 1000)
    monkeypatch.setattr(many_rows, "NUM_PART_ROWS", PART)
    yield
    monkeypatch.undo()


@pytest.fixture(scope="module")
def posterior(model, few_are_many):
    return bf.fit(model, batch_size=200, steps=1000, family="gaussian-fullrank", progress=False)


def test_a_part_of_the_rows_judges_like_all(model, few_are_many, posterior):
    with use_precision("float64"):
        batches = Batches(model.rows(), NUM, 100, seed=1)
        light = Target(model.without_rows())
        density = BatchDensity(light.layout, light.model, None, None, batches.first(500))
        points = sampling.sample(posterior.distribution, as_key(0), 2000)[0]
        factor = np.linalg.cholesky(np.cov(points.T))
        # The start is 30 standard deviations off.
        start = points.mean(0) + 30 * factor @ np.array([1.0, -1.0])
        anchor = find_mode(density, batches, start, factor)
        distances = np.abs(np.linalg.solve(factor, anchor.gradient @ factor @ factor.T))
        assert (distances < 0.1).all()
        judged = judge_by_part(posterior.distribution, density, batches, anchor, as_key(5), 2000)
        x, log_q = sampling.sample(posterior.distribution, as_key(5), 2000)
        exact = sampling.log_density(light.layout, model, x) - log_q
    difference = judged.log_weights - exact
    # Its noise is what it says: 16 pieces tell a standard error to 18 %, and one draw of it to a factor of three.
    assert difference.std() < 3 * judged.noise
    assert judged.noise < 0.1
    assert abs(difference.mean()) < 4 * judged.offset
    assert exact.std() > 0.01


def test_the_verdict_says_what_it_rests_on(posterior):
    told = posterior.diagnostics
    assert told.verdict != "poor"
    assert f"Judged by a random {PART:,} of {NUM:,} rows and the gradient of all rows at the mode" in told.status
    # All rows, at other draws, say the same.
    exact = posterior.log_weights(2000, key=3)
    evidence, error = log_evidence(exact)
    assert abs(told.log_evidence - evidence) < 4 * np.hypot(told.log_evidence_se, error)
    assert told.log_evidence_se < 0.05
    assert ess_fraction(exact) > 0.99


def test_too_much_noise_cannot_be_called_good():
    batches = Batches({"x": np.zeros(50)}, 50, 5, seed=0)
    good = judge(0.001 * np.random.default_rng(0).normal(size=1000))
    assert good.verdict == "good"
    told = with_part(good, Judged(np.zeros(1), 0.5, 2.0), batches)
    assert told.verdict == "usable"
    assert told.status.startswith("Usable (")
    assert "uncertain by 0.5 nats, too much to call the fit good." in told.status
    assert told.log_evidence_se > 2.0


def test_very_many_rows_need_no_more_steps():
    assert stage._default_steps(10**6, has_weights=False, many=True) == stage.MAX_STEPS
    assert stage._default_steps(4000, has_weights=False) == 20_000
