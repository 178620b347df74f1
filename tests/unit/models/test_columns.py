import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest

import bernflow as bf
from bernflow.errors import ModelError
from bernflow.models import as_model
from bernflow.models.columns import as_arrays

X, G, Y = np.array([0.5, 1.5, -0.3]), np.array([0, 1, 1]), np.array([1.0, 2.0, 0.5])
THETA = {"a": np.array([0.1, 0.4]), "b": np.array(0.7)}


def model(x, g, y=None):
    a = numpyro.sample("a", dist.Normal(0, 5).expand([2]).to_event(1))
    b = numpyro.sample("b", dist.Normal(0, 5))
    numpyro.sample("y", dist.Normal(a[g] + b * x, 1.0), obs=y)


def columns(kind):
    if kind == "lists":
        return X.tolist(), G.tolist(), Y.tolist()
    if kind == "polars":
        polars = pytest.importorskip("polars")
        return tuple(polars.Series(values) for values in (X, G, Y))
    if kind == "nullable":
        return tuple(pd.Series(values).convert_dtypes() for values in (X, G, Y))
    return tuple(pd.Series(values, index=[3, 5, 9]) for values in (X, G, Y))


@pytest.mark.parametrize("kind", ["pandas", "polars", "nullable", "lists"])
def test_columns_are_arrays(kind):
    x, g, y = columns(kind)
    expected = as_model(model, (X, G), {"y": Y}).log_density(THETA)
    assert as_model(model, (x, g), {"y": y}).log_density(THETA) == pytest.approx(float(expected))


def test_a_table_is_the_dict_of_its_columns():
    def of_table(data):
        b = numpyro.sample("b", dist.Normal(0, 5))
        numpyro.sample("y", dist.Normal(b * data["x"], 1.0), obs=data["y"])

    table = pd.DataFrame({"x": X, "y": Y, "name": list("abc")})
    expected = as_model(of_table, ({"x": X, "y": Y},)).log_density({"b": 0.7})
    assert as_model(of_table, (table,)).log_density({"b": 0.7}) == pytest.approx(float(expected))


def of_matrix(data, y=None):
    b = numpyro.sample("b", dist.Normal(0, 5).expand([data.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Normal(data @ b, 1.0), obs=y)


@pytest.mark.parametrize("kind", ["pandas", "polars", "repeated"])
def test_a_table_is_a_matrix_where_its_columns_are_refused(kind):
    table = pd.DataFrame({"x": X, "g": G})
    expected = as_model(of_matrix, (np.stack([X, G], axis=1),), {"y": Y}).log_density({"b": np.array([0.7, 0.2])})
    if kind == "repeated":  # names do not tell the columns apart
        table.columns = ["x", "x"]
    given = pytest.importorskip("polars").from_pandas(table) if kind == "polars" else table
    found = as_model(of_matrix, (given,), {"y": Y.tolist()})
    assert found.log_density({"b": np.array([0.7, 0.2])}) == pytest.approx(float(expected))
    own = bf.Model(
        prior={"b": dist.Normal(0, 5).expand([2]).to_event(1)},
        likelihood=lambda theta, x: dist.Normal(x @ theta["b"], 1.0),
        y=Y,
        x=given,
    )
    assert own.log_density({"b": np.array([0.7, 0.2])}) == pytest.approx(float(expected))


def test_a_table_whose_columns_are_attributes_stays_one():
    def of_attributes(data, y=None):
        b = numpyro.sample("b", dist.Normal(0, 5))
        numpyro.sample("y", dist.Normal(b * data.x.to_numpy(), 1.0), obs=y)

    found = as_model(of_attributes, (pd.DataFrame({"x": X}),), {"y": Y.tolist()})
    assert np.isfinite(found.log_density({"b": 0.7}))


def test_errors_of_models_of_tables_are_those_of_the_right_reading():
    def misspelt(data, y=None):
        numpyro.sample("y", dist.Normal(data["x"] * slope, 1.0), obs=y)  # noqa: F821

    def absent(data, y=None):
        b = numpyro.sample("b", dist.Normal(0, 5))
        numpyro.sample("y", dist.Normal(data.z * b, 1.0), obs=y)

    table = pd.DataFrame({"x": X})
    with pytest.raises(ModelError, match="NameError: name 'slope' is not defined"):
        as_model(misspelt, (table,), {"y": Y})
    with pytest.raises(ModelError, match=r"has no attribute 'z'[^$]*reaches the model as the dict of its columns"):
        as_model(absent, (table,), {"y": Y})
    with pytest.raises(ModelError, match="failed with KeyError: 'z'"):
        bf.Model(
            prior={"b": dist.Normal(0, 5)},
            likelihood=lambda theta, x: dist.Normal(theta["b"] * x["z"], 1),
            y=Y,
            x=table,
        )


@pytest.mark.parametrize("values", [["u", "v", "w"], pd.to_datetime(["2020-01-01", "2021-01-01", "2022-01-01"])])
def test_columns_that_are_no_numbers_are_named(values):
    with pytest.raises(ModelError, match="An argument is a column of text or dates: give numbers"):
        as_model(model, (pd.Series(values), G), {"y": Y})


def test_a_list_of_sizes_stays_one():
    def network(hidden, x):
        widths = [1, *hidden, 1]
        assert isinstance(hidden, list)
        numpyro.sample("w", dist.Normal(0, 1).expand(widths))
        numpyro.sample("y", dist.Normal(0, 1), obs=x)

    assert as_model(network, ([2, 3], X)).sites[0].shape == (1, 2, 3, 1)


def test_missing_values_of_a_column_are_named():
    with pytest.raises(ModelError, match=r"args\[0\] has 1 NaN values, the first at index \(1,\)"):
        as_model(model, (pd.Series([0.5, None, 1.0], dtype="Float64"), G), {"y": Y})


def test_the_error_is_that_of_the_model():
    def wrong(x, y=None):
        raise ZeroDivisionError("mine")

    with pytest.raises(ModelError, match="failed with ZeroDivisionError: mine") as found:
        as_model(wrong, (pd.Series(X),))
    assert isinstance(found.value.__cause__, ZeroDivisionError)


def test_what_is_no_column_stays():
    kept = {"names": ["a", "b"], "ragged": [[1.0], [1.0, 2.0]], "text": pd.Series(["u", "v"]), "none": None}
    found = as_arrays(kept)
    assert found["names"] == ["a", "b"]
    assert found["text"] is kept["text"]
    assert [part.tolist() for part in found["ragged"]] == [[1.0], [1.0, 2.0]]
    np.testing.assert_array_equal(as_arrays([[1, 2], [3, 4]]), [[1, 2], [3, 4]])


def test_columns_for_a_model_of_ours():
    own = bf.Model(
        prior={"b": dist.Normal(0, 5)},
        likelihood=lambda theta, x: dist.Normal(theta["b"] * x["x"], 1.0),
        y=pd.Series(Y),
        x=pd.DataFrame({"x": X}),
    )
    assert own.log_density({"b": 0.7}) == pytest.approx(
        float(dist.Normal(0, 5).log_prob(0.7) + dist.Normal(0.7 * X, 1.0).log_prob(Y).sum())
    )


def test_an_unknown_keyword_of_a_model_is_named():
    with pytest.raises(TypeError, match=r"Model got an unexpected keyword argument 'X': .* Did you mean 'x'\?"):
        bf.Model(X=X)
    with pytest.raises(ModelError, match="prior is None: expected a dict"):
        bf.Model(likelihood=lambda theta: None, y=Y)
