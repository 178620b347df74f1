"""One look for every figure: quiet axes, colours that stay apart without colour vision (Okabe and Ito)."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bernflow.diagnostics.findings import GOOD_KHAT, Diagnostics

FIT = "#0072B2"
REFERENCE = "#222222"
ACCENT = "#D55E00"
MUTED = "#6B6B6B"
VERDICT_COLORS = {"good": FIT, "usable": "#B37700", "poor": ACCENT}

SETTINGS = {
    "figure.dpi": 110,
    "savefig.dpi": 200,
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9A9A9A",
    "axes.linewidth": 0.8,
    "axes.labelcolor": "#333333",
    "xtick.color": "#444444",
    "ytick.color": "#444444",
    "xtick.direction": "out",
    "legend.frameon": False,
    # Names of a user's model are no code of LaTeX.
    "text.usetex": False,
}
# For texts that hold names of a user's model: a dollar sign is a dollar sign, and begins no formula.
LITERAL: dict[str, Any] = {"parse_math": False}


@contextmanager
def house_style() -> Iterator[None]:
    """Use the look inside of a `with` block; the user's own settings come back after it."""
    with mpl.rc_context(SETTINGS):
        yield


class HouseFigure(Figure):
    """A figure that a notebook shows by itself; of matplotlib's own it shows those of pyplot only."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi="figure")
        return buffer.getvalue()


def hide_density_axis(axes: Axes) -> None:
    """Remove the y axis, whose numbers say nothing about a density."""
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def verdict_title(diagnostics: Diagnostics) -> tuple[str, str]:
    """Return the line that goes above a figure, and its colour."""
    d = diagnostics
    text = f"{d.verdict.capitalize()} fit:  ESS {100 * d.ess_fraction:.1f} %"
    # A fit is good at a high k-hat only where that is not informative.
    if d.verdict != "good" or d.khat <= GOOD_KHAT:
        text += f",  k-hat {d.khat:.2f}"
    return text, VERDICT_COLORS[d.verdict]
