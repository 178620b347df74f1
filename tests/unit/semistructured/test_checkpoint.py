import os
import signal
import subprocess
import sys
import textwrap
import time

import equinox as eqx
import jax
import numpy as np
import pytest

import bernflow as bf
from bernflow.errors import ArgumentError, FileFormatError
from bernflow.semistructured import runs
from bernflow.semistructured.checkpoint import Checkpoint

from .conftest import binary, make

DATA, VALID = binary(0), binary(1, 200)
HOW = {"epochs": 5, "batch_size": 100, "optimizer": 1e-2, "progress": False}


@pytest.fixture(scope="module")
def estimator():
    return bf.SemiStructured(make, "age + C(sex)", family="gaussian-fullrank")


def summarize(model):
    leaves = [leaf for one in model.trained_networks for leaf in jax.tree.leaves(eqx.filter(one.weights, eqx.is_array))]
    return [*map(np.asarray, leaves), model.coefficients().to_numpy(), *model.histories[0].values()]


@pytest.mark.parametrize("patience", [None, 1])
def test_an_interrupted_training_ends_as_if_it_had_not_been(estimator, tmp_path, monkeypatch, patience):
    how = HOW | {"patience": patience, "optimizer": 1e-2 if patience is None else 0.3}
    expected = summarize(estimator.fit(*DATA, VALID, **how))
    best, num_epochs = estimator.best_epochs, [len(history["epoch"]) for history in estimator.histories]
    write, written = Checkpoint.write, []

    def interrupt(self, progress):
        write(self, progress)
        written.append(progress.epoch)
        if len(written) == 3:  # the first network is an epoch ahead
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "write", interrupt)
    folder = tmp_path / "new" / "folder"
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(*DATA, VALID, **how, resume=folder)
    assert sorted(path.name for path in folder.iterdir()) == ["network-0.npz", "network-1.npz"]
    assert len(np.load(folder / "network-0.npz", allow_pickle=False).files) > 5
    # The second call ends the training, the third finds it complete.
    for _ in range(2):
        model = estimator.fit(*DATA, VALID, **how, resume=folder)
        assert model.best_epochs == best
        for one, other in zip(summarize(model), expected, strict=True):
            np.testing.assert_array_equal(one, other)
    assert len(written) == sum(num_epochs)
    assert num_epochs == ([5, 5] if patience is None else [epoch + 1 for epoch in best])

    with pytest.raises(ArgumentError, match=r"belongs to another training \(epochs=5; now epochs=6\)"):
        estimator.fit(*DATA, VALID, **how | {"epochs": 6}, resume=folder)
    with pytest.raises(ArgumentError, match=r"another training \(data="):
        estimator.fit(DATA[0], DATA[1] + 1, DATA[2], VALID, **how, resume=folder)
    content = (folder / "network-0.npz").read_bytes()
    for damaged in (
        b"PK nonsense",
        content[:-100],
        content[: len(content) // 2],
        content.replace(b"epochs", b"epochz"),
    ):
        (folder / "network-0.npz").write_bytes(damaged)
        with pytest.raises(FileFormatError, match=r"not a checkpoint, or it is damaged.*delete it to begin anew"):
            Checkpoint(folder / "network-0.npz", {}).read(None)
    with pytest.raises(FileFormatError, match="not a checkpoint, or it is damaged"):
        estimator.fit(*DATA, VALID, **how, resume=folder)


def test_a_folder_that_cannot_be_written_to(estimator, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"resume=.*cannot be written to .*expected a folder"):
        estimator.fit(*DATA, **HOW, resume=tmp_path / "file" / "folder")


def test_ctrl_c_keeps_the_best_epoch_so_far(estimator, monkeypatch):
    run_epoch, calls = runs.Run.run_epoch, []

    def press(self, source):
        calls.append(1)
        run_epoch(self, source)
        if len(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(runs.Run, "run_epoch", press)
    model = estimator.fit(*DATA, **HOW)
    assert [len(history["epoch"]) for history in model.histories] == [2, 2]
    assert "interrupted" in model.findings[0]
    assert np.isfinite(model.score(*VALID))


PROGRAM = """
    import sys
    import bernflow as bf
    from tests.unit.semistructured.conftest import binary, make
    table, images, y = binary(0)
    model = bf.SemiStructured(make, "age + C(sex)", family="gaussian-fullrank")
    model.fit(table, images, y, epochs=5000, batch_size=100, progress=False, resume=sys.argv[1])
"""


@pytest.mark.slow
def test_a_killed_training_goes_on(tmp_path):
    arguments = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)]
    with subprocess.Popen(arguments, env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, "."])}) as process:
        while not (tmp_path / "network-1.npz").exists():
            assert process.poll() is None
            time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
    before = np.load(tmp_path / "network-0.npz", allow_pickle=False)["history_loss"]
    with subprocess.Popen(arguments, env={**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, "."])}) as process:
        while len(np.load(tmp_path / "network-0.npz", allow_pickle=False)["history_loss"]) < len(before) + 3:
            assert process.poll() is None
            time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
    after = np.load(tmp_path / "network-0.npz", allow_pickle=False)["history_loss"]
    np.testing.assert_array_equal(after[: len(before)], before)
