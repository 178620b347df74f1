"""Data and draws are read as they are, and what is not posteriordb's is refused."""

import json
import zipfile

import numpy as np
import pytest

from benchmarks.posteriordb.catalogue import POSTERIORS
from benchmarks.posteriordb.reference import VARIABLE, find_folder, load_data, load_draws
from bernflow.errors import ArgumentError, FileFormatError

SCHOOLS = POSTERIORS["eight_schools-eight_schools_noncentered"]


@pytest.fixture
def copy(tmp_path):
    """Write a small folder of one posterior, whose parts can be replaced."""

    def write(data=None, chains=None, raw=None):
        for name in ("posteriors", "data", "draws"):
            (tmp_path / name).mkdir()
        files = {"data/eight_schools": data, f"draws/{SCHOOLS.name}": chains}
        for name, content in files.items():
            if raw is not None:
                (tmp_path / f"{name}.json.zip").write_bytes(raw)
            elif content is not None:
                with zipfile.ZipFile(tmp_path / f"{name}.json.zip", "w") as archive:
                    archive.writestr("content.json", json.dumps(content))
        return tmp_path

    return write


@pytest.mark.parametrize("name", POSTERIORS)
def test_columns_are_those_of_the_reference(name, folder):
    entry = POSTERIORS[name]
    dimensions = json.loads((folder / "posteriors" / f"{name}.json").read_text())["dimensions"]
    assert {key: int(np.prod(shape)) for key, shape in entry.shapes.items()} == dimensions
    draws = load_draws(entry, folder)
    assert tuple(draws) == entry.columns
    assert {values.shape for values in draws.values()} == {(10, 1000)}


def test_data_are_arrays_and_whole_numbers(folder):
    data = load_data(SCHOOLS, folder)
    assert data["J"] == 8
    assert data["y"].tolist() == [28, 8, -3, 7, -1, 1, 18, 12]
    assert data["sigma"].dtype == np.int64


def test_folder_of_the_environment(copy, monkeypatch):
    path = copy(data={"J": 8, "y": [1.5]})
    monkeypatch.setenv(VARIABLE, str(path))
    assert find_folder() == path
    assert load_data(SCHOOLS)["y"].tolist() == [1.5]


def test_not_a_folder_of_posteriordb(tmp_path):
    (tmp_path / "data").mkdir()
    with pytest.raises(ArgumentError, match=r"without posteriors, draws\. Pass the folder, or set the .*" + VARIABLE):
        find_folder(tmp_path)


def test_missing_file(copy):
    with pytest.raises(ArgumentError, match="There is no file"):
        load_data(SCHOOLS, copy())


@pytest.mark.parametrize("read", [load_data, load_draws])
def test_damaged_archive(read, copy):
    with pytest.raises(FileFormatError, match="cannot be read"):
        read(SCHOOLS, copy(raw=b"PK but no archive"))


def test_data_that_are_no_object(copy):
    with pytest.raises(FileFormatError, match="are a list: expected a JSON object"):
        load_data(SCHOOLS, copy(data=[1, 2]))


@pytest.mark.parametrize("chains", [[], {"mu": [1.0]}, [{"mu": [1.0]}]])
def test_draws_of_another_posterior(chains, copy):
    with pytest.raises(FileFormatError, match="not a list of chains with the columns"):
        load_draws(SCHOOLS, copy(chains=chains))


def test_draws_that_are_not_finite(copy):
    chain = {name: [0.5, 1.0] for name in SCHOOLS.columns}
    with pytest.raises(FileFormatError, match=r"missing or infinite values .* in mu: expected finite"):
        load_draws(SCHOOLS, copy(chains=[chain, {**chain, "mu": [0.5, float("nan")]}]))
