"""Fits that are killed, interrupted or disturbed, and go on."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import bernflow as bf
from bernflow.errors import ArgumentError, FileFormatError, FileWriteError
from bernflow.fit import api
from bernflow.fit.checkpoints import checkpoint, resume
from bernflow.fit.checkpoints.checkpoint import Checkpoint, Saved
from bernflow.fit.train import recipe
from bernflow.fit.train.progress import Recorder
from bernflow.fit.train.recipe import CHUNK
from bernflow.posterior import archive, container

# Simple families and few steps: whether they are good enough is not tested here.
pytestmark = pytest.mark.filterwarnings("ignore:bernflow. Poor")
# A test and the process that it kills run the same code.
HOW = """
import numpy as np, numpyro.distributions as dist
import bernflow as bf
rng = np.random.default_rng(0)
X = rng.normal(size=60)
Y = rng.normal(0.5 * X, 1.0)
model = bf.Model(
    prior={"b": dist.Normal(0, 1), "s": dist.HalfNormal(1)},
    likelihood=lambda th, x: dist.Normal(th["b"] * x, th["s"]),
    y=Y,
    x=X,
)
def run(kind, resume=None):
    how = {
        "flow": {"steps": 1300, "family": "gaussian-fullrank"},
        "restarts": {"steps": 600, "components": 2, "restarts": 3, "family": "gaussian-fullrank"},
        "batches": {"steps": 600, "batch_size": 16, "family": "gaussian-fullrank"},
    }[kind]
    return bf.fit(model, **how, resume=resume, progress=False)
"""
# Writes at every chunk, and waits at the given one to be killed: after it, or in the middle of writing it.
VICTIM = """
import sys, time, pathlib
from bernflow.fit.checkpoints import checkpoint
from bernflow.posterior import container
checkpoint.INTERVAL = checkpoint.PATIENCE = 0.0
kind, folder, number, moment = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
write, count = container.write_whole, 0
def pause():
    pathlib.Path(folder, "waiting").touch()
    time.sleep(600)
def slow(path, content):
    global count
    count += 1
    def half(file):
        content(file)
        if count == number and moment == "during":
            pause()
    write(path, half)
    if count == number and moment == "after":
        pause()
