"""The ports in NumPyro, Stan and PyMC are one posterior: the reference's."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpyro.infer import MCMC, NUTS, init_to_uniform
from scipy.integrate import solve_ivp

from benchmarks.posteriordb.catalogue import POSTERIORS
from benchmarks.posteriordb.front_ends import build
from benchmarks.posteriordb.numpyro_models import log_populations
from benchmarks.posteriordb.reference import load_data, load_draws
from bernflow.diagnostics.agreement import compare
from bernflow.models import as_model
from bernflow.models.stan.build import Program, translate
from bernflow.precision import use_precision
from bernflow.target import Target

NUM_POINTS = 20
LOTKA_VOLTERRA = "hudson_lynx_hare-lotka_volterra"
# Two solvers of the differential equations differ by their discretization errors.
TOLERANCE = {LOTKA_VOLTERRA: 1e-3}


def log_densities(entry, front_end, folder):
    """Evaluate a port at every 500th reference draw, on the constrained scale."""
    model, args = build(entry, front_end, load_data(entry, folder))
    accepted = as_model(model, args, {})
    assert Target(accepted).dim == entry.num_parameters
    points = entry.from_columns({name: values.ravel()[::500] for name, values in load_draws(entry, folder).items()})
    density = eqx.filter_jit(lambda model, theta: jax.vmap(model.log_density)(theta))
    values = density(accepted, {k: jnp.asarray(v) for k, v in points.items()})
    assert values.shape == (NUM_POINTS,)
    return np.asarray(values)


def check_same_posterior(name, front_end, folder):
    entry = POSTERIORS[name]
    with use_precision("float64"):
        ours = log_densities(entry, "numpyro", folder)
        theirs = log_densities(entry, front_end, folder)
    assert np.isfinite(ours).all()
    assert np.ptp(ours) > 1.0
    # What is constant is a normalizing constant; rounding grows with the size of the log density.
    assert np.ptp(theirs - ours) < TOLERANCE.get(name, 1e-11 * np.abs(ours).max() + 1e-9)


@pytest.mark.parametrize("name", [name for name, entry in POSTERIORS.items() if entry.pymc is not None])
def test_pymc_is_the_same_posterior(name, folder):
    pytest.importorskip("pymc")
    check_same_posterior(name, "pymc", folder)


# Each is a compilation of its own. That Stan and NumPyro agree on eight schools `integration/test_stan.py` tests, too.
@pytest.mark.slow
@pytest.mark.parametrize("name", POSTERIORS)
def test_stan_is_the_same_posterior(name, folder):
    pytest.importorskip("httpstan")
    check_same_posterior(name, "stan", folder)


@pytest.mark.parametrize("name", POSTERIORS)
def test_stan_accepts_the_programs_with_the_sites_and_the_data_of_the_numpyro_models(name, folder):
    pytest.importorskip("httpstan")
    entry, data = POSTERIORS[name], load_data(POSTERIORS[name], folder)
    info = translate(Program(entry.stan_code(), f"{name}.stan")).info
    model, args = build(entry, "numpyro", data)
    with use_precision("float64"):
        sites = {site.name: len(site.shape) for site in as_model(model, args, {}).sites}
    assert {site: kind["dimensions"] for site, kind in info["parameters"].items()} == sites
    assert set(info["inputs"]) <= set(data)


@pytest.mark.slow
@pytest.mark.parametrize("name", POSTERIORS)
def test_nuts_agrees_with_the_reference(name, folder):
    # 103 columns with two figures each, at four standard errors: one false alarm in 77 choices of the key.
    entry = POSTERIORS[name]
    with use_precision("float64"):
        data = {k: jnp.asarray(v) if isinstance(v, np.ndarray) else v for k, v in load_data(entry, folder).items()}
        # Far starts of the time series explode, and a chain never comes back.
        kernel = NUTS(entry.numpyro, dense_mass=True, init_strategy=init_to_uniform(radius=0.5))
        chains = {"num_chains": 4, "chain_method": "vectorized", "progress_bar": False}
        mcmc = MCMC(kernel, num_warmup=1000, num_samples=1000, **chains)
        mcmc.run(jax.random.key(0), data)
        draws = mcmc.get_samples(group_by_chain=True)
    found = compare(entry.to_columns(draws), load_draws(entry, folder))
    assert found.agrees, str(found)


def test_populations_are_exact_over_the_reference(folder):
    entry = POSTERIORS[LOTKA_VOLTERRA]
    times = load_data(entry, folder)["ts"]
    points = entry.from_columns({name: values.ravel()[::1000] for name, values in load_draws(entry, folder).items()})

    def solve(theta, start):
        def slope(_, log_z):
            return [theta[0] - theta[1] * np.exp(log_z[1]), -theta[2] + theta[3] * np.exp(log_z[0])]

        span = (0.0, times[-1])
        return solve_ivp(slope, span, start, t_eval=times, rtol=1e-10, atol=1e-12).y.T

    starts = np.log(points["z_init"])
    with use_precision("float64"):
        fast = jax.vmap(log_populations, in_axes=(0, 0, None))(points["theta"], starts, times)
    exact = np.stack([solve(theta, start) for theta, start in zip(points["theta"], starts, strict=True)])
    assert np.abs(np.asarray(fast) - exact).max() < 1e-5
