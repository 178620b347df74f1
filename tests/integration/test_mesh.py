"""Fits over many devices and many processes, against the same fit on one device."""

import functools
import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import bernflow as bf

# The test and the processes that it starts run the same code.
SETUP = """
import sys
from pathlib import Path
from jax.experimental import multihost_utils
import jax, numpy as np, numpyro, numpyro.distributions as dist
import bernflow as bf
from bernflow.fit.devices import Devices, as_mesh
from bernflow.placement import use_mesh
from bernflow.precision import use_precision
from bernflow.preflight import _values_and_gradients
from bernflow.target import Target

NUM = 101
rng = np.random.default_rng(0)
X = rng.normal(size=(NUM, 3))
Y = rng.normal(X @ [1.0, -1.0, 0.5], 1.0)
POINTS = rng.normal(size=(3, 4))

def declarative(rows):
    return bf.Model(
        prior={"b": dist.Normal(0, 1).expand([3]).to_event(1), "s": dist.HalfNormal(1)},
        likelihood=lambda th, x: dist.Normal(x @ th["b"], th["s"]),
        y=Y[rows],
        x=X[rows],
    )

def function(x, y):
    b = numpyro.sample("b", dist.Normal(0, 1).expand([3]).to_event(1))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(x @ b, s), obs=y)

def gradients(model, mesh=None):
    devices = None if mesh is None else Devices(as_mesh(mesh))
    with use_mesh(devices and devices.mesh), use_precision("float64"):
        model = model if devices is None else devices.spread(model)
        return [np.asarray(part) for part in _values_and_gradients(Target(model), POINTS)]

def fit(model, *args, **how):
    post = bf.fit(model, *args, **{"steps": 100, "family": "gaussian-fullrank", "progress": False, **how})
    return {
        "elbo": post.history["elbo"],
        "verdict": np.array(post.diagnostics.status),
        **{f"draws_{name}": values for name, values in post.draws(50).items()},
    }

def flat(**groups):
    return {f"{group}/{name}": value for group, values in groups.items() for name, value in values.items()}
"""
ONE_PROCESS = """
mesh, groups = jax.make_mesh((2, 4), ("particles", "data")), {}
if "all" in sys.argv:
    groups["numpyro"] = fit(function, X[:96], Y[:96], mesh=mesh)
    groups["batches"] = fit(declarative(slice(None)), mesh={"data": 4}, batch_size=40)
everything = flat(
    gradients=dict(enumerate(gradients(declarative(slice(None)), mesh))),
    rows=fit(declarative(slice(None)), mesh={"data": 4, "particles": 2}),
    **groups,
)
np.savez(sys.argv[1], **everything)
"""
SEVERAL = """
path, index, num, port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
jax.config.update("jax_num_cpu_devices", 4 // num if num < 4 else 1)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", num, index)
mesh = {"data": 4}
# Every process has rows of its own; not all have equally many.
own = declarative(np.array_split(np.arange(NUM), num)[index])
even = declarative(np.arange(100).reshape(num, -1)[index])
part, groups = np.arange(96).reshape(num, -1)[index], {}
try:
    fit(function, X[part][: 24 - index], Y[part][: 24 - index], mesh=mesh)
except bf.ArgumentError as error:
    groups["told"] = {"message": np.array(str(error))}
if "all" in sys.argv:
    groups["numpyro"] = fit(function, X[part], Y[part], mesh=mesh)
    groups["batches"], groups["again"] = (
        fit(even, mesh=mesh, batch_size=20, steps=400, resume=path + ".folder") for _ in range(2)
    )
    # Without the finished result, every process reads the last checkpoint.
    multihost_utils.sync_global_devices("compared")
    Path(path + ".folder", "finished.json").unlink(missing_ok=True)
    multihost_utils.sync_global_devices("deleted")
    groups["resumed"] = fit(even, mesh=mesh, batch_size=20, steps=400, resume=path + ".folder")
everything = flat(gradients=dict(enumerate(gradients(own, mesh))), rows=fit(own, mesh=mesh), **groups)
np.savez(path + f"-{index}.npz", **everything)
"""
space = {}
exec(SETUP, space)


def environment(**more):
    path = os.pathsep.join([str(Path(bf.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", **more}


def start(code, *arguments, **more):
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-c", SETUP + code, *map(str, arguments)],
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(*processes):
    try:
        outputs = [process.communicate(timeout=400)[0].decode() for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, output[-4000:]


@pytest.fixture(scope="module")
def expected():
    """One device; the test itself runs on one."""
    model = space["declarative"](slice(None))
    x, y = space["X"][:96], space["Y"][:96]
    makers = {
        "gradients": lambda: dict(enumerate(space["gradients"](model))),
        "rows": lambda: space["fit"](model),
        "numpyro": lambda: space["fit"](space["function"], x, y),
        "batches": lambda: space["fit"](model, batch_size=40),
    }
    return functools.cache(lambda group: space["flat"](**{group: makers[group]()}))


def same(found, expected, *groups):
    """Rounding alone may differ: in gradients, and in what comes of 100 steps."""
    for group in groups:
        tolerance = 1e-12 if group == "gradients" else 1e-9
        for name, values in expected(group).items():
            if not name.endswith("verdict"):
                np.testing.assert_allclose(found[name], values, rtol=tolerance, atol=tolerance, err_msg=name)


SCOPES = pytest.mark.parametrize("scope", ["some", pytest.param("all", marks=pytest.mark.slow)])


@SCOPES
def test_eight_devices_do_as_one(expected, tmp_path, scope):
    path = tmp_path / "found.npz"
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=8"
    finish(start(ONE_PROCESS, path, scope, XLA_FLAGS=flags))
    same(np.load(path), expected, "gradients", "rows", *(("numpyro", "batches") if scope == "all" else ()))


@SCOPES
def test_processes_with_rows_of_their_own_do_as_one(expected, tmp_path, scope):
    num = 2 if scope == "some" else 4
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    finish(*(start(SEVERAL, tmp_path / "found", index, num, port, scope) for index in range(num)))
    found = [np.load(tmp_path / f"found-{index}.npz") for index in range(num)]
    same(found[0], expected, "gradients", "rows", *(("numpyro",) if scope == "all" else ()))
    for other in found[1:]:
        assert other.files == found[0].files
        for name in other.files:
            np.testing.assert_array_equal(other[name], found[0][name], err_msg=name)
    assert "rows, which cannot be divided evenly among 4 devices" in str(found[0]["told/message"])
    if scope == "some":
        return
    # Batches of other rows: the posterior is the same up to what 50 draws of each show, by four standard errors.
    draws, exact = found[0]["batches/draws_b"], space["fit"](space["declarative"](slice(100)))["draws_b"]
    error = 4 * np.sqrt(2 / 50) * exact.std(0)
    assert (np.abs(draws.mean(0) - exact.mean(0)) < error).all()
    for name in expected("batches"):
        field = name.partition("/")[2]
        for group in ("again", "resumed"):
            np.testing.assert_array_equal(found[0][f"{group}/{field}"], found[0][f"batches/{field}"], err_msg=name)
    # One process writes.
    assert {path.name for path in Path(f"{tmp_path}/found.folder").iterdir()} >= {"batches-1.npz", "finished.json"}
