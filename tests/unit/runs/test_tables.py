import json

import numpy as np
import pandas as pd
import pytest

from bernflow.cli import main
from bernflow.errors import FileFormatError
from bernflow.runs.source import load_model
from bernflow.runs.tables import for_stan, read_table

TABLE = pd.DataFrame({"y": [0.5, 1.5], "g": [0, 1], "name": ["a", "b"], "flag": [True, False]})
MODEL = """
import numpyro, numpyro.distributions as dist

def model(y, N):
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0, 1)), 1).expand([N]), obs=y)
"""
PYMC = """
import pymc as pm

def build(y):
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", 0, 1), 1, observed=y)
    return model

model = build([0.0, 1.0])
"""


def write(folder, kind):
    path = folder / f"data.{kind}"
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    TABLE.to_csv(path, index=False) if kind == "csv" else TABLE.to_parquet(path)
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_columns_are_arrays(tmp_path, kind):
    found = read_table(write(tmp_path, kind))
    assert found["N"] == 2
    np.testing.assert_array_equal(found["y"], [0.5, 1.5])
    stan = for_stan(found)
    assert set(stan) == {"N", "y", "g", "flag"}
    assert stan["flag"].dtype.kind == "i"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_function_gets_the_columns_that_it_takes(tmp_path, kind):
    (tmp_path / "model.py").write_text(MODEL)
    source = load_model(str(tmp_path / "model.py"), write(tmp_path, kind))
    assert set(source.model_kwargs) == {"y", "N"}
    np.testing.assert_array_equal(source.model_kwargs["y"], TABLE.y)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_pymc_model_of_a_table_is_fitted(tmp_path, kind, capsys):
    pytest.importorskip("pymc")
    (tmp_path / "model.py").write_text(PYMC)
    words = [
        "fit",
        f"{tmp_path / 'model.py'}:build",
        "--data",
        str(write(tmp_path, kind)),
        "--out",
        str(tmp_path / "out"),
    ]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["summary"]["mu"]
    # The posterior is N(2 / 3, 1 / 3), of 4,000 draws.
    assert found["mean"] == pytest.approx(2 / 3, abs=5 * 3**-0.5 / 4000**0.5)
    assert found["sd"] == pytest.approx(3**-0.5, rel=0.06)


def test_files_of_pymc_models(tmp_path):
    pytest.importorskip("pymc")
    from bernflow.models.pymc import is_pymc

    TABLE.to_csv(tmp_path / "data.csv", index=False)
    (tmp_path / "model.py").write_text(PYMC)
    assert is_pymc(load_model(str(tmp_path / "model.py")).model)
    built = load_model(f"{tmp_path / 'model.py'}:build", tmp_path / "data.csv")
    assert is_pymc(built.model)
    assert built.model_kwargs == {}


def test_files_that_are_no_tables(tmp_path):
    with pytest.raises(FileFormatError, match="does not exist: expected JSON, CSV or Parquet"):
        read_table(tmp_path / "none.csv")
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    with pytest.raises(FileFormatError, match="cannot be read"):
        read_table(tmp_path / "bad.parquet")
