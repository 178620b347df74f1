"""Design matrices from a formula and a table; new tables are coded like the training table."""

import ast
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from bernflow.errors import ArgumentError
from bernflow.filters import local_filters

INTERCEPT = "Intercept"
# Marks that formulaic puts around the place of a syntax error.
_MARKS = re.compile(r"\x1b\[[0-9;]*m|[⧛⧚]")


class Formula:
    """The right-hand side of a formula, with the same meaning as in R.

    Args:
        text: in the grammar of formulaic, such as "age + C(sex)"; "0 + ..." omits the intercept.

    Attributes:
        has_intercept: whether the formula has an intercept.
    """

    def __init__(self, text: str):
        formulaic = import_formulaic()
        from formulaic.errors import FormulaicError

        if not isinstance(text, str) or not text.strip():
            raise ArgumentError(
                f'formula={text!r}: expected a string with at least one column, such as "age + C(sex)".'
            )
        self.text = text
        try:
            self.terms = formulaic.Formula(text)
        except FormulaicError as error:
            why = " ".join(_MARKS.sub("", str(error)).split())
            raise ArgumentError(
                f'formula={text!r} cannot be read: {why} Expected columns joined by "+", such as "age + C(sex)".'
            ) from error
        if not isinstance(self.terms, formulaic.SimpleFormula):
            raise ArgumentError(
                f"formula={text!r} has more than one part: expected the right-hand side only, without the outcome and "
                '"~", such as "age + C(sex)". The outcome is given to fit as y.'
            )
        self.has_intercept = any(not term.factors or str(term) == "1" for term in self.terms)
        self.factors = {factor.expr: factor for term in self.terms for factor in term.factors}

    def variables(self, columns: list[str]) -> dict[str, list[str]]:
        """Return the names in every factor of the formula: columns of the table, and unknown names."""
        return {expr: _names(factor, columns) for expr, factor in self.factors.items()}


class Columns:
    """Numeric columns of the table without a formula, with an intercept; they do not need formulaic.

    Args:
        names: names of the columns.
    """

    def __init__(self, names: Sequence[str]):
        if not names or not all(isinstance(name, str) for name in names):
            raise ArgumentError(f"formula={names!r}: expected a formula, or a list of names of columns.")
        self.names, self.text, self.has_intercept = tuple(names), " + ".join(names), True

    def take(self, table: Any, where: str) -> Float[np.ndarray, "n p"]:
        """Return the columns of a table."""
        columns = []
        for name in self.names:
            try:
                values = np.asarray(table[name], np.float64)
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise ArgumentError(
                    f"{where}: the column {name!r} does not exist, or is not numeric ({error}): expected a column of "
                    "numbers. Categories need a formula."
                ) from error
            bad = np.flatnonzero(~np.isfinite(values))
            if len(bad):
                raise ArgumentError(
                    f"{where}: the column {name!r} has {len(bad)} values that are missing or not finite, the first "
                    f"in row {bad[0]} (counted from 0): expected complete columns."
                )
            columns.append(values)
        return np.stack(columns, 1)


def read_formula(formula: Any) -> Formula | Columns:
    """Return a formula, or columns if a list of names was given."""
    return Columns(formula) if isinstance(formula, list | tuple) else Formula(formula)


