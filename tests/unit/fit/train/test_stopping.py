from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest
from scipy.stats import norm

import bernflow as bf
from bernflow.errors import ArgumentError
from bernflow.fit import evaluation
from bernflow.fit.evaluation import (
    NUM_DIAGNOSTIC_DRAWS,
    NUM_EVALUATION_DRAWS,
    num_diagnostic_draws,
    num_evaluation_draws,
    weigh_widened,
)
from bernflow.fit.train.divergence import change, unlimited_distance
from bernflow.fit.train.recipe import Cycle
from bernflow.fit.train.state import begin
from bernflow.fit.train.stopping import Decision, Ending, Fit, StoppingRule, _is_invisible
from bernflow.flows.affine import DiagonalAffine
from bernflow.flows.gaussian import LocationScale
from bernflow.keys import as_key
from bernflow.posterior import sampling
from bernflow.target import Target


def log_weights(distance, num=4000):
    """Log weights of a fit that is so many nats from the posterior."""
    return np.sqrt(2 * distance) * np.random.default_rng(0).normal(size=num)


def rule(tolerance=None, dim=10, more=None, **kwargs):
    """A rule that sees the given weights, and `more` of them where it looks at many draws."""
    draws = SimpleNamespace(
        recipe=SimpleNamespace(tolerance=tolerance),
        target=SimpleNamespace(dim=dim),
        may_be_many=lambda: more is not None,
        many=lambda state, weights, tolerance: more[state],
        distance_in_tails=lambda *args: 0.0,
    )
    return StoppingRule(draws, **kwargs)


def is_within(weights, tolerance, dim):
    return rule(tolerance, dim).is_within(weights)


def compare(before, after, tolerance=None):
    return rule(tolerance).compared(change(before, after))


@pytest.mark.parametrize("distance", [0.001, 0.01, 0.05])
def test_a_tolerance_is_met_from_the_distance_on(distance):
    assert is_within(log_weights(distance), 1.5 * distance, 10)
    assert not is_within(log_weights(distance), 1.05 * distance, 10)


def test_the_start_may_end_a_training():
    near, far = (Fit("near", log_weights(d)[None]) for d in (0.005, 0.05))
    assert rule(0.01).at_start(near) is Ending.IF_GOOD
    assert rule(0.01).at_start(far) is Ending.NOT_YET
    # Who allows more than two default tolerances does not ask for a good fit.
    assert rule(1.0).at_start(far) is Ending.NOW
    # Without a tolerance, as many draws as for the verdict must agree.
    exact = Fit("exact", log_weights(1e-6)[None])
    assert rule(more={"exact": log_weights(1e-6)[None]}).at_start(exact) is Ending.NOW
    assert rule(more={"exact": log_weights(1e-2)[None]}).at_start(exact) is Ending.NOT_YET
    assert rule().at_start(exact) is Ending.NOT_YET  # no time for them


@pytest.mark.parametrize(
    ("tolerance", "before", "after", "cycle", "number", "expected"),
    [
        # To a tolerance: met, not yet met, given up after a long cycle in vain, after any where it is out of reach.
        (0.01, 0.05, 0.005, Cycle(250), 0, (True, Ending.IF_GOOD)),
        (0.01, 0.05, 0.02, Cycle(250), 0, (True, Ending.NOT_YET)),
        (0.01, 0.0145, 0.014, Cycle(500), 1, (True, Ending.NOW)),
        (0.01, 0.0145, 0.014, Cycle(250), 0, (True, Ending.NOT_YET)),
        (0.01, 0.0145, 0.014, Cycle(250), 1, (True, Ending.IF_GOOD)),
        (0.01, 0.052, 0.05, Cycle(250), 0, (True, Ending.NOW)),
        (0.01, 0.02, 0.05, Cycle(500), 1, (False, Ending.NOW)),
        # Without: near enough, gaining, in vain in a short, a long, and a bold cycle, and where little is left.
        (None, 0.01, 1e-4, Cycle(1000), 1, (True, Ending.NOW)),
        (None, 0.05, 0.01, Cycle(2000), 1, (True, Ending.NOT_YET)),
        (None, 0.01, 0.01, Cycle(1000), 1, (False, Ending.NOT_YET)),
        (None, 0.01, 0.01, Cycle(2000), 1, (False, Ending.NOW)),
        (None, 0.01, 0.01, Cycle(2000, 0.5, bold=True), 1, (False, Ending.NOT_YET)),
        (None, 0.001, 0.001, Cycle(500), 1, (False, Ending.NOW)),
    ],
)
def test_what_follows_from_a_cycle(tolerance, before, after, cycle, number, expected):
    kept, new = Fit("kept", log_weights(before)[None]), Fit("new", log_weights(after)[None])
    found = rule(tolerance, more={"kept": kept.weights, "new": new.weights}).after_cycle(number, cycle, kept, new)
    assert found == Decision(*expected)


