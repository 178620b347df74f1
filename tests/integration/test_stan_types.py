"""Every type of Stan, in one program that takes a minute to compile."""

import importlib.util
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.models.stan import cache
from bernflow.precision import use_precision
from bernflow.target import Target

FILE = Path(__file__).parent / "stan_programs" / "zoo.stan"
DATA = {"N": 3, "empty": 0, "y": [0.5, 1.0, -2.0], "edge": 0.99}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("httpstan") is None, reason="httpstan is not installed"),
]


@pytest.fixture(scope="module")
def model():
    return bf.from_stan(FILE, data=DATA, progress=False)


@pytest.fixture
def x(model):
    with use_precision("float64"):
        yield jax.random.normal(jax.random.key(0), (model.instance.dim,))


SITES = {  # shape, unconstrained dimensions, on a half line
    "above": ((), 1, True),
    "scales": ((3,), 3, True),
    "below": ((), 1, False),
    "share": ((), 1, False),
    "parts": ((4,), 3, False),
    "steps": ((3,), 3, False),
    "matrix_": ((2, 3), 6, False),
    "matrices": ((2, 2, 3), 12, False),
    "vectors": ((2, 3, 2), 12, True),
    "factor": ((3, 3), 3, False),
    "spread": ((2, 2), 3, False),
    "higher": ((), 1, True),
    "wave": ((2,), 2, False),
    "pair:1": ((), 1, False),
    "pair:2": ((2,), 2, True),
}


def test_sites(model):
    found = zip(model.sites, model.unconstrained_sizes(), model.scales(), strict=True)
    assert {site.name: (site.shape, size, scale) for site, size, scale in found} == SITES


def test_values_are_in_their_places(model, x):
    theta = model.constrain(x)[0]
    assert theta["parts"].sum() == pytest.approx(1.0, abs=1e-14)
    assert np.all(np.diff(theta["steps"]) > 0)
    np.testing.assert_allclose(np.diagonal(theta["factor"] @ theta["factor"].T), 1.0, rtol=1e-14)
    np.testing.assert_array_equal(np.triu(theta["factor"], 1), 0.0)
    np.testing.assert_array_equal(theta["spread"], theta["spread"].T)
    derived = model.deterministic(theta)
    np.testing.assert_allclose(derived["product_"], theta["matrix_"] @ theta["matrix_"].T, rtol=1e-13)
    np.testing.assert_allclose(derived["turned"], [-theta["wave"][1], theta["wave"][0]], rtol=1e-14)
    np.testing.assert_array_equal(derived["counts"], [[11, 12, 13], [21, 22, 23]])
    np.testing.assert_allclose(derived["sums:2"], theta["pair:2"] + 1.0, rtol=1e-13)
    np.testing.assert_allclose(derived["pairs:1"], [theta["share"], theta["below"]], rtol=1e-12)
    np.testing.assert_allclose(derived["pairs:2"], [theta["above"], theta["higher"]], rtol=1e-12)
    np.testing.assert_allclose(
        model.log_likelihood(theta)["log_lik"],
        dist.Normal(theta["below"], theta["above"]).log_prob(jnp.array(DATA["y"])),
        rtol=1e-12,
    )
    assert set(model.predict(jax.random.key(0), theta)) == {"counts", "y_rep", "sums:1", "sums:2", "pairs:1", "pairs:2"}
    np.testing.assert_allclose(model.unconstrain(theta), x, rtol=1e-11, atol=1e-12)
    outside = theta | {"scales": -theta["scales"]}
    assert np.isnan(model.unconstrain(outside)).all()


