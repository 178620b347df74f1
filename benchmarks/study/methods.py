"""The methods that are compared, with their names and settings."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.families import TEXT


@dataclass(frozen=True)
class Method:
    """One way to approximate a posterior.

    Attributes:
        label: how tables and figures call it.
        settings: what `bernflow.fit` is told.
        color: its color in every figure.
        described: its sizes and training, for a table.
    """

    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    color: str = "#6B6B6B"
    described: str = ""


TRUTH = "#222222"

METHODS: dict[str, Method] = {
    "bernflow": Method("bernflow", {}, "#0072B2", "M = 20, S = 32, tolerance=0: until the ELBO stops improving"),
    "paper": Method(
        "BF-VI (paper's recipe)",
        {"family": "bernstein-paper"},
        "#D55E00",
        "as published: 50 coefficients, conditioner of two hidden layers of 10 on the noise without activation, inner "
        "affine map fixed, positive parameters by softplus, RMSprop 0.001, independent draws",
    ),
    "paper-text": Method(
        "BF-VI (the paper's text)",
        {"family": TEXT},
        "#8C564B",
        "by the text: M = 50 with 51 coefficients, conditioner of two tanh layers of 10 on the noise after the "
        "sigmoid, inner affine map trained, RMSprop 0.001, independent draws; the start, of which the text says "
        "nothing, is that of the scripts",
    ),
    "mixture": Method(
        "bernflow, eight flows",
        {"components": 8, "restarts": 16, "steps": 4000},
        "#7B3FA0",
        "mixture of eight flows: several starts, weights trained",
    ),
    "gaussian": Method(
        "MF-Gaussian-VI",
        {"family": "gaussian"},
        "#009E73",
        "independent Gaussians, trained until the ELBO stops improving",
    ),
    "student-t": Method(
        "MF-Student-t-VI", {"family": "student-t"}, "#CC79A7", "independent Student-t, 5 degrees of freedom"
    ),
    "realnvp": Method(
        "NVP-NF-VI", {"family": "realnvp"}, "#56B4E9", "8 affine coupling layers, width 32, RMSprop 0.001"
    ),
    "planar": Method("PL-NF-VI", {"family": "planar"}, "#E69F00", "10 planar layers, RMSprop 0.001"),
}