container.write_whole = slow
run(kind, folder)
"""
space = {}
exec(HOW, space)
run = space["run"]


def same(one, other):
    """Compare two posteriors bit by bit, all but the time that they took."""
    assert one.diagnostics == other.diagnostics
    plain = [{k: v for k, v in post.settings.items() if k != "wall_seconds"} for post in (one, other)]
    assert plain[0] == plain[1]
    for left, right in ((one.history, other.history), (one.draws(20), other.draws(20))):
        assert left.keys() == right.keys()
        for name in left:
            np.testing.assert_array_equal(left[name], right[name])


@pytest.fixture(scope="module")
def expected():
    return {kind: run(kind) for kind in ("flow", "batches")}


@pytest.fixture
def every_chunk(monkeypatch):
    monkeypatch.setattr(checkpoint, "INTERVAL", 0.0)
    monkeypatch.setattr(checkpoint, "PATIENCE", 0.0)


@pytest.mark.parametrize(
    ("kind", "number", "moment", "how"),
    [
        pytest.param("flow", 1, "after", signal.SIGKILL, marks=pytest.mark.slow),
        ("flow", 4, "during", signal.SIGKILL),
        pytest.param("flow", 6, "after", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("flow", 4, "during", signal.SIGTERM, marks=pytest.mark.slow),
        ("batches", 2, "after", signal.SIGTERM),
    ],
)
def test_a_killed_fit_ends_as_if_it_had_not_been(expected, tmp_path, kind, number, moment, how):
    folder = tmp_path / "fit"
    source = str(Path(bf.__file__).parents[1])
    path = os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])
    victim = subprocess.Popen(
        [sys.executable, "-c", HOW + VICTIM, kind, str(folder), str(number), moment],
        env={**os.environ, "PYTHONPATH": path},
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 120
        while not (folder / "waiting").exists():
            assert victim.poll() is None, victim.stderr.read().decode()
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        victim.send_signal(how)
        victim.wait()
        victim.stderr.close()
    assert len(list(folder.glob(".*.part"))) == (moment == "during")
    same(run(kind, folder), expected[kind])
    assert not list(folder.glob(".*.part"))


def test_a_finished_fit_is_returned(expected, tmp_path, monkeypatch):
    first = run("flow", tmp_path)
    monkeypatch.setattr(api, "run_alone", None)
    again = run("flow", tmp_path)
    same(first, expected["flow"])
    same(again, expected["flow"])
    assert again.settings["wall_seconds"] == first.settings["wall_seconds"]
    assert again.refine is not None
    assert again.model is not None


def stop_after(monkeypatch, steps, act):
    call = Recorder.__call__

    def report(self, done, planned, trace):
        call(self, done, planned, trace)
        if done == steps:
            act()

    monkeypatch.setattr(Recorder, "__call__", report)


def press():
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("steps", [CHUNK, 650 + CHUNK])
def test_after_ctrl_c_the_fit_can_be_resumed(expected, tmp_path, monkeypatch, steps):
    with monkeypatch.context() as patch:
        stop_after(patch, steps, press)
        with pytest.warns(UserWarning, match=f"interrupted after {steps} steps"):
            half = run("flow", tmp_path)
    assert half.settings["steps"] == steps
    same(run("flow", tmp_path), expected["flow"])


def test_ctrl_c_between_batches(expected, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, CHUNK, press)
        with pytest.warns(UserWarning, match=f"interrupted after {CHUNK} steps"):
            half = run("batches", tmp_path)
    assert half.settings["interrupted"]
    assert half.settings["steps"] == half.settings["joint_steps"] == CHUNK
    same(run("batches", tmp_path), expected["batches"])


def test_restarts_and_components(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_after(patch, 550, press)
        with pytest.warns(UserWarning, match="interrupted"):
            run("restarts", tmp_path)
    resumed = run("restarts", tmp_path)
    same(resumed, run("restarts"))


def test_both_stages_of_a_network(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    images = rng.normal(size=(40, 3)).astype(np.float32)
    model = bf.Model(
        # Against the boundary: a normal posterior would be met by its start, without a second stage to interrupt.
        prior={"b": dist.HalfNormal(1)},
        likelihood=lambda th, h: dist.StudentT(2.0, th["b"] + h[:, 0], 1.0),
        y=rng.normal(size=40),
        network=eqx.nn.Linear(3, 1, key=jax.random.key(0)),
        images=images,
    )

    def fit(resume=None):
        return bf.fit(model, batch_size=10, steps=30, family="gaussian", resume=resume, progress=False)

    monkeypatch.setattr(recipe, "CYCLES", (recipe.Cycle(300), recipe.Cycle(300)))
    uninterrupted = fit()
    for steps in (20, 250):  # in the first stage, then in the second
        with monkeypatch.context() as patch:
            stop_after(patch, steps, press)
            with pytest.warns(UserWarning, match=f"interrupted after {steps} "):
                half = fit(tmp_path)
            assert half.settings["joint_steps"] == min(steps, 30)
            assert half.model.features is not None  # judged given the network as trained so far
    assert {path.name for path in tmp_path.iterdir()} >= {"batches-0.npz", "flow-1.npz"}
    for _ in range(2):  # the second call finds it finished
        resumed = fit(tmp_path)
        same(resumed, uninterrupted)
        np.testing.assert_array_equal(resumed.model.features, uninterrupted.model.features)


def test_another_fit_is_refused(tmp_path, every_chunk):
    run("flow", tmp_path)
    how = {"steps": 1300, "family": "gaussian-fullrank", "progress": False, "resume": tmp_path}
    model = space["model"]
    with pytest.raises(ArgumentError, match=r"result of another fit \(key=\[0, 0, 0, 0\] there, \[0, 1, 0, 1\] now\)"):
        bf.fit(model, **how, key=1)
    (tmp_path / "finished.json").unlink()
    with pytest.raises(ArgumentError, match=r"belongs to another fit \(steps=1300 there, 1301 now"):
        bf.fit(model, **how | {"steps": 1301})
    with pytest.raises(ArgumentError, match=r"learning_rate=0\.02 there, 0\.001 now"):
        bf.fit(model, **how, training=bf.Training(optimizer=1e-3))
    other = {"prior": model.prior, "likelihood": model.likelihood, "x": model.x}
    with pytest.raises(ArgumentError, match=r"another fit \(another data; another log density\)"):
        bf.fit(bf.Model(**other, y=model.y + 1), **how)
    # Another prior with the same names and data: only the density tells.
    wide = {**other, "prior": {"b": lambda th: dist.Normal(0, 3), "s": dist.HalfNormal(1)}}
    with pytest.raises(ArgumentError, match=r"another fit \(.*another log density"):
        bf.fit(bf.Model(**wide, y=model.y), **how)


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(content)


def test_damaged_checkpoints(expected, tmp_path, every_chunk):
    run("flow", tmp_path)
    (tmp_path / "finished.json").unlink()
    # 1,300 steps are six chunks: the second file is the older one.
    damage(tmp_path / "flow-0.npz")
    with pytest.warns(UserWarning, match=r"flow-0.npz is not a checkpoint, or it is damaged.*resumes from that"):
        same(run("flow", tmp_path), expected["flow"])
    damage(tmp_path / "posterior.bernflow")
    with pytest.warns(UserWarning, match=r"posterior.bernflow is damaged.*goes on from its last checkpoint"):
        same(run("flow", tmp_path), expected["flow"])
    (tmp_path / "finished.json").write_text("{")
    with pytest.warns(UserWarning, match=r"finished.json cannot be read"):
        run("flow", tmp_path)
    (tmp_path / "finished.json").unlink()
    for path in tmp_path.glob("flow-*.npz"):
        path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(FileFormatError, match=r"is not a checkpoint, or it is damaged.*delete its folder"):
        run("flow", tmp_path)


def test_a_folder_that_cannot_be_written_to(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(api, "identify", None)  # nothing is computed before
    with pytest.raises(ArgumentError, match=r"resume=.*cannot be written to .*expected a folder"):
        run("flow", tmp_path / "file")
    with pytest.raises(ArgumentError, match="resume=7: expected the path of a folder"):
        run("flow", 7)


def test_processes_that_find_different_checkpoints(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(resume.multihost_utils, "process_allgather", lambda value: np.array([value, 250]))
    with pytest.raises(ArgumentError, match=r"the processes found checkpoints after .*: \[-1, 250\].*machines share"):
        resume.agreed(None)
    assert resume.agreed(Saved({}, {"done": 250})).facts["done"] == 250


def test_a_full_disk_does_not_stop_the_fit(expected, tmp_path, monkeypatch, every_chunk):
    count, write = [], checkpoint.write_container

    def full(path, *content):
        count.append(path)
        if 2 <= len(count) <= 4:
            raise FileWriteError(f"{path} cannot be written (No space left on device)")
        return write(path, *content)

    def no_archive(posterior, path):
        raise FileWriteError(f"{path} cannot be written ({os.strerror(errno.ENOSPC)})")

    monkeypatch.setattr(checkpoint, "write_container", full)
    monkeypatch.setattr(archive, "save", no_archive)
    with pytest.warns(UserWarning, match="could not be") as heard:
        same(run("flow", tmp_path), expected["flow"])
    told = [str(warning.message) for warning in heard]
    assert len(told) == 2  # once for three failures, and once for the result
    assert "checkpoint could not be written" in told[0]
    assert "goes on in memory" in told[0]
    assert "finished fit could not be kept" in told[1]
    # What could be written again is a checkpoint like any other.
    assert Checkpoint(tmp_path, "flow", {}, lambda there, here: []).read().facts["done"] == 1300


def test_checkpoints_hold_plain_arrays(tmp_path):
    file = Checkpoint(tmp_path, "x", {"a": 1}, lambda there, here: [])
    assert file.read() is None
    file.offer(lambda: Saved({"values": np.arange(3.0)}, {"done": 1}))
    file.offer(lambda: Saved({"values": np.arange(4.0)}, {"done": 2}))
    assert file.read().facts["done"] == 1  # the next is not due yet
    file.flush()
    saved = Checkpoint(tmp_path, "x", {"a": 1}, lambda there, here: []).read()
    assert saved.facts == {"done": 2}
    np.testing.assert_array_equal(saved.arrays["values"], np.arange(4.0))
    assert len(np.load(tmp_path / "x-1.npz", allow_pickle=False).files) == 2


def test_checkpoints_of_other_versions(tmp_path, monkeypatch):
    present = checkpoint.KIND.version
    for version, says in ((present + 1, "install a newer bernflow"), (1, "delete its folder to begin anew")):
        monkeypatch.setattr(checkpoint, "KIND", checkpoint.KIND._replace(version=version))
        Checkpoint(tmp_path, "x", {}, lambda there, here: []).offer(lambda: Saved({}, {}))
        monkeypatch.undo()
        with pytest.raises(FileFormatError, match=f"has format version {version}, .*reads version {present}.*{says}"):
            Checkpoint(tmp_path, "x", {}, lambda there, here: []).read()


def test_a_damaged_checkpoint_is_refused_or_harmless(tmp_path):
    def read():
        try:
            saved = Checkpoint(tmp_path, "x", {"a": 1}, lambda there, here: [] if there == here else ["a"]).read()
        except FileFormatError:
            return None
        return {name: values.tobytes() for name, values in saved.arrays.items()}, saved.facts

    values = {"values": np.arange(30.0), "half": np.zeros(3, "V2"), "key": np.arange(2, dtype=np.uint32)}
    Checkpoint(tmp_path, "x", {"a": 1}, lambda there, here: []).offer(lambda: Saved(values, {"done": 7}))
    (path,) = tmp_path.iterdir()
    content, whole = path.read_bytes(), read()
    assert whole[1] == {"done": 7}
    rng = np.random.default_rng(0)
    for bit in rng.choice(8 * len(content), 500, replace=False):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(damaged)
        assert read() in (None, whole)
    for length in rng.integers(0, len(content), 100):
        path.write_bytes(content[:length])
        assert read() is None
    checkpoint.write_container(path, checkpoint.KIND, {"count": "many", "identity": {}, "facts": {}}, values)
    with pytest.raises(FileFormatError, match=r"damaged .ValueError: invalid literal"):
        Checkpoint(tmp_path, "x", {"a": 1}, lambda there, here: []).read()


def test_a_damaged_note_is_not_another_fit(expected, tmp_path, every_chunk):
    run("flow", tmp_path)
    note = tmp_path / "finished.json"
    note.write_text(note.read_text().replace('"steps": 1300', '"steps": 1301'))
    with pytest.warns(UserWarning, match=r"finished.json cannot be read .*the checksum of finished.json is wrong"):
        same(run("flow", tmp_path), expected["flow"])


def test_a_folder_serves_one_fit_at_a_time(tmp_path, monkeypatch):
    # The other process holds the lock that `claim_folder` takes; it needs nothing else of bernflow.
    code = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX); print(); input()"
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as other:
        other.stdout.readline()
        with pytest.raises(ArgumentError, match=r"resume=.* is in use by another fit.*Wait until that"):
            run("flow", tmp_path)
        monkeypatch.setattr(jax, "process_index", lambda: 1)  # another process of the same run
        with resume.claim_folder(tmp_path) as folder:
            assert folder == tmp_path
        monkeypatch.undo()
        other.kill()
    with resume.claim_folder(tmp_path), pytest.raises(ArgumentError, match="in use"):  # no other thread either
        resume.claim_folder(tmp_path).__enter__()
    with resume.claim_folder(tmp_path):
        pass


def lenient(read):
    """Read a checkpoint whatever it belongs to."""

    def every(self, path):
        self._same = lambda there, here: []
        return read(self, path)

    return every


def test_another_optimizer_state_is_refused(tmp_path, gaussian_model, monkeypatch):
    import optax

    def picky(inner):
        def init(params):
            if params.shape == (3,):
                raise TypeError
            return inner.init(params)

        return optax.GradientTransformation(init, inner.update)

    how = {"steps": 20, "family": "gaussian-fullrank", "progress": False, "resume": tmp_path}
    bf.fit(gaussian_model, **how, training=bf.Training(optimizer=picky(optax.sgd(1e-3))))
    (tmp_path / "finished.json").unlink()
    with pytest.raises(ArgumentError, match=r"belongs to another fit \(another optimizer\)"):
        bf.fit(gaussian_model, **how, training=bf.Training(optimizer=picky(optax.adam(1e-3))))
    monkeypatch.setattr(checkpoint.Checkpoint, "_read", lenient(checkpoint.Checkpoint._read))
    with pytest.raises(ArgumentError, match="the checkpoint of another flow or optimiser"):
        bf.fit(gaussian_model, **how, training=bf.Training(optimizer=picky(optax.adam(1e-3))))


@pytest.mark.parametrize(
    ("facts", "arrays"),
    [
        ({"done": -1}, {}),
        ({"done": "many"}, {}),
        ({"done": 1e300}, {}),
        ({"cycle": None}, {}),
        ({}, {"record_step": np.zeros(2)}),
        ({}, {"record_elbo": np.zeros((3, 1))}),
        ({}, {"record_elbo": np.array(["a", "b"])}),
        ({}, {"current_00000": np.zeros((10, 10))}),
        ({}, {"current_00000": np.array(["a"])}),
    ],
)
def test_crafted_checkpoints_are_refused(tmp_path, gaussian_model, monkeypatch, facts, arrays):
    how = {"steps": 20, "family": "gaussian-fullrank", "progress": False, "resume": tmp_path}
    monkeypatch.setattr(Checkpoint, "_read", lenient(Checkpoint._read))
    if not hasattr(test_crafted_checkpoints_are_refused, "whole"):
        bf.fit(gaussian_model, **how)
        (path,) = tmp_path.glob("flow-*.npz")
        test_crafted_checkpoints_are_refused.whole = path.name, path.read_bytes()
        (tmp_path / "finished.json").unlink()
    name, content = test_crafted_checkpoints_are_refused.whole
    (tmp_path / name).write_bytes(content)
    manifest, found = container.read_container(tmp_path / name, checkpoint.KIND)
    kept = {key: manifest[key] for key in ("count", "identity")} | {"facts": manifest["facts"] | facts}
    container.write_container(tmp_path / name, checkpoint.KIND, kept, found | arrays)
    with pytest.raises((ArgumentError, FileFormatError), match=r"is damaged|another flow or optimiser"):
        bf.fit(gaussian_model, **how)


def test_files_of_the_user_stay(tmp_path, gaussian_model):
    how = {"steps": 20, "family": "gaussian-fullrank", "progress": False, "resume": tmp_path}
    ours = [
        f".{name}.{'0' * 32}.part" for name in ("posterior.bernflow", "finished.json", "flow-1.npz", "batches-0.npz")
    ]
    others = [".thesis.part", f".thesis.tex.{'0' * 32}.part", ".posterior.bernflow.part", "movie.part"]
    for name in (*ours, *others):
        (tmp_path / name).write_text("x")
    bf.fit(gaussian_model, **how)
    assert {path.name for path in tmp_path.iterdir()} >= set(others)
    assert not {path.name for path in tmp_path.iterdir()} & set(ours)
