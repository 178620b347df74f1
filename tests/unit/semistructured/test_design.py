import builtins

import numpy as np
import pandas as pd
import pytest

from bernflow.errors import ArgumentError
from bernflow.semistructured.design import Design, Formula

TABLE = {"age": [1.0, 2.0, 3.0, 5.0], "sex": ["f", "m", "m", "f"], "site": [1, 2, 3, 1]}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("age + C(sex)", ("age", "C(sex)[T.m]")),
        ("1 + age", ("Intercept", "age")),
        ("0 + C(sex)", ("C(sex)[f]", "C(sex)[m]")),
        ("age * sex", ("age", "sex[T.m]", "age:sex[T.m]")),
        ("C(site)", ("C(site)[T.2]", "C(site)[T.3]")),
    ],
)
def test_the_intercept_is_the_networks_unless_it_is_written(text, names):
    assert Design(Formula(text), TABLE).names == names


def test_a_new_table_is_coded_as_the_old_one():
    design = Design(Formula("scale(age) + C(sex)"), pd.DataFrame(TABLE, index=[7, 7, 8, 9]))
    np.testing.assert_allclose(design.matrix[:, 0].mean(), 0.0, atol=1e-12)
    np.testing.assert_allclose(design({"age": [2.0], "sex": ["m"]}), design.matrix[1:2])


@pytest.mark.parametrize("text", ["age +", "age + (", "age sex"])
def test_a_formula_that_cannot_be_read(text):
    with pytest.raises(ArgumentError, match=r"formula=.* cannot be read: .* Expected columns"):
        Formula(text)


@pytest.mark.parametrize("text", ["", None])
def test_an_empty_formula(text):
    with pytest.raises(ArgumentError, match="expected a string with at least one column"):
        Formula(text)


def test_a_formula_with_an_outcome():
    with pytest.raises(ArgumentError, match="expected the right-hand side only"):
        Formula("y ~ age")


@pytest.mark.parametrize("text", ["age + weight", "bs(weight, df=4)", "np.log(weight)"])
def test_an_unknown_column(text):
    with pytest.raises(ArgumentError, match=r"asks for the column 'weight'.*one of 'age', 'sex', 'site'"):
        Design(Formula(text), TABLE)


@pytest.mark.parametrize(
    ("column", "values"), [("age", [1.0, np.nan, np.nan, 2.0]), ("sex", np.array(["f", None, None, "m"], object))]
)
def test_missing_values(column, values):
    with pytest.raises(ArgumentError, match=rf"column '{column}' has 2 missing values, the first in row 1"):
        Design(Formula("scale(age) + C(sex)"), TABLE | {column: values})


def test_a_transformation_that_is_not_finite():
    with pytest.raises(ArgumentError, match=r"1 values of 'I\(1 / age\)' that are not finite, the first in row 0"):
        Design(Formula("I(1 / age)"), TABLE | {"age": [0.0, 1.0, 2.0, 3.0]})


@pytest.mark.parametrize("text", ["C(sex)", "sex"])
def test_an_unseen_category(text):
    design = Design(Formula(text), TABLE)
    with pytest.raises(ArgumentError, match=r"column 'sex' has the category 'x'.*not seen: expected one of 'f', 'm'"):
        design({"sex": ["f", "x"]})


def test_an_unseen_category_of_an_expression():
    design = Design(Formula("C(np.round(age + site))"), TABLE)
    with pytest.raises(ArgumentError, match="categories outside of the nominated levels"):
        design({"age": [70.0], "site": [1]})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([1, 2], "table is a list: expected a pandas DataFrame or a dict"),
        ({"age": [1, 2], "sex": [1]}, "expected one length for all"),
    ],
)
def test_tables_of_other_kinds(table, message):
    with pytest.raises(ArgumentError, match=message):
        Design(Formula("age"), table)


def test_without_formulaic_the_extra_is_named(monkeypatch):
    original = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name == "formulaic":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(ArgumentError, match=r"pip install 'bernflow\[semistructured\]'"):
        Formula("age")
