"""Other parameterizations for the references have the posterior of their model."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.util import initialize_model

from benchmarks.models import fields, references
from benchmarks.models.catalogue import catalogue
from benchmarks.models.entry import Entry, Sampling
from bernflow.errors import ArgumentError, FileFormatError
from bernflow.models import as_model

# Measurements at a tiny scale: nightly, as what they take is compilation.
pytestmark = pytest.mark.slow

ENTRIES = catalogue()


def loaded(name):
    try:
        return ENTRIES[name].args
    except ArgumentError as error:
        pytest.skip(str(error))


def log_density(model, args, values):
    """The log density at values of sites, which is what NumPyro has without a Jacobian."""
    return float(as_model(model, args, {}).log_density({k: jnp.asarray(v) for k, v in values.items()}))


@pytest.mark.parametrize("name", ["volatility-1000", "bym-400"])
def test_reparameterizations_differ_by_their_jacobian(name):
    entry = ENTRIES[name]
    args = entry.args
    with jax.enable_x64(True):
        rng = np.random.default_rng(0)
        found = []
        for _ in range(3):
            info = initialize_model(jax.random.key(int(rng.integers(1000))), entry.sampling.model, model_args=args)
            values = info.postprocess_fn(info.param_info.z)
            names = [site.name for site in as_model(entry.model, args, {}).sites]
            raw = [site.name for site in as_model(entry.sampling.model, args, {}).sites]
            one = log_density(entry.model, args, {n: values[n] for n in names})
            other = log_density(entry.sampling.model, args, {n: values[n] for n in raw})
            # dh / dz is triangular with sigma on its diagonal, the first entry divided by sqrt(1 - phi^2).
            log_det = 0.0
            if name == "volatility-1000":
                log_det = 1000 * jnp.log(values["sigma"]) - 0.5 * jnp.log1p(-(values["phi"] ** 2))
            found.append(float(one + log_det - other))
    # The spatial prior is not normalized: the difference is a constant.
    np.testing.assert_allclose(found, found[0], rtol=1e-8, atol=1e-6)
    if name == "volatility-1000":
        np.testing.assert_allclose(found, 0.0, atol=1e-6)


def test_spatial_factor_is_a_root_of_the_covariance():
    phi = np.random.default_rng(1).normal(size=fields.SIDE**2)
    edges = fields._edges()
    prior = np.sum((phi[edges[:, 0]] - phi[edges[:, 1]]) ** 2) + (phi.mean() / fields.SOFT) ** 2
    raw = np.linalg.solve(fields._spatial_factor(), phi)
    np.testing.assert_allclose(raw @ raw, prior, rtol=1e-9)


@pytest.mark.parametrize("name", ["uk-drivers", "mcycle-splines"])
def test_collapsed_models_complete_to_the_joint_density(name):
    entry, args = ENTRIES[name], loaded(name)
    with jax.enable_x64(True):
        sampled = as_model(entry.sampling.model, args, {})
        names = [site.name for site in as_model(entry.model, args, {}).sites]
        difference = []
        for factor in (1.0, 1.2):
            if name == "uk-drivers":
                given = {"sigma": np.array([0.004, 0.02, 0.06]) * factor}
            else:
                given = {site.name: np.full(site.shape, 0.3 * factor) for site in sampled.sites}
            derived = {k: np.asarray(v) for k, v in sampled.deterministic(given).items()}
            batch = {k: np.repeat(np.asarray(v)[None], 400, 0) for k, v in {**given, **derived}.items()}
            sites, inside = entry.sampling.collapsed(np.random.default_rng(0), batch, *args)
            assert np.mean(inside) > 0.2
            values = {**batch, **sites}
            densities = [
                log_density(entry.model, args, {n: values[n][i] for n in names}) for i in np.flatnonzero(inside)[:4]
            ]
            # log q of the draws is that of a Gaussian, whose squared distance from the mean is the noise of the draw.
            flat = np.concatenate([np.reshape(sites[n], (400, -1)) for n in names if n in sites], axis=1)
            size = flat.shape[1]
            noise = np.random.default_rng(0).normal(size=(400, size))
            log_q = [-0.5 * noise[i] @ noise[i] for i in np.flatnonzero(inside)[:4]]
            # Equal for all draws: the conditional is exact, up to its normalization.
            conditional = np.array(densities) - np.array(log_q)
            np.testing.assert_allclose(conditional, conditional[0], rtol=1e-8, atol=1e-5)
            log_det = _log_det(name, given, derived, args)
            difference.append(conditional[0] - log_det - log_density(entry.sampling.model, args, given))
    np.testing.assert_allclose(*difference, rtol=1e-8, atol=1e-5)


def _log_det(name, given, derived, args):
    """Half the log determinant of the conditional precision."""
    from benchmarks.models import collapsed

    if name == "uk-drivers":
        grams, _, _ = collapsed._quadratic_form(*args)
        return 0.5 * np.linalg.slogdet(np.tensordot(given["sigma"] ** -2.0, grams, 1))[1]
    factor, _, _ = collapsed._spline_given(np, args[0], given["Intercept"], given["sds_1_1"], derived["log_sd"])
    return np.sum(np.log(np.diagonal(factor)))


def scale_model(y):
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    with numpyro.plate("groups", len(y)):
        theta = numpyro.sample("theta", dist.Normal(0.0, tau))
    numpyro.sample("L", dist.LKJCholesky(2))
    numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)


SMALL = Entry(
    "small", "simulated", 5, scale_model, lambda: (np.array([0.3, -1.0, 2.0]),), Sampling(noncentered=("theta",))
)


def test_a_reference_is_made_and_read(tmp_path):
    status = references.make(SMALL, tmp_path, {"warmup": 200, "samples": 200})
    assert "R-hat" in status
    reference = references.load("small", tmp_path)
    assert set(reference.moments.names) == {"tau", "theta[1]", "theta[2]", "theta[3]", "L[1]"}
    assert "L[1,1]" not in reference.constrained.names
    assert reference.constrained.mean.shape == reference.constrained_ess.shape == (6,)
    assert reference.header["reparameterized"] == ["theta"]
    assert reference.header["gradients"] > 1600


def test_references_that_are_missing_or_damaged(tmp_path):
    assert references.load("small", tmp_path) is None
    (tmp_path / "small.npz").write_bytes(b"nothing")
    with pytest.raises(FileFormatError, match="is not a reference of this suite"):
        references.load("small", tmp_path)
