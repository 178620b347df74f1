"""What once ended in an error of another package, or of Python, ends in a sentence."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.errors import ArgumentError, FileWriteError, ModelError
from bernflow.files import write_whole

HOW = {"family": "gaussian", "steps": 5, "progress": False}
EMPTY = np.zeros(0)


def numpyro_model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def declared(y, **more):
    prior = {"mu": dist.Normal(0.0, 1.0)}
    return bf.Model(prior=prior, likelihood=lambda th: dist.Normal(th["mu"], 1.0), y=y, **more)


@pytest.mark.filterwarnings("ignore:bernflow:UserWarning")
@pytest.mark.parametrize("given", [(numpyro_model, EMPTY), (declared(EMPTY),)], ids=["numpyro", "declared"])
def test_no_data_give_the_prior(given):
    post = bf.fit(*given, **HOW)
    assert post.draws(5)["mu"].shape == (5,)
    assert np.isfinite(post.diagnostics.elbo)


def test_no_data_cannot_be_taken_in_batches():
    with pytest.raises(ArgumentError, match="batch_size=4 with 0 rows"):
        bf.fit(declared(EMPTY), **HOW, batch_size=4)


def one_component():
    numpyro.sample("p", dist.Dirichlet(jnp.ones(1)))


@pytest.mark.parametrize(
    "model",
    [
        one_component,
        bf.Model(prior={"p": dist.Dirichlet(np.ones(1))}, likelihood=lambda th: dist.Normal(th["p"][0], 1.0), y=EMPTY),
        bf.from_log_density(lambda x: -0.5 * jnp.sum(x**2), init=np.zeros(0)),
    ],
    ids=["numpyro", "declared", "density"],
)
def test_parameters_without_a_free_dimension_are_refused(model):
    with pytest.raises(ModelError, match="have no free dimension: nothing is left to infer"):
        bf.fit(model, **HOW)


def on_host(x):
    return jax.pure_callback(
        lambda v: np.asarray(-0.5 * np.sum(v**2)), jax.ShapeDtypeStruct((), x.dtype), x, vmap_method="sequential"
    )


def loop(x):
    return -jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, c[1] + x @ x), (0, 0.0))[1]


def in_numpyro():
    numpyro.factor("f", on_host(numpyro.sample("mu", dist.Normal(0.0, 1.0))[None]))


@pytest.mark.parametrize(
    ("model", "how"),
    [
        (bf.from_log_density(on_host, init=np.zeros(2)), {}),
        (bf.from_log_density(loop, init=np.zeros(2)), {}),
        (in_numpyro, {}),
        (
            bf.Model(
                prior={"mu": dist.Normal(0.0, 1.0)},
                log_likelihood=lambda th, y: on_host(th["mu"][None]) + 0.0 * y,
                y=np.ones(8),
            ),
            {"batch_size": 4},
        ),
    ],
    ids=["density", "loop", "numpyro", "batches"],
)
def test_densities_without_a_derivative_are_refused(model, how):
    with pytest.raises(ModelError, match=r"The log density cannot be differentiated: .*(JVP|while_loop)"):
        bf.fit(model, **HOW, **how)


def test_callbacks_for_one_point_are_refused():
    @jax.custom_jvp
    def density(x):
        return jax.pure_callback(lambda v: np.asarray(-0.5 * np.sum(v**2)), jax.ShapeDtypeStruct((), x.dtype), x)

    density.defjvp(lambda primals, tangents: (density(*primals), -primals[0] @ tangents[0]))
    with pytest.raises(ModelError, match=r"give jax.pure_callback a vmap_method"):
        bf.fit(bf.from_log_density(density, init=np.zeros(2)), **HOW)


def test_names_with_a_zero_byte_are_refused(tmp_path):
    with pytest.raises(ArgumentError, match="cannot be written to"):
        bf.fit(declared(np.ones(2)), **HOW, resume=str(tmp_path / "a\0b"))
    with pytest.raises(ArgumentError, match="cannot be written to"):
        bf.map_fits(len, [], resume=str(tmp_path / "a\0b"))
    with pytest.raises(FileWriteError, match=r"a\\x00b' cannot be written .*choose another name"):
        write_whole(tmp_path / "a\0b", lambda file: None)
