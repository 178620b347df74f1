import json
import sys
import textwrap

import numpy as np
import pytest

import bernflow as bf
from bernflow.errors import ArgumentError, FileFormatError, ModelError
from bernflow.runs import load_model, source
from bernflow.runs.source import split_name

FILE = """
    import numpy as np
    import numpyro, numpyro.distributions as dist
    import bernflow as bf
    from beside import SCALE

    def model(y, sigma=SCALE):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu, sigma), obs=y)

    held = bf.Model(
        prior={"mu": dist.Normal(0.0, 1.0)}, likelihood=lambda theta: dist.Normal(theta["mu"], 1.0), y=np.ones(3)
    )
    number = 3
"""


@pytest.fixture
def file(tmp_path):
    (tmp_path / "beside.py").write_text("SCALE = 2.0\n")
    path = tmp_path / "some_models.py"
    path.write_text(textwrap.dedent(FILE))
    yield path
    sys.modules.pop("beside", None)


def data(tmp_path, **values):
    path = tmp_path / "data.json"
    path.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize(
    ("given", "path", "name"),
    [
        ("a.stan", "a.stan", None),
        ("dir/a.py:other", "dir/a.py", "other"),
        ("a.py", "a.py", "model"),
        ("a.py:", "a.py", "model"),
        ("C:/dir/a.py", "C:/dir/a.py", "model"),
        ("C:/dir/a.stan", "C:/dir/a.stan", None),
    ],
)
def test_names(given, path, name):
    found = split_name(given)
    assert (found[0].as_posix(), found[1]) == (path, name)


@pytest.mark.parametrize("given", ["a.txt", "model", "a.stan:model", "a.json"])
def test_other_files_are_refused(given):
    with pytest.raises(ArgumentError, match=r"is neither a Stan program nor a Python file: expected MODEL.stan, or"):
        split_name(given)


def test_a_function_gets_the_data_as_keywords(file, tmp_path):
    path_before = list(sys.path)
    found = load_model(str(file), data(tmp_path, y=[1, 2, 3], sigma=2))
    assert found.model.__name__ == "model"
    assert isinstance(found.model_kwargs["y"], np.ndarray)
    np.testing.assert_array_equal(found.model_kwargs["y"], [1, 2, 3])
    assert found.model_kwargs["sigma"] == 2
    assert isinstance(found.model_kwargs["sigma"], int)
    assert sys.path == path_before


def test_missing_values_arrive_as_such(file, tmp_path):
    found = load_model(str(file), data(tmp_path, y=[1.5, "NaN", "-Inf"]))
    np.testing.assert_array_equal(found.model_kwargs["y"], [1.5, np.nan, -np.inf])


def test_a_model_holds_its_data(file, tmp_path):
    found = load_model(f"{file}:held")
    assert isinstance(found.model, bf.Model)
    assert found.model_kwargs == {}
    with pytest.raises(
        ArgumentError, match=r"some_models.py:held is a Model, which contains its data: leave .*data.json out"
    ):
        load_model(f"{file}:held", data(tmp_path, y=[1.0]))


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("model", {"x": [1.0]}, r"model\(y, sigma=2.0\) and the names of the data differ .*The data are: x\."),
        ("model", {}, r"missing a required argument: 'y'\)\. The data are: none\."),
        ("other", {}, r"some_models.py has no 'other': expected .* It has model\."),
        ("number", {}, r"some_models.py:number is a int: expected a NumPyro model function"),
        ("model", {"y": [[1.0], [1.0, 2.0]]}, "The data 'y' have rows of different lengths: expected arrays"),
    ],
)
def test_what_does_not_fit_is_named(file, tmp_path, name, values, message):
    with pytest.raises((ArgumentError, FileFormatError), match=message):
        load_model(f"{file}:{name}", data(tmp_path, **values))


def test_without_a_data_file_the_message_says_so(file):
    with pytest.raises(ArgumentError, match="The data are: none, as there is no data file"):
        load_model(str(file))


def test_files_that_are_not_there(tmp_path, file):
    with pytest.raises(FileFormatError, match=r"The model '.*none.py' does not exist: expected MODEL.stan"):
        load_model(str(tmp_path / "none.py"))
    with pytest.raises(FileFormatError, match=r"The data file '.*none.json' does not exist"):
        load_model(str(file), tmp_path / "none.json")
    with pytest.raises(FileFormatError, match=r"'.*d.parque' does not exist: expected JSON, CSV or Parquet"):
        load_model(str(file), tmp_path / "d.parque")


def test_a_file_that_fails_says_how(tmp_path):
    path = tmp_path / "broken.py"
    path.write_text("1 / 0\n")
    with pytest.raises(ModelError, match=r"The file '.*broken.py' failed with ZeroDivisionError: division by zero"):
        load_model(str(path))


def test_stan_programs_go_to_their_front_end(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(source, "from_stan", lambda path, **options: seen.append((path, options)) or "a model")
    path = tmp_path / "a.stan"
    path.write_text("parameters { real x; } model { x ~ normal(0, 1); }")
    given = data(tmp_path, N=3)
    assert load_model(str(path), given, progress=False) == ("a model", {})
    assert seen == [(path, {"data": given, "progress": False})]