class Design:
    """The design matrix of a formula, determined by the training table.

    The network has its own level, so there is a level whether or not the formula has an intercept; it is omitted
    only if the columns add up to a constant ("0 + C(sex)").

    Args:
        formula: the formula.
        table: the training table.
        has_cutpoints: whether the outcome has cutpoints, which replace the level.

    Attributes:
        matrix: one column per coefficient for the training table, without the intercept.
        names: names of the columns.
        has_intercept: whether the intercept is reported.
        has_level: whether a constant is among the parameters.
        mean: mean of the columns; zero if there is no constant to absorb it.
        scale: standard deviation of the columns.
        kept: the columns of the table that the formula uses.
    """

    def __init__(self, formula: Formula | Columns, table: Any, has_cutpoints: bool = False):
        self.formula = formula
        self.has_intercept = formula.has_intercept and not has_cutpoints
        if isinstance(formula, Columns):
            self.names, self.matrix = formula.names, formula.take(table, "table")
            self.kept = dict(zip(self.names, self.matrix.T, strict=True))
        else:
            self._evaluate_first(formula, table)
        if not self.names and not self.has_intercept:
            raise ArgumentError(f"formula={formula.text!r} has no columns: expected at least one.")
        if not len(self.matrix):
            raise ArgumentError("table is empty: expected at least one row.")
        constant = np.ones((len(self.matrix), 1))
        free = formula.has_intercept or has_cutpoints or _rank(np.hstack([self.matrix, constant])) > _rank(self.matrix)
        self.has_level = free and not has_cutpoints
        self._check_columns(free)
        self.mean = self.matrix.mean(0) if free else np.zeros(len(self.names))
        self.scale = self.matrix.std(0)

    def _evaluate_first(self, formula: Formula, table: Any) -> None:
        """Code the training table."""
        frame = as_frame(table, "table")
        self.kept = {name: frame[name].to_numpy() for name in self._check(formula, frame, "table")}
        matrix = _evaluate(formula, lambda: formula.terms.get_model_matrix(frame, context={}, na_action="ignore"))
        self._spec = matrix.model_spec
        self._columns = [name for name in matrix.columns if name != INTERCEPT]
        self.names = tuple(map(str, self._columns))
        self._levels = self._find_levels(formula, frame)
        self.matrix = self._finite(matrix, "table")

    def standardize(self, matrix: Float[np.ndarray, "n p"]) -> Float[np.ndarray, "n q"]:
        """Center and scale columns, and append the constant, if there is one."""
        columns = (matrix - self.mean) / self.scale
        return np.hstack([columns, np.ones((len(matrix), 1))]) if self.has_level else columns

    def _check_columns(self, free: bool) -> None:
        """Refuse columns whose coefficients are not identified."""
        for name, column in zip(self.names, self.matrix.T, strict=True):
            if np.ptp(column) <= 1e-12 * np.abs(column).max(initial=0.0):
                raise ArgumentError(
                    f"table: the column {name!r} of the formula {self.formula.text!r} has the same value {column[0]:g} "
                    "in every row, so that it has no effect to estimate: leave it out of the formula."
                )
        # Scaled, so units do not matter.
        matrix = (self.matrix - self.matrix.mean(0) * free) / self.matrix.std(0)
        for j in range(1, len(self.names)):
            before, column = matrix[:, :j], matrix[:, j]
            solution = np.linalg.lstsq(before, column, rcond=None)[0]
            if np.abs(column - before @ solution).max() <= 1e-7 * np.abs(column).max():
                culprits = [name for name, share in zip(self.names, solution, strict=False) if abs(share) > 1e-7]
                raise ArgumentError(
                    f"table: the column {self.names[j]!r} of the formula {self.formula.text!r} is determined by "
                    f"{', '.join(map(repr, culprits))}{' and the intercept' if free else ''}, so that their effects "
                    "cannot be told apart: leave one of them out."
                )

    def __call__(self, table: Any, where: str = "table") -> Float[np.ndarray, "n p"]:
        """Return the matrix for another table."""
        if isinstance(self.formula, Columns):
            return self.formula.take(table, where)
        frame = as_frame(table, where)
        formula = self.formula
        self._check(formula, frame, where)
        for name, levels in self._levels.items():
            unseen = [value for value in dict.fromkeys(frame[name].tolist()) if value not in levels]
            if unseen:
                known = ", ".join(map(repr, sorted(levels, key=str)[:20]))
                raise ArgumentError(
                    f"{where}: the column {name!r} has the category {unseen[0]!r}"
                    + (f" and {len(unseen) - 1} others" if len(unseen) > 1 else "")
                    + f", which the training has not seen: expected one of {known}. Drop these rows, or merge the "
                    "category with a known one before the fit."
                )
        return self._finite(_evaluate(formula, lambda: self._spec.get_model_matrix(frame, context={})), where)

    def _check(self, formula: Formula, frame: Any, where: str) -> list[str]:
        """Refuse unknown columns and missing values; return the columns in use."""
        columns = [str(name) for name in frame.columns]
        used = list(dict.fromkeys(name for names in formula.variables(columns).values() for name in names))
        for name in used:
            if name not in columns:
                raise ArgumentError(
                    f"{where}: the formula {formula.text!r} asks for the column {name!r}, which does not exist: "
                    f"expected one of {', '.join(map(repr, columns[:30]))}. Correct the formula, or add the column."
                )
            missing = np.flatnonzero(frame[name].isna().to_numpy())
            if len(missing):
                raise ArgumentError(
                    f"{where}: the column {name!r} has {len(missing)} missing values, the first in row {missing[0]} "
                    "(counted from 0): expected complete columns. Drop these rows from the table, the images and y, "
                    "or fill them in."
                )
        return used

    def _find_levels(self, formula: Formula, frame: Any) -> dict[str, set]:
        """Return the known values of every column that is coded as a category."""
        levels: dict[str, set] = {}
        variables = formula.variables([str(name) for name in frame.columns])
        for expr, (kind, _) in self._spec.encoder_state.items():
            names = variables.get(str(expr), [])
            if kind.value == "categorical" and len(names) == 1:
                known = set(frame[names[0]].tolist())
                levels[names[0]] = levels.get(names[0], known) & known
        return levels

    def _finite(self, matrix: Any, where: str) -> Float[np.ndarray, "n p"]:
        values = matrix[self._columns].to_numpy(dtype=np.float64)
        bad = ~np.isfinite(values)
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            raise ArgumentError(
                f"{where}: the formula {self.formula.text!r} gives {int(bad[:, column].sum())} values of "
                f"{self.names[column]!r} that are not finite, the first in row {row} ({values[row, column]}): "
                "expected finite numbers. Correct the table, or the transformation in the formula."
            )
        return values


