import builtins

import numpy as np
import pandas as pd
import pytest

from bernflow.errors import ArgumentError
from bernflow.semistructured.design import Design, Formula

TABLE = {"age": [1.0, 2.0, 3.0, 5.0], "sex": ["f", "m", "m", "f"], "site": [1, 2, 3, 1]}


@pytest.mark.parametrize(
    ("text", "names", "has_intercept", "has_level"),
    [
        ("age + C(sex)", ("age", "C(sex)[T.m]"), True, True),
        ("1 + age", ("age",), True, True),
        ("0 + age", ("age",), False, True),
        ("age - 1", ("age",), False, True),
        ("0 + C(sex)", ("C(sex)[f]", "C(sex)[m]"), False, False),
        ("0 + age + C(sex)", ("age", "C(sex)[f]", "C(sex)[m]"), False, False),
        ("age * sex", ("age", "sex[T.m]", "age:sex[T.m]"), True, True),
        ("C(site)", ("C(site)[T.2]", "C(site)[T.3]"), True, True),
    ],
)
def test_a_formula_means_what_it_means_in_r(text, names, has_intercept, has_level):
    design = Design(Formula(text), TABLE)
    assert (sorted(design.names), design.has_intercept, design.has_level) == (sorted(names), has_intercept, has_level)
    inside = design.standardize(design.matrix)
    assert inside.shape == (4, len(names) + has_level)
    np.testing.assert_allclose(inside[:, : len(names)].std(0), 1.0)
    if has_level:
        np.testing.assert_allclose(inside.mean(0), [0.0] * len(names) + [1.0], atol=1e-12)


def test_cutpoints_take_the_place_of_the_intercept():
    design = Design(Formula("age"), TABLE, has_cutpoints=True)
    assert not design.has_intercept
    assert not design.has_level
    np.testing.assert_allclose(design.standardize(design.matrix).mean(), 0.0, atol=1e-12)


def test_a_new_table_is_coded_as_the_old_one():
    design = Design(Formula("scale(age) + C(sex)"), pd.DataFrame(TABLE, index=[7, 7, 8, 9]))
    np.testing.assert_allclose(design.matrix[:, 0].mean(), 0.0, atol=1e-12)
    np.testing.assert_allclose(design({"age": [2.0], "sex": ["m"]}), design.matrix[1:2])


def test_a_table_of_polars():
    polars = pytest.importorskip("polars")
    design = Design(Formula("age + C(sex)"), polars.DataFrame(TABLE))
    np.testing.assert_array_equal(design.matrix, Design(Formula("age + C(sex)"), TABLE).matrix)
    with pytest.raises(ArgumentError, match="column 'age' has 1 missing values"):
        design(polars.DataFrame({"age": [1.0, None], "sex": ["f", "m"]}))


@pytest.mark.parametrize(
    ("text", "change", "message"),
    [
        ("age + C(sex)", {"age": [3.0] * 4}, r"column 'age' .* has the same value 3 in every row"),
        (
            "age + days",
            {"days": [365.25, 730.5, 1095.75, 1826.25]},
            r"'days' .* is determined by 'age' and the intercept",
        ),
        ("age + C(sex) + male", {"male": [0, 1, 1, 0]}, r"'male' .* is determined by 'C\(sex\)\[T.m\]'"),
        ("0 + C(sex) + site + I(1 - site)", {}, "is determined by"),
    ],
)
def test_columns_without_an_effect_of_their_own(text, change, message):
    with pytest.raises(ArgumentError, match=message):
        Design(Formula(text), TABLE | change)


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
        ([1, 2], "table is a list: expected a data frame of pandas or polars, or a dict"),
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
