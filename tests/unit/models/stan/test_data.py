import json

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from bernflow.errors import ArgumentError, FileFormatError
from bernflow.models.stan.data import read_data, to_arrays, to_json


def test_every_kind_of_number_survives():
    data = {
        "n": np.int64(3),
        "flag": True,
        "x": np.array([[0.1, 1e-300], [1.0, 2.0]]),
        "k": jnp.arange(2),
        "single": np.float32(0.5),
        "mask": np.array([True, False]),
        "series": pd.Series([1.5, 2.5]),
        "nested": ((1, 2), [3, 4]),
        "z": 1 + 2j,
        "zs": np.array([1j]),
        "pair": {"1": 2.0, "2": np.arange(2)},
        "none_of_it": np.zeros((0, 2)),
    }
    assert json.loads(to_json(read_data(data))) == {
        "n": 3,
        "flag": 1,
        "x": [[0.1, 1e-300], [1.0, 2.0]],
        "k": [0, 1],
        "single": 0.5,
        "mask": [1, 0],
        "series": [1.5, 2.5],
        "nested": [[1, 2], [3, 4]],
        "z": [1.0, 2.0],
        "zs": [[0.0, 1.0]],
        "pair": {"1": 2.0, "2": [0, 1]},
        "none_of_it": [],
    }
    # Stan tells integers from reals by the decimal point.
    assert to_json(read_data({"n": 3, "x": 3.0})) == '{"n": 3, "x": 3.0}'


def test_no_data_are_an_empty_object():
    assert to_json(read_data(None)) == "{}"


def test_a_file_with_the_words_of_cmdstan(tmp_path):
    path = tmp_path / "data.json"
    path.write_text('{"N": 4, "x": ["NaN", "Inf", "-Inf", "+inf", "-Infinity", 2.5], "y": [NaN, Infinity]}')
    for given in (path, str(path)):
        data = read_data(given)
        assert data["N"] == 4
        np.testing.assert_array_equal(data["x"], [np.nan, np.inf, -np.inf, np.inf, -np.inf, 2.5])
    assert to_json({"y": data["y"]}) == '{"y": [NaN, Infinity]}'  # as Stan's parser reads them


def test_only_arrays_of_numbers_are_handed_on():
    arrays = to_arrays({"n": 3, "x": [[1.0, 2.0]], "ragged": [[1], [1, 2]], "pair": {"1": 2.0}})
    assert sorted(arrays) == ["n", "x"]
    assert arrays["x"].shape == (1, 2)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ([1, 2], "data is a list: expected a dict by name of variable, or the path of a JSON file"),
        ({1: 2}, "data has the key 1: expected names"),
        ({"x": None}, r"data\['x'\] is a NoneType with dtype object: expected numbers"),
        ({"x": ["a"]}, r"data\['x'\] contains the string 'a': expected numbers"),
        ({"x": np.array(["a"])}, r"data\['x'\] is a ndarray with dtype <U1: expected numbers"),
        (
            {"x": np.ma.masked_array([1.0, 2.0], [True, False])},
            r"data\['x'\] is a masked array: expected complete data",
        ),
    ],
)
def test_refused(data, match):
    with pytest.raises(ArgumentError, match=match):
        read_data(data)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b'{"N": 4,\n "y": [1, }', r"data.json' is not JSON \(.*line 2.*\): expected an object of variables"),
        (b"[1, 2]", "data.json' contains a list: expected an object of variables"),
        (b"\xff\xfe", r"data.json' cannot be read \(.*utf-8"),
        (b'{"x": "many"}', r"data.json: data\['x'\] contains the string 'many'"),
    ],
)
def test_unreadable_files(content, match, tmp_path):
    path = tmp_path / "data.json"
    path.write_bytes(content)
    with pytest.raises((FileFormatError, ArgumentError), match=match):
        read_data(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(FileFormatError, match=r"nowhere.json' does not exist: expected a JSON file"):
        read_data(tmp_path / "nowhere.json")
