"""Supports, data and settings in words."""

import html
import json
import re
from typing import Any

import numpy as np
from numpyro.distributions.constraints import Constraint

from bernflow.diagnostics.findings import USABLE_KHAT, Diagnostics
from bernflow.errors import ArgumentError
from bernflow.posterior.supports import support_to_json

# For a support that depends on other parameters, or is known only to a Stan program or PyMC model.
UNKNOWN_SUPPORT = "as the model declares"
WORDS = {
    "real": "real",
    "real_vector": "real",
    "real_matrix": "real",
    "positive": "positive",
    "softplus_positive": "positive",
    "nonnegative": "not negative",
    "unit_interval": "between 0 and 1",
    "simplex": "simplex: positive, sum 1",
    "ordered_vector": "increasing",
    "positive_ordered_vector": "positive and increasing",
    "corr_cholesky": "Cholesky factor of a correlation matrix",
    "corr_matrix": "correlation matrix",
    "lower_cholesky": "Cholesky factor of a covariance matrix",
    "softplus_lower_cholesky": "Cholesky factor of a covariance matrix",
    "positive_definite": "positive definite matrix",
    "circular": "angle",
    "zero_sum": "sum zero",
}
SETTING_LABELS = {
    "family": "Family",
    "order": "Order of the polynomials",
    "base": "Base noise",
    "steps": "Training steps",
    "num_particles": "Draws per step",
    "restarts": "Starts",
    "components": "Largest number of components",
    "precision": "Precision of the training",
    "learning_rate": "Peak learning rate",
    "tolerance": "Tolerance (nats)",
    "time_limit": "Time limit (s)",
    "out_of_time": "Stopped by the time limit",
    "interrupted": "Interrupted",
    "num_skipped": "Steps skipped as not finite",
    "wall_seconds": "Time",
    "key": "Random key",
    "checks": "Checks",
    "training_gradients": "Gradients of the training",
    "start_gradients": "Gradients of the start",
}


def say_khat(diagnostics: Diagnostics) -> str:
    """Comment on k-hat, which is not informative if the weights are nearly equal."""
    if diagnostics.verdict == "good" and diagnostics.khat > USABLE_KHAT:
        return "not informative: the weights are nearly equal"
    return f"reliable up to {USABLE_KHAT:g}"


def escape(text: str) -> str:
    """Escape text for HTML, including attributes; control characters are replaced."""
    return html.escape(replace_controls(text), quote=True)


def replace_controls(text: str) -> str:
    """Replace control characters, which HTML forbids."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "\ufffd", text)


def isolate(text: str) -> str:
    """Isolate a name from the direction of the surrounding text, in case it is written from right to left."""
    return f"\u2068{text}\u2069"


def describe_support(support: Constraint | None) -> str:
    """Describe a support in words."""
    if support is None:
        return UNKNOWN_SUPPORT
    try:
        spec = support_to_json(support)
    except ArgumentError:  # it cannot be converted to JSON
        return str(support)
    while spec is not None and spec["kind"] == "independent":
        spec = spec["base"]
    if spec is None:
        return UNKNOWN_SUPPORT
    kind = spec["kind"]
    low, high = (_bound(spec.get(name)) for name in ("lower_bound", "upper_bound"))
    if kind.startswith("greater_than"):
        return f"above {low}"
    if kind.startswith("less_than"):
        return f"below {high}"
    if low and high:
        return f"between {low} and {high}"
    return WORDS.get(kind, kind.replace("_", " "))


def _bound(value: float | list | None) -> str:
    if value is None:
        return ""
    return "a bound per component" if isinstance(value, list) else f"{value:g}"


def describe_values(values: np.ndarray) -> tuple[str, str]:
    """Return the type and the range of data."""
    kind = str(values.dtype)
    if values.dtype.kind not in "biuf" or values.size == 0:
        return kind, ""
    finite = values[np.isfinite(values)] if values.dtype.kind == "f" else values
    missing = values.size - finite.size
    note = f"; {missing:,} not finite" if missing else ""
    if not finite.size:
        return kind, note.removeprefix("; ")
    low, high = finite.min(), finite.max()
    if values.size == 1:
        return kind, f"{low:.6g}{note}"
    return kind, f"{low:.4g} to {high:.4g}, mean {finite.mean(dtype=np.float64):.4g}{note}"


def words_of_setting(name: str, value: Any) -> tuple[str, str]:
    """Return the label and value of a setting as strings; the value is empty if there is none."""
    label = SETTING_LABELS.get(name, name.replace("_", " "))
    if value is None or value == "":
        return label, ""
    if name == "wall_seconds":
        return label, f"{value:.1f} s"
    if isinstance(value, bool):
        return label, "yes" if value else "no"
    if isinstance(value, int):
        return label, f"{value:,}"
    if isinstance(value, float):
        return label, f"{value:g}"
    return label, value if isinstance(value, str) else json.dumps(value, default=str)