def test_more_draws_tell_whether_a_cycle_was_in_vain():
    kept, new = Fit("kept", log_weights(0.01)[None]), Fit("new", log_weights(0.01)[None])
    better = {"kept": log_weights(0.02)[None], "new": log_weights(0.01)[None]}
    assert rule(None, more=better).after_cycle(3, Cycle(4000), kept, new) == Decision(True, Ending.NOT_YET)
    assert rule(None).after_cycle(3, Cycle(4000), kept, new) == Decision(False, Ending.NOW)


def test_a_goal_that_the_first_cycle_misses_ends_the_training():
    kept, new = Fit("kept", log_weights(0.9)[None]), Fit("new", log_weights(0.3)[None])
    more = {"kept": kept.weights, "new": new.weights}
    for number, goal, ending in ((0, 0.1, Ending.NOW), (0, 0.4, Ending.NOT_YET), (1, 0.1, Ending.NOT_YET)):
        assert rule(0.01, more=more, goal=goal).after_cycle(number, Cycle(250), kept, new).ending is ending


def test_tails_that_are_not_met_are_not_within_any_tolerance():
    heavy = np.random.default_rng(1).exponential(size=4000) * 0.9
    assert not is_within(heavy, 10.0, 10)  # weights with a tail of index 0.9
    assert is_within(-heavy, 10.0, 10)


def test_a_few_draws_where_there_is_no_density_do_not_count_in_full():
    one_far, many_far = (np.zeros(4000) for _ in range(2))
    one_far[0], many_far[::50] = -1000.0, -1000.0
    assert is_within(one_far, 0.01, 10)
    assert not is_within(many_far, 0.1, 10)


def test_arrived_is_nearer_than_anyone_could_see():
    assert _is_invisible(log_weights(1e-4), 0.3)
    assert not _is_invisible(log_weights(1e-3), 0.3)


def test_a_cycle_that_halves_the_distance_is_better_and_worthwhile():
    before, after = log_weights(0.002)[None], log_weights(0.001)[None]
    assert compare(before, after) == (True, True)
    assert compare(after, before) == (False, False)


def test_to_a_tolerance_a_gain_that_nobody_could_see_is_not_worthwhile():
    before, after = log_weights(0.002)[None], log_weights(0.0015)[None]
    assert compare(before, after) == (True, True)
    assert compare(before, after, tolerance=0.01) == (True, False)


def test_to_a_tolerance_a_gain_of_a_small_share_of_the_distance_is_not_worthwhile():
    before, after = log_weights(1.0)[None], log_weights(1.0)[None] + 0.03
    assert compare(before, after) == (True, True)
    assert compare(before, after, tolerance=0.01) == (True, False)
    assert compare(before, after + 0.3, tolerance=0.01) == (True, True)


