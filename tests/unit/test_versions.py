from importlib import metadata

import jax.numpy as jnp
import numpy as np
import pytest

import bernflow as bf
from bernflow.cli.app import main
from bernflow.versions import version_of


@pytest.fixture
def no_metadata(monkeypatch):
    """Packages without metadata, as bernflow from a source tree that was not installed."""

    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    monkeypatch.setattr(metadata, "requires", missing)


def test_an_installed_package_has_its_version():
    assert version_of("jax") == metadata.version("jax")


@pytest.mark.filterwarnings("ignore:bernflow:UserWarning")
def test_without_metadata_a_fit_is_returned_saved_loaded_and_reported(no_metadata, tmp_path):
    model = bf.from_log_density(lambda x: -0.5 * jnp.sum(x**2), np.zeros(2))
    post = bf.fit(model, family="gaussian", steps=10, progress=False)
    assert post.settings["versions"]["bernflow"] == "unknown"
    loaded = bf.load(post.save(tmp_path / "post.bernflow"))
    np.testing.assert_array_equal(loaded.draws(5)["x"], post.draws(5)["x"])
    assert "Written by bernflow unknown" in post.report(tmp_path / "report.html").read_text(encoding="utf-8")


def test_without_metadata_the_command_line_says_so(no_metadata, capsys):
    for command in (["--version"], ["doctor", "--no-compile"]):
        main(command)
        assert "bernflow unknown" in capsys.readouterr().out
