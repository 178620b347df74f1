"""Every model builds, has the stated number of parameters, and a finite density with a finite gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.models import data
from benchmarks.models.catalogue import catalogue, choose, without_missing
from bernflow.errors import ArgumentError, FileFormatError
from bernflow.models import as_model
from bernflow.precision import use_precision
from bernflow.target import Target

ENTRIES = catalogue()


def loaded(entry):
    try:
        return entry.args
    except ArgumentError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.parametrize("name", ENTRIES)
def test_density_is_finite_in_the_stated_dimension(name):
    entry = ENTRIES[name]
    args = loaded(entry)
    with use_precision("float64"):
        target = Target(as_model(entry.model, args, {}))
        assert target.dim == entry.dim
        x = 0.1 * jax.random.normal(jax.random.key(0), (target.dim,))
        value, gradient = jax.jit(jax.value_and_grad(target.log_density))(x)
        assert jnp.isfinite(value)
        assert jnp.all(jnp.isfinite(gradient))
        assert jnp.all(gradient != 0.0)


def test_simulated_data_are_the_same_in_every_run():
    for entry in ENTRIES.values():
        if entry.group == "simulated":
            for one, other in zip(entry.args, entry.args, strict=True):
                np.testing.assert_array_equal(one, other)


def test_choose_by_name_and_group():
    assert list(choose(ENTRIES, ["rats"])) == ["rats"]
    assert len(choose(ENTRIES, ["real"])) == 11
    assert choose(ENTRIES, None) == ENTRIES
    with pytest.raises(ArgumentError, match="There is no model rat: expected a group"):
        choose(ENTRIES, ["rat"])


def test_models_without_their_data_are_skipped_with_a_sentence(tmp_path):
    kept, note = without_missing(ENTRIES, tmp_path)
    assert {entry.group for entry in kept.values()} == {"simulated"}
    assert "The 11 models with real data are skipped." in note
    assert without_missing(kept, tmp_path) == (kept, None)


def test_data_are_found_by_the_environment_variable(tmp_path, monkeypatch):
    monkeypatch.setenv(data.VARIABLE, str(tmp_path))
    with pytest.raises(ArgumentError, match="expected a folder `data` in it"):
        data.find_folder()
    (tmp_path / "data").mkdir()
    assert data.find_folder() == tmp_path
    (tmp_path / "data" / "one.json").write_text('{"n": 2, "y": [1, 2]}')
    found = data.load_data("one")
    assert found["n"] == 2
    np.testing.assert_array_equal(found["y"], [1, 2])
    (tmp_path / "data" / "two.json").write_text("[1")
    for name in ("two", "three"):
        with pytest.raises(FileFormatError, match="cannot be read"):
            data.load_data(name)