@pytest.mark.filterwarnings("ignore:bernflow")
def test_training_ends_at_the_tolerance():
    # A skewed posterior: a Gaussian is 0.05 nats off.
    model = bf.from_log_density(lambda x: jnp.sum(2.0 * x - jnp.exp(x)), init=jnp.zeros(2))
    rough, fine = (bf.fit(model, tolerance=tolerance, progress=False) for tolerance in (1.0, 0.005))
    assert rough.settings["steps"] == 0
    assert fine.settings["steps"] in (250, 750)
    assert fine.settings["tolerance"] == 0.005
    # The evidence is exact: two gamma integrals, each Gamma(2) = 1.
    assert -0.0075 < fine.diagnostics.elbo < 0.001
    assert rough.diagnostics.elbo < -0.02


def test_batches_have_no_tolerance():
    model = bf.Model(prior={"mu": dist.Normal(0, 1)}, likelihood=lambda th: dist.Normal(th["mu"], 1), y=np.zeros(10))
    with pytest.raises(ArgumentError, match="batches of rows are trained on for a number of steps"):
        bf.fit(model, batch_size=2, tolerance=0.1)


def test_to_a_tolerance_many_rows_are_looked_at_with_fewer_draws():
    models = [{"x": np.zeros(rows)} for rows in (1, 4_000, 10_000, 10**7)]
    assert [num_evaluation_draws(model) for model in models] == [NUM_EVALUATION_DRAWS] * 4
    assert [num_evaluation_draws(model, 0.01) for model in models] == [4000, 4000, 2000, 1000]
    assert [num_diagnostic_draws(model, 0.01) for model in models] == [20_000, 20_000, 2000, 2000]


def test_few_draws_that_do_not_call_a_fit_good_are_followed_by_more(monkeypatch):
    monkeypatch.setattr(sampling, "MANY_ROWS", 10)
    monkeypatch.setattr(evaluation, "HURRIED_ROWS_TIMES_DRAWS", 0)
    monkeypatch.setattr(evaluation, "MIN_DIAGNOSTIC_DRAWS", 1000)
    rows = np.random.default_rng(1).normal(size=(20, 1))
    wide = bf.Model(prior={"mu": dist.Normal(0, 1)}, likelihood=lambda th: dist.Normal(th["mu"], 1), y=rows[:, 0])
    assert bf.fit(wide, tolerance=0.01, progress=False).diagnostics.num_draws == 1000
    monkeypatch.setattr("bernflow.diagnostics.verdict.MIN_DRAWS_GOOD", 1001)
    assert bf.fit(wide, tolerance=0.01, progress=False).diagnostics.num_draws == NUM_DIAGNOSTIC_DRAWS


def test_the_verdict_of_many_rows_rests_on_fewer_draws():
    numbers = [num_diagnostic_draws({"x": np.zeros(rows)}) for rows in (1, 5_000, 10_000, 10**7)]
    assert numbers == [NUM_DIAGNOSTIC_DRAWS, NUM_DIAGNOSTIC_DRAWS, 10_000, NUM_EVALUATION_DRAWS]


def test_widened_draws_measure_what_is_missing_in_the_tails():
    # A standard normal for a posterior that has three times its density beyond 3 and -3.
    model = bf.from_log_density(lambda x: jnp.sum(-0.5 * x**2 + jnp.log(3.0) * (jnp.abs(x) > 3.0)), init=jnp.zeros(2))
    beyond = 2 * norm.sf(3.0)
    exact = 2 * (np.log1p(2 * beyond) - beyond * np.log(3.0))
    flow = LocationScale(DiagonalAffine(jnp.zeros(2), jnp.ones(2)))
    trainee = begin(jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), flow), optax.identity())
    errors = []
    for key in range(5):
        found = weigh_widened(trainee, 1, Target(model), as_key(key), 20_000, 32)
        errors.append(unlimited_distance(*found) - exact)
    assert np.abs(np.mean(errors)) < 0.06 * exact
    assert np.std(errors) < 0.06 * exact


def test_a_tolerance_is_out_of_reach_of_usable_fits_far_from_it():
    assert rule(0.01).is_out_of_reach(log_weights(0.05))
    assert not rule(0.01).is_out_of_reach(log_weights(0.015))  # near
    assert not rule(0.01).is_out_of_reach(log_weights(3.0))  # poor: weights do not correct it