def test_the_density_is_the_sum_of_its_statements(model, x):
    theta = model.constrain(x)[0]
    unit = dist.Normal(0.0, 1.0)
    terms = [
        *(
            unit.log_prob(theta[n])
            for n in ("above", "scales", "below", "steps", "matrix_", "matrices", "wave", "pair:1")
        ),
        dist.Dirichlet(jnp.full(4, 2.0)).log_prob(theta["parts"]),
        dist.Exponential(1.0).log_prob(theta["vectors"]),
        dist.LKJCholesky(3, 2.0).log_prob(theta["factor"]),
        dist.Wishart(4.0, jnp.eye(2)).log_prob(theta["spread"]),
        dist.Normal(0.0, 3.0).log_prob(theta["higher"]),
        dist.Exponential(2.0).log_prob(theta["pair:2"]),
        dist.Normal(theta["below"], theta["above"]).log_prob(jnp.array(DATA["y"])),
    ]
    assert model.log_density(theta) == pytest.approx(sum(float(term.sum()) for term in terms), rel=1e-11)


def free_components(theta):
    """Return those components of theta that determine the others."""
    lower, diagonal = np.tril_indices(3, -1), np.tril_indices(2)
    chosen = theta | {
        "parts": theta["parts"][:3],
        "factor": theta["factor"][lower],
        "spread": theta["spread"][diagonal],
    }
    return jnp.concatenate([jnp.ravel(chosen[name]) for name in SITES])


def test_the_jacobian_is_that_of_the_map(model, x):
    matrix = jax.jacobian(lambda x: free_components(model.constrain(x)[0]))(x)
    assert matrix.shape == (54, 54)
    assert model.constrain(x)[1] == pytest.approx(np.linalg.slogdet(matrix)[1], abs=1e-8)


def test_derivatives_agree_with_differences(model, x):
    target = Target(model)
    gradient = jax.grad(target.log_density)
    step = 1e-5 * np.eye(54)
    values = jax.vmap(target.log_density)
    np.testing.assert_allclose((values(x + step) - values(x - step)) / 2e-5, gradient(x), rtol=1e-6, atol=1e-6)
    slopes = jax.vmap(gradient)
    expected = (slopes(x + step) - slopes(x - step)) / 2e-5
    hessian = jax.hessian(target.log_density)(x)
    np.testing.assert_allclose(hessian, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(hessian, hessian.T)
    by_x = jax.grad(lambda x: model.constrain(x)[1])(x)
    jacobians = jax.vmap(lambda x: model.constrain(x)[1])
    np.testing.assert_allclose((jacobians(x + step) - jacobians(x - step)) / 2e-5, by_x, rtol=1e-6, atol=1e-6)


def test_a_rejected_point_has_density_zero(model, x):
    place = list(SITES).index("share")
    start = sum(size for _, size, _ in list(SITES.values())[:place])
    rejected = x.at[start].set(6.0)
    value, gradient = jax.value_and_grad(model.log_density_on_reals)(rejected)
    assert np.isneginf(value)
    np.testing.assert_array_equal(gradient, 0.0)
    assert "share is" in model.instance.engine.message(model.instance.handle)


def test_a_program_that_always_rejects_says_why():
    with pytest.raises(bf.ModelError, match=r"(?s)any of 100 points.*share is.*Check that every"):
        bf.from_stan(FILE, data=DATA | {"edge": 0.0}, progress=False)


def test_a_fit_of_all_types():
    post = bf.fit(bf.from_stan(FILE, data=DATA | {"edge": 1.0}, progress=False), steps=500, progress=False)
    assert post.diagnostics.verdict != "poor"
    draws = post.draws(100)
    np.testing.assert_allclose(draws["sums:1"], 1.0, rtol=1e-12)


def test_a_fresh_cache_compiles_from_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    code = "data { real y; } parameters { real<lower=0> s; } model { y ~ normal(0, s); s ~ exponential(1); }"
    model = bf.from_stan(code, data={"y": 0.5})
    assert "Compiling model.stan with" in capsys.readouterr().err
    with use_precision("float64"):
        expected = dist.Normal(0.0, 1.0).log_prob(0.5) + dist.Exponential(1.0).log_prob(1.0)
        assert model.log_density({"s": jnp.ones(())}) == pytest.approx(float(expected), rel=1e-12)
    assert sorted(path.name.split("-")[0] for path in (tmp_path / "stan").iterdir()) == ["object", "program", "shim"]
