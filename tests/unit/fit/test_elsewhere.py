"""Mass that no draw of a fit reaches is found by heated draws and from other starts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.diagnostics.elsewhere import effect_of
from bernflow.diagnostics.findings import Finding
from bernflow.diagnostics.verdict import judge_weights
from bernflow.fit.checks.climbing import climb
from bernflow.fit.checks.evidence import Evidence, Subject, gaussian_of
from bernflow.fit.checks.heated import HeatedDraws, draw_heated, num_heated
from bernflow.fit.checks.probes import missed_modes, ranked, stack
from bernflow.fit.checks.run import run_checks
from bernflow.fit.checks.scan import Scan, standing_out
from bernflow.fit.deadline import Deadline
from bernflow.fit.settings import Training, resolve_settings
from bernflow.fit.start import Gaussian
from bernflow.flows.affine import TriangularAffine
from bernflow.flows.gaussian import LocationScale
from bernflow.flows.mixture import Mixture
from bernflow.keys import as_key
from bernflow.models import as_model
from bernflow.target import Target

SETTINGS = resolve_settings(training=Training(precision="float64"))


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


def normal(x, scale=1.0):
    return jnp.sum(-0.5 * (x / scale) ** 2 - jnp.log(scale) - 0.5 * jnp.log(2 * jnp.pi))


def mixed(first, second, share):
    return lambda x: jnp.logaddexp(jnp.log1p(-share) + first(x), jnp.log(share) + second(x))


def target_of(log_density, dim):
    return Target(bf.from_log_density(log_density, np.zeros(dim)))


def unit(dim, loc=0.0, noise=None):
    return LocationScale(TriangularAffine(jnp.full(dim, loc), jnp.eye(dim)), noise)


def heat(log_density, dim, fit=None, log_share=0.0, num=4000):
    return draw_heated(fit or unit(dim), target_of(log_density, dim), log_share, as_key(0), num)


@pytest.mark.parametrize(
    ("dim", "share", "width"), [(1, 0.2, 30.0), (4, 0.05, 20.0), (10, 0.5, 8.0), (40, 0.3, 5.0), (3, 0.1, 800.0)]
)
def test_mass_of_any_width_around_a_fit_is_found(dim, share, width):
    found = heat(mixed(normal, lambda x: normal(x, width), share), dim, log_share=np.log1p(-share)).found
    # What lies within a few standard deviations of the fit is not called missed.
    assert found.share == pytest.approx(share, rel=0.25 if dim == 1 else 0.15)
    assert found.effective() > 20


def test_a_fit_of_the_posterior_misses_nothing():
    for dim in (1, 5, 30):
        assert heat(normal, dim).found.share < 1e-6


def test_mass_that_comes_to_an_end_is_told_from_a_plateau():
    assert heat(mixed(normal, lambda x: normal(x, 300.0), 0.3), 2, log_share=np.log(0.7)).ends
    assert not heat(lambda x: jnp.logaddexp(normal(x), -2.0 * jnp.log1p(jnp.sum(x**2)) / 2), 2).ends
    assert not heat(normal, 2).ends


def test_wide_mass_along_a_single_coordinate_is_found():
    def slab(x):
        return normal(x[:7]) + normal(x[7], 20.0) + normal(x[8:])

    found = heat(mixed(normal, slab, 0.2), 12, log_share=np.log(0.8)).found
    assert found.share == pytest.approx(0.2, rel=0.4)
    assert effect_of(found, np.random.default_rng(0).normal(size=(4000, 12))).parameter == 7


def test_a_mixture_is_heated_part_by_part():
    def wide(x):
        return normal(x, 20.0)

    def two(x):
        return jnp.logaddexp(normal(x - 5.0), normal(x + 5.0)) - jnp.log(2.0)

    fit = Mixture((unit(2, -5.0), unit(2, 5.0)), jnp.zeros(2))
    assert heat(two, 2, fit).found.share < 1e-6
    assert heat(mixed(two, wide, 0.2), 2, fit, np.log(0.8)).found.share == pytest.approx(0.2, rel=0.2)


def test_noise_that_is_not_normal_is_heated_as_a_whole():
    nu = 5.0
    fit = unit(3, noise=nu)

    def student(x):
        return jnp.sum(dist.StudentT(nu, 0.0, 1.0).log_prob(x))

    assert heat(student, 3, fit).found.share < 1e-3
    found = heat(mixed(student, lambda x: normal(x, 40.0), 0.2), 3, fit, np.log(0.8)).found
    assert found.share == pytest.approx(0.2, rel=0.3)


def test_a_wide_gaussian_is_made_of_what_was_found():
    share, width = 0.3, 20.0
    found = heat(mixed(normal, lambda x: normal(x, width), share), 3, log_share=np.log1p(-share)).found
    draws = np.random.default_rng(0).normal(size=(2000, 3))
    wide = gaussian_of(found, draws).at(0)
    assert np.sqrt(np.diagonal(wide.factor @ wide.factor.T)) == pytest.approx(np.full(3, width), rel=0.2)
    few = gaussian_of(found._replace(points=found.points[:9], log_mass=found.log_mass[:9]), draws).at(0)
    assert np.isfinite(few.factor).all()


def gaussian_at(*centers):
    dim = len(centers[0])
    num = len(centers)
    return Gaussian(np.array(centers, float), np.stack([np.eye(dim)] * num), np.zeros(num))


def test_mass_in_two_ellipsoids_counts_once():
    target = target_of(lambda x: jnp.logaddexp(normal(x), normal(x - 20.0)), 2)
    probes = gaussian_at([0.0, 0.0], [20.0, 20.0], [23.5, 23.5])
    draws = np.random.default_rng(0).normal(size=(20_000, 2))
    found, missed = missed_modes(probes, target, draws, 0.0, as_key(0))
    assert len(missed.loc) == 2
    assert found.share == pytest.approx(0.5, abs=0.03)


def test_gaussians_are_stacked_and_ranked():
    both = stack([gaussian_at([0.0]), gaussian_at([1.0], [2.0])])._replace(elbo=np.array([1.0, np.nan, 3.0]))
    assert ranked(both).loc[:, 0].tolist() == [2.0, 0.0]


def start_at_zero(dim, batch=8):
    return gaussian_at(*[[0.0] * dim] * batch)


def test_paths_from_far_out_find_a_far_mode():
    dim = 6
    target = target_of(mixed(normal, lambda x: normal(x - 12.0), 0.4), dim)
    draws = np.random.default_rng(0).normal(size=(20_000, dim))
    log_weights = np.full(20_000, np.log(0.6))
    told, keys = (judge_weights(log_weights), target, SETTINGS, Deadline.start()), (as_key(0), as_key(1))
    subject = Subject(unit(dim), draws, log_weights, *told, *keys, start_at_zero(dim))
    evidence = run_checks(subject)
    elsewhere = evidence.elsewhere(target.layout.labels())
    assert elsewhere.modes
    assert elsewhere.share == pytest.approx(0.4, rel=0.1)
    # Eight paths more begin where the tempered run ended, and eight at modes of terms.
    particles, scan = "a tempered run of 1,000 particles", "a scan of 100,000 points"
    terms = "2 modes of single terms of the density"
    assert elsewhere.looked == ("4,000 heated draws", "88 starts", particles, scan, terms)
    assert any(np.allclose(place, 12.0, atol=1.0) for place in evidence.places.loc)
    found = subject.judge(evidence)
    assert found.verdict == "poor"
    assert "other starts found" in found.status
    assert subject.alone.verdict == "good"


def test_a_narrower_mode_in_many_dimensions_is_found_by_a_scan():
    """Heated draws, paths and a tempered run miss it: in 20 dimensions its basin is one of 10,000 directions."""
    dim, width, offset = 20, 0.7, np.zeros(20)
    offset[:2] = 40.0, 20.0

    def narrow(x):
        return normal((x - offset), width)

    target = target_of(mixed(normal, narrow, 0.3), dim)
    draws = np.random.default_rng(0).normal(size=(5000, dim))
    log_weights = np.full(5000, np.log(0.7))
    told, keys = (judge_weights(log_weights), target, SETTINGS, Deadline.start()), (as_key(0), as_key(1))
    subject = Subject(unit(dim), draws, log_weights, *told, *keys, start_at_zero(dim))
    before = Evidence(points=np.empty((0, dim)))
    assert Scan().applies(subject, before)
    assert not Scan().applies(subject, Evidence())
    points = Scan().run(subject, before).points
    near = np.sum(((points - offset) / width) ** 2, 1) < np.sum(points**2, 1)
    assert near[:2].all()


def test_points_stand_out_from_those_equally_far():
    log_p = -np.geomspace(1.0, 1e6, 5000)
    log_p[[1000, 3000]] /= 2.0
    log_p[2000:2100] = -np.inf
    out = standing_out(log_p)
    assert set(np.argsort(-out)[:2]) == {1000, 3000}
    assert np.isneginf(out[2000:2100]).all()
    assert np.isneginf(standing_out(np.full(100, -np.inf))).all()


def test_the_best_points_of_two_searches_come_first():
    evidence = Evidence(points=np.array([[1.0], [3.0]])).with_points(np.array([[0.0], [2.0], [4.0]]))
    assert evidence.points[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_a_low_point_in_a_far_basin_is_more_promising_than_what_the_fit_covers():
    offset = np.full(10, 40.0)
    heated = heat(mixed(normal, lambda x: normal(x - offset, 0.8), 0.3), 10, log_share=np.log(0.7))
    assert 0 < heated.missed.sum() < 400
    assert heated.missed[np.argsort(-heated.promise)][: heated.missed.sum()].all()


def test_the_prior_tells_where_to_start():
    def model():
        x = numpyro.sample("x", dist.Normal(1000.0, 300.0).expand([2]).to_event(1))
        numpyro.factor("modes", jnp.logaddexp(normal(x - 1000.0), normal(x - 1500.0)))

    target = Target(as_model(model, (), {}))
    heated = draw_heated(unit(2, 1000.0), target, 0.0, as_key(0), 500)
    probes, num, origin = climb(target, SETTINGS, start_at_zero(2), (heated.points, *[np.empty((0, 2))] * 2), as_key(1))
    assert num == 72
    assert "prior" in origin
    assert {round(float(x), -2) for x in probes.loc[probes.elbo > -20.0, 0]} >= {1000.0, 1500.0}


def test_mass_that_is_thin_and_not_absent_counts_by_what_it_does_to_moments():
    """A fit with two thirds of the wide part that it should have misses nothing; its standard deviation is wrong."""
    target = target_of(mixed(normal, lambda x: normal(x, 25.0), 0.007), 1)
    fit = Mixture(
        (unit(1), LocationScale(TriangularAffine(jnp.zeros(1), 25.0 * jnp.eye(1)))),
        jnp.log(jnp.array([0.9955, 0.0045])),
    )
    draws, log_q = map(np.asarray, fit.sample_and_log_prob(as_key(1), 20_000))
    log_weights = np.asarray(jax.vmap(target.log_density)(draws)) - log_q
    alone = judge_weights(np.zeros(20_000))  # "good", as where no draw is far enough out
    told, keys = (alone, target, SETTINGS, Deadline.start()), (as_key(0), as_key(1))
    subject = Subject(fit, draws, log_weights, *told, *keys)
    evidence = HeatedDraws().run(subject, Evidence())
    assert evidence.moments.are_wrong
    judged = subject.judge(evidence)
    assert judged.verdict == "usable"
    assert judged.missing_effect == pytest.approx(np.sqrt((1 + 0.007 * 624) / (1 + 0.0045 * 624)) - 1, abs=0.05)
    assert "times as large" in judged.status
    # As wide as what is too thin, so that a mixture can learn it.
    assert 15.0 < float(evidence.places.factor[0, 0, 0]) < 35.0


def test_moments_that_are_right_relieve_a_fit_whose_tails_are_not():
    """A posterior with heavier tails than the fit: the weights have no variance, and the moments are right."""
    target = target_of(mixed(normal, lambda x: normal(x, 30.0), 1e-5), 2)
    draws = np.random.default_rng(0).normal(size=(20_000, 2))
    alone = judge_weights(np.zeros(20_000))
    alone = dataclasses.replace(alone, ess_fraction=0.8, findings=(Finding("weights", "poor", "the tails"),))
    told, keys = (alone, target, SETTINGS, Deadline.start()), (as_key(0), as_key(1))
    subject = Subject(unit(2), draws, np.zeros(20_000), *told, *keys)
    judged = subject.judge(HeatedDraws().run(subject, Evidence()))
    assert judged.verdict == "usable"
    assert "all means and standard deviations are right" in judged.status
    far = dataclasses.replace(subject, alone=dataclasses.replace(alone, ess_fraction=0.3))
    assert far.judge(HeatedDraws().run(far, Evidence())).verdict == "poor"


def test_heated_draws_are_fewer_where_draws_are():
    assert num_heated(20_000, 5) == 4000
    assert num_heated(4000, 5) == 800
    assert num_heated(20_000, 100_000) == 100


@pytest.mark.slow
def test_a_concentric_mixture_is_fitted_by_two_flows():
    dim, share, width = 3, 0.1, 20.0
    logp = mixed(normal, lambda x: normal(x, width), share)
    post = bf.fit(bf.from_log_density(logp, init=np.zeros(dim)), training=bf.Training(order=4), progress=False)
    assert post.diagnostics.verdict == "good"
    assert post.diagnostics.missing_mass < 1e-3
    assert "No mass was found elsewhere among" in post.diagnostics.status
    assert len(post.distribution.components) == 2
    sd = np.std(post.draws(20_000)["x"], 0)
    assert sd == pytest.approx(np.full(dim, np.sqrt(0.9 + share * width**2)), rel=0.1)


@pytest.mark.parametrize("dim", [1, 3])
def test_a_missing_minus_sign_is_poor(dim):
    model = bf.from_log_density(lambda x: 0.5 * jnp.sum(x**2), np.zeros(dim))
    with pytest.warns(UserWarning, match="wrong sign"):
        post = bf.fit(model, training=bf.Training(order=4), progress=False)
    assert post.diagnostics.verdict == "poor"
    assert post.diagnostics.improper is not None