def import_formulaic() -> Any:
    """Import formulaic; if it is missing, the error says how to install it."""
    try:
        import formulaic
    except ImportError as error:
        raise ArgumentError(
            "SemiStructured reads formulas with formulaic, which is not installed: pip install "
            "'bernflow[semistructured]'."
        ) from error
    return formulaic


def as_frame(table: Any, where: str) -> Any:
    """Turn a data frame or a dict of columns into a data frame with rows counted from 0."""
    import_formulaic()
    import pandas as pd

    if isinstance(table, pd.DataFrame):
        return table.reset_index(drop=True)
    if isinstance(table, dict):
        try:
            return pd.DataFrame({str(name): np.asarray(column) for name, column in table.items()})
        except ValueError as error:
            sizes = {str(name): np.shape(column) for name, column in table.items()}
            raise ArgumentError(f"{where} has columns of the shapes {sizes}: expected one length for all.") from error
    if hasattr(table, "get_columns") and hasattr(table, "schema"):  # polars
        return pd.DataFrame({column.name: column.to_numpy() for column in table.get_columns()})
    raise ArgumentError(
        f"{where} is a {type(table).__name__}: expected a data frame of pandas or polars, or a dict of columns."
    )


def _rank(matrix: np.ndarray) -> int:
    if not matrix.shape[1]:
        return 0
    return int(np.linalg.matrix_rank(matrix / np.maximum(np.abs(matrix).max(0), 1e-300)))


def _evaluate(formula: Formula, build: Any) -> Any:
    from formulaic.errors import DataMismatchWarning, FormulaicError

    try:
        with local_filters():
            # A category that is not a plain column (C(np.round(age))): formulaic would continue with zeros.
            warnings.simplefilter("error", DataMismatchWarning)
            return build()
    except (FormulaicError, DataMismatchWarning) as error:
        why = " ".join(_MARKS.sub("", str(error)).split())
        raise ArgumentError(f"formula={formula.text!r} cannot be evaluated on the table: {why}") from error


def _names(factor: Any, columns: list[str]) -> list[str]:
    """Return the columns behind one factor; not functions such as `np` in `np.log(age)`."""
    if factor.eval_method.value == "lookup" or factor.expr in columns:
        return [factor.expr]
    if factor.eval_method.value == "literal":
        return []
    try:
        tree = ast.parse(factor.expr.strip().strip("{}"), mode="eval")
    except SyntaxError:  # names in backquotes: formulaic itself complains about those that do not exist
        return [name for name in columns if f"`{name}`" in factor.expr]
    called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    owners = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    found = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in called | owners]
    return list(dict.fromkeys(found))
