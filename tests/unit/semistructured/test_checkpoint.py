import equinox as eqx
import jax
import numpy as np
import pytest

import bernflow as bf
from bernflow.errors import ArgumentError, FileFormatError
from bernflow.semistructured.checkpoint import Checkpoint

from .conftest import binary, make

DATA, VALID = binary(0), binary(1, 200)
HOW = {"epochs": 5, "batch_size": 100, "learning_rate": 1e-2, "progress": False}


@pytest.fixture(scope="module")
def estimator():
    return bf.SemiStructured(make, "1 + age + C(sex)", family="gaussian-fullrank")


def summarize(model):
    leaves = jax.tree.leaves(eqx.filter(model.networks[0].weights, eqx.is_array))
    return [*map(np.asarray, leaves), model.coefficients(num=50).to_numpy(), *model.histories[0].values()]


@pytest.mark.parametrize("patience", [None, 1])
def test_an_interrupted_training_ends_as_if_it_had_not_been(estimator, tmp_path, monkeypatch, patience):
    how = HOW | {"patience": patience, "learning_rate": 1e-2 if patience is None else 0.3}
    expected = summarize(estimator.fit(*DATA, VALID, **how))
    best = estimator.best_epochs
    write, written = Checkpoint.write, []

    def interrupt(self, progress):
        write(self, progress)
        written.append(progress.epoch)
        if len(written) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        estimator.fit(*DATA, VALID, **how, checkpoint=tmp_path / "new" / "folder")
    folder = tmp_path / "new" / "folder"
    assert [path.name for path in folder.iterdir()] == ["network-0.npz"]
    assert len(np.load(folder / "network-0.npz", allow_pickle=False).files) > 5
    # The second call ends the training, the third finds it complete.
    for _ in range(2):
        model = estimator.fit(*DATA, VALID, **how, checkpoint=folder)
        assert model.best_epochs == best
        for one, other in zip(summarize(model), expected, strict=True):
            np.testing.assert_array_equal(one, other)
    num_epochs = len(model.histories[0]["epoch"])
    assert written == list(range(1, num_epochs + 1))
    assert num_epochs == (5 if patience is None else best[0] + 1)
    assert model.posterior.settings["joint_steps"] == 10 * num_epochs

    with pytest.raises(ArgumentError, match=r"belongs to another training \(epochs=5; now epochs=6\)"):
        estimator.fit(*DATA, VALID, **how | {"epochs": 6}, checkpoint=folder)
    with pytest.raises(ArgumentError, match=r"another training \(data="):
        estimator.fit(DATA[0], DATA[1] + 1, DATA[2], VALID, **how, checkpoint=folder)
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
        estimator.fit(*DATA, VALID, **how, checkpoint=folder)


def test_a_folder_that_cannot_be_written_to(estimator, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match=r"checkpoint=.*cannot be written to .*expected a folder"):
        estimator.fit(*DATA, **HOW, checkpoint=tmp_path / "file" / "folder")
