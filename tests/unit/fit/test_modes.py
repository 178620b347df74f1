"""Modes that one fit misses: found by the others, and mixed."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import bernflow as bf
from bernflow.fit.checks.probes import missed_modes
from bernflow.fit.modes import CrossDensities, choose_parts, distinct_starts, merge, missing_mass
from bernflow.fit.start import Gaussian
from bernflow.flows.affine import DiagonalAffine
from bernflow.flows.gaussian import LocationScale
from bernflow.flows.mixture import Mixture
from bernflow.target import Target

DISTANCE = 8.0
LOW = bf.Training(order=4)
SMALL = bf.Training(order=4, num_particles=8)


def densities_of(locs, share=0.5, num=4000):
    """Judge normal flows at the given places; the target is a mixture of N(0, 1) and N(8, 1)."""
    rng = np.random.default_rng(0)
    x = np.stack([loc + rng.normal(size=num) for loc in locs])
    log_p = np.logaddexp(np.log1p(-share) + stats.norm.logpdf(x), np.log(share) + stats.norm.logpdf(x, DISTANCE))
    return CrossDensities(log_p + 3.0, np.stack([stats.norm.logpdf(x, loc) for loc in locs]))


@pytest.mark.parametrize("share", [0.5, 0.3, 0.02])
def test_missing_mass_is_the_share_of_the_other_mode(share):
    found = densities_of([0.0, 0.0, DISTANCE], share)
    # Four standard errors of 12,000 draws, one third of which lie in the other mode.
    error = 4 * share * (1 - share) / np.sqrt(3000)
    assert missing_mass(found, 0) == pytest.approx(share, abs=error + 1e-4)
    assert missing_mass(found, 2) == pytest.approx(1 - share, abs=error + 1e-4)


def test_nothing_is_missing_where_all_found_the_same():
    found = densities_of([0.0, 0.05], share=1e-300)
    assert missing_mass(found, 0) < 1e-3


def test_a_restart_that_went_astray_is_no_missing_mass():
    found = densities_of([0.0, -30.0], share=1e-300)
    assert missing_mass(found, 0) < 1e-3
    broken = CrossDensities(found.log_p.copy(), found.log_q.copy())
    broken.log_p[1], broken.log_q[:, 1] = -np.inf, np.nan
    assert missing_mass(broken, 0) < 1e-3


def test_distinct_starts_come_first():
    loc = jnp.array([[0.0, 0.0], [0.1, 0.0], [9.0, 0.0], [9.0, 0.2], [0.0, 9.0]])
    candidates = Gaussian(loc, jnp.broadcast_to(jnp.eye(2), (5, 2, 2)), jnp.arange(5.0, 0.0, -1.0))
    assert distinct_starts(candidates, 1) == [0]
    assert distinct_starts(candidates, 3) == [0, 2, 4]
    assert distinct_starts(candidates, 5) == [0, 2, 4, 1, 3]
    assert len(distinct_starts(candidates, 8)) == 8


def test_a_mixture_drops_what_was_found_twice():
    found = densities_of([0.0, 0.1, DISTANCE], share=0.3)
    assert choose_parts(found, 3) == [0, 2]
    assert choose_parts(found, 1) == [0]
    assert choose_parts(densities_of([0.0, 0.1]), 2) in ([0], [1])


def test_a_mixture_takes_a_light_mode():
    assert choose_parts(densities_of([0.0, 0.1, DISTANCE], share=0.02), 3) == [0, 2]
    # One that only moments notice, where it was asked for.
    lighter = densities_of([0.0, 0.1, DISTANCE], share=0.002)
    assert choose_parts(lighter, 3) == [0]
    assert choose_parts(lighter, 3, gain=0.0006) == [0, 2]


def test_a_giant_weight_or_a_broken_flow_does_not_lead_the_choice():
    found = densities_of([0.0, 0.05, DISTANCE], share=0.3)
    # One draw of a worse flow that by its weight alone would make it the best by evidence.
    found.log_p[1, 0] += 20.0
    found.log_p[1, 1:] -= 0.5
    broken = CrossDensities(
        np.pad(found.log_p, ((0, 1), (0, 0)), constant_values=np.nan), np.full((4, 4, 4000), np.nan)
    )
    broken.log_q[:3, :3], broken.log_q[3, :3], broken.log_q[:3, 3] = found.log_q, -np.inf, -np.inf
    assert choose_parts(broken, 4) == [0, 2]


def test_merged_weights_are_those_of_the_modes():
    flows = [LocationScale(DiagonalAffine(jnp.array([loc]), jnp.ones(1))) for loc in (0.0, DISTANCE)]
    found = merge(flows, densities_of([0.0, DISTANCE], share=0.3))
    assert isinstance(found, Mixture)
    assert np.exp(found.log_weights) == pytest.approx([0.7, 0.3], abs=0.01)
    assert merge(flows[:1], densities_of([0.0])) is flows[0]


def test_a_draw_without_inverse_under_another_component_has_no_density_there():
    class Overflowing(LocationScale):
        def log_prob(self, x):
            return jnp.full(x.shape[0], jnp.nan)

    sound = LocationScale(DiagonalAffine(jnp.zeros(1), jnp.ones(1)))
    mixture = Mixture((sound, Overflowing(DiagonalAffine(jnp.zeros(1), jnp.ones(1)))), jnp.zeros(2))
    x = jnp.array([[0.0], [1.0]])
    assert mixture.log_prob(x) == pytest.approx(stats.norm.logpdf(np.array([0.0, 1.0])) + np.log(0.5), rel=1e-5)
    assert np.isfinite(mixture.sample_and_log_prob(jax.random.key(0), 50)[1]).all()


@functools.cache
def two_modes(share):
    """Two unit Gaussians in the plane, 8 sd apart; one function for all tests, so that it is compiled once."""
    centers = jnp.array([[-DISTANCE / 2, 0.0], [DISTANCE / 2, 0.0]])

    def logp(x):
        return jax.nn.logsumexp(jnp.log(jnp.array([1 - share, share])) - 0.5 * jnp.sum((x - centers) ** 2, -1))

    return bf.from_log_density(logp, init=np.array([0.5, 0.5]))


@pytest.mark.parametrize(("num", "fewest"), [(4, 3), pytest.param(10, 8, marks=pytest.mark.slow)])
def test_restarts_detect_a_missed_mode(num, fewest):
    model = two_modes(0.5)
    caught, told = [], []
    for key in range(num):
        with warnings.catch_warnings(record=True) as warned:
            warnings.filterwarnings("always", "bernflow: Poor", UserWarning)
            found = bf.fit(model, key=key, restarts=4, steps=100, training=SMALL, progress=False).diagnostics
        if found.verdict == "poor" and "components=2" in found.status:
            caught.append(found)
            told.append("".join(str(warning.message) for warning in warned))
    # Measured: 10 of 10.
    assert len(caught) >= fewest
    assert all(d.missing_mass == pytest.approx(0.5, abs=0.05) for d in caught)
    assert all("other starts found" in text for text in told)


@pytest.mark.slow
def test_starts_that_were_not_taken_tell_of_a_missed_mode():
    model, found = two_modes(0.3), []
    for key in range(10):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "bernflow: Poor", UserWarning)
            found.append(bf.fit(model, key=key, components=1, training=LOW, progress=False).diagnostics)
    # Eight paths, each to either side of the middle, all miss one side with one of 128 keys.
    caught = [d for d in found if d.verdict == "poor" and "components=2" in d.status]
    assert len(caught) >= 9
    # A draw that has met the other mode has a giant weight: what the share is a share of is uncertain then.
    assert sum(round(d.missing_mass, 1) in (0.3, 0.7) for d in caught) >= 9


def test_a_mixture_is_fitted_unasked_where_one_flow_misses_a_mode():
    post = bf.fit(two_modes(0.3), training=LOW, progress=False)
    assert isinstance(post.distribution, Mixture)
    assert post.diagnostics.verdict == "good"
    assert sorted(np.exp(post.distribution.log_weights)) == pytest.approx([0.3, 0.7], rel=0.05)


def test_a_fit_that_holds_the_mass_around_every_probe_misses_nothing():
    normal = np.random.default_rng(0).normal(size=(20_000, 2))
    target = Target(two_modes(0.5))
    probes = Gaussian(
        loc=jnp.array([[-DISTANCE / 2, 0.0], [DISTANCE / 2, 0.0]]),
        factor=jnp.stack([jnp.eye(2)] * 2),
        elbo=jnp.full(2, np.log(np.pi)),
    )
    offset = np.array([DISTANCE / 2, 0.0])
    left, right = normal - offset, normal + offset
    both = np.concatenate([left, right])
    assert missed_modes(probes, target, both, np.log(2 * np.pi), jax.random.key(0))[1] is None
    found, places = missed_modes(probes, target, left, np.log(np.pi), jax.random.key(0))
    assert np.asarray(places.loc).tolist() == [[DISTANCE / 2, 0.0]]
    # The ellipsoid holds all but 0.7 % of the mode, and 1,000 weights are constant.
    assert found.share == pytest.approx(0.5, abs=0.01)


def test_a_mixture_covers_both_modes_with_their_weights():
    training = bf.Training(num_particles=16, order=4)
    post = bf.fit(two_modes(0.3), components=2, steps=300, training=training, progress=False)
    assert isinstance(post.distribution, Mixture)
    weights = np.exp(post.distribution.log_weights)
    assert sorted(weights) == pytest.approx([0.3, 0.7], rel=0.05)
    assert post.diagnostics.verdict == "good"
    # 4 standard errors of the evidence 2 pi, and of the mean.
    assert post.diagnostics.log_evidence == pytest.approx(
        np.log(2 * np.pi), abs=4 * post.diagnostics.log_evidence_se + 1e-3
    )
    right = post.draws(4000)["x"][:, 0] > 0
    assert right.mean() == pytest.approx(0.3, abs=0.05)


@pytest.mark.slow
def test_flows_that_are_trained_together_share_a_ring():
    # No flow can be a ring: somewhere it is cut. Alone, the best of four parts leaves 0.1 nats.
    model = bf.from_log_density(
        lambda x: -0.5 * ((jnp.sqrt(jnp.sum(x**2) + 1e-9) - 4.0) / 0.5) ** 2, init=jnp.array([1.0, 0.5])
    )
    post = bf.fit(model, components=4, restarts=8, tolerance=0, progress=False)
    assert isinstance(post.distribution, Mixture)
    # The integral of r exp(-(r - 4)^2 / (2 0.5^2)) over r, times 2 pi, but for what is left of r = 0.
    log_evidence = np.log(2 * np.pi * 4.0 * 0.5 * np.sqrt(2 * np.pi))
    assert log_evidence - np.mean(post.log_weights(20_000, 0)) < 0.01
    assert post.diagnostics.verdict == "good"
    angle = np.arctan2(*post.draws(20_000)["x"].T)
    shares = np.histogram(angle, 8, (-np.pi, np.pi))[0] / 20_000
    np.testing.assert_allclose(shares, 1 / 8, atol=0.015)  # six standard errors


def test_a_mixture_of_starts_that_is_the_posterior_is_not_trained():
    # So near that some draws of each mode lie in the next one: alone, no flow is the posterior.
    angle = np.arange(4) * np.pi / 2
    centers = 5.4 * jnp.stack([jnp.cos(angle), jnp.sin(angle)], -1)
    model = bf.from_log_density(
        lambda x: jax.nn.logsumexp(-0.5 * jnp.sum((x - centers) ** 2, -1)) - np.log(4 * 2 * np.pi), init=jnp.zeros(2)
    )
    post = bf.fit(model, components=4, restarts=4, key=0, progress=False)
    assert post.settings["steps"] == 0
    assert abs(post.diagnostics.elbo) < 0.002  # the density integrates to one
    np.testing.assert_allclose(np.exp(post.distribution.log_weights), 0.25, atol=0.02)
