"""What can be told of a mesh with one device; many devices are in tests/integration/test_mesh.py."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import bernflow as bf
from bernflow import placement
from bernflow.errors import ArgumentError
from bernflow.fit.devices import Devices, as_mesh, check_batches
from bernflow.models import as_model
from bernflow.models.base import AbstractMappedModel
from bernflow.placement import DATA, PARTICLES


def devices(num_shards=4, num_processes=1):
    """Pretend that there are more than one."""
    made = Devices(as_mesh({"data": 1}))
    made.num_shards, made.num_local_shards = num_shards, num_shards // num_processes
    made.own_rows, made.num_processes = num_processes > 1, num_processes
    return made


def one(*names):
    return Mesh(np.array(jax.devices()[:1]).reshape([1] * len(names)), names)


@pytest.mark.parametrize("mesh", [{"data": 1}, {"particles": 1}, one("data"), one("particles", "data")])
def test_both_axes_are_there_whatever_was_given(mesh):
    assert as_mesh(mesh).axis_names == (DATA, PARTICLES)
    assert as_mesh(mesh).shape == {DATA: 1, PARTICLES: 1}


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        (one("x"), r"mesh has the axes \('x',\): expected 'data', 'particles' or both"),
        ({"rows": 2}, r"mesh=\{'rows': 2\}: expected numbers of devices for 'data', 'particles' or both"),
        ({}, "expected numbers of devices"),
        ({"data": 0}, r"mesh\['data'\]=0: expected a whole number"),
        ({"data": 64}, r"mesh=\{'data': 64\} needs 64 devices: there are"),
        (4, r"mesh=4: expected a jax.sharding.Mesh or a dict"),
    ],
)
def test_other_meshes_are_refused(mesh, message):
    with pytest.raises(ArgumentError, match=message):
        as_mesh(mesh)


def test_all_processes_take_part(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 3)
    with pytest.raises(ArgumentError, match="mesh has devices of 1 of 3 processes: expected all of them"):
        Devices(as_mesh({"data": 1}))


def test_processes_do_not_share_rows(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    owners = [SimpleNamespace(process_index=index) for index in (0, 1, 0, 1)]
    mesh = SimpleNamespace(devices=np.array(owners).reshape(2, 2), shape={DATA: 2, PARTICLES: 2})
    with pytest.raises(ArgumentError, match="Make 'data' a multiple of the number of processes"):
        Devices(mesh)


def test_models_that_cannot_be_spread(gaussian_model):
    with pytest.raises(ArgumentError, match="calls functions on the host, which cannot be spread over devices"):
        devices().check(MagicMock(spec=AbstractMappedModel))
    with pytest.raises(ArgumentError, match=r"a LogDensityModel has no rows .* mesh=\{'particles': n\}"):
        devices().check(gaussian_model)
    devices(num_shards=1).check(gaussian_model)
    model = MagicMock(spec=bf.Model, network="a network")
    with pytest.raises(ArgumentError, match="a model with a network cannot be spread over several processes"):
        devices(num_processes=2).check(model)


def test_arguments_that_cannot_be_divided(model, y):
    with pytest.raises(ArgumentError, match="the longest arguments of the model have 6 rows, which cannot be divided"):
        devices().spread(as_model(model, (y,)))

    def looks(y):
        return model(np.unique(np.asarray(y)))

    with pytest.raises(ArgumentError, match="the model function looks at the values of its arrays"):
        devices().spread(as_model(looks, (y,)))


def test_batches_that_cannot_be_divided(monkeypatch):
    model = MagicMock(spec=bf.Model, num_rows=lambda: 10)
    with pytest.raises(ArgumentError, match="batch_size=6 with 4 devices along 'data': expected a multiple of that"):
        check_batches(devices(), model, 6)
    several = devices(num_processes=2)
    monkeypatch.setattr(several, "counts", lambda num: np.array([10, 11]))
    with pytest.raises(ArgumentError, match="the processes have 10 and 11 rows: batches need equally many in each"):
        check_batches(several, model, 8)


def test_rows_are_filled_up_and_do_not_count(y):
    import numpyro.distributions as dist

    model = bf.Model(prior={"m": dist.Normal(0, 1)}, likelihood=lambda th: dist.Normal(th["m"], 1.0), y=y)
    spread = devices().spread(model)
    assert spread.y.shape == (8,)
    assert spread.num_rows() == 6
    assert np.asarray(spread.is_real).tolist() == [True] * 6 + [False] * 2
    np.testing.assert_allclose(spread.log_density({"m": 0.3}), model.log_density({"m": 0.3}), rtol=1e-6)
    assert model.y.shape == (6,)


def test_without_a_mesh_nothing_is_placed():
    values = jax.numpy.arange(3.0)
    assert not placement.is_spread()
    assert placement.replicated(values) is values
    assert placement.over_particles(values) is values
    assert placement.fetched(values) is values


def test_a_fit_on_a_mesh_of_one_device(gaussian_model, same_arrays):
    how = {"steps": 20, "family": "gaussian-fullrank", "progress": False}
    assert same_arrays(bf.fit(gaussian_model, **how, mesh={"particles": 1}), bf.fit(gaussian_model, **how))
    assert not placement.is_spread()
