"""The common style of all figures, with colors for color-blind readers (Okabe and Ito)."""

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

RC_PARAMS = {
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
    # Names in a user's model are not LaTeX code.
    "text.usetex": False,
}
# For text with names from a user's model, in which dollar signs do not delimit formulas.
LITERAL: dict[str, Any] = {"parse_math": False}


@contextmanager
def house_style() -> Iterator[None]:
    """Use the style in a `with` block, and restore the user's settings afterward."""
    with mpl.rc_context(RC_PARAMS):
        yield


class HouseFigure(Figure):
    """A figure with a representation for notebooks, which otherwise show only pyplot figures."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi="figure")
        return buffer.getvalue()

    def set_heading(self, text: str, color: str | None = None, size: float = 11, **kwargs: Any) -> None:
        """Add a heading above the panels."""
        self.suptitle(text, x=0.01, ha="left", color=color, fontweight="bold", fontsize=size, **kwargs)

    def set_note(self, note: str | None) -> None:
        """Add a note below the panels, if there is one."""
        if note:
            self.supxlabel(note, x=0.01, ha="left", fontsize=8.5, color=MUTED)


def hide_density_axis(axes: Axes) -> None:
    """Remove the y axis, whose scale is not informative for a density."""
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)


def verdict_title(diagnostics: Diagnostics) -> tuple[str, str]:
    """Return the heading of a figure and its color."""
    d = diagnostics
    text = f"{d.verdict.capitalize()} fit:  ESS {100 * d.ess_fraction:.1f} %"
    # If a fit is good at a high k-hat, k-hat is not informative.
    if d.verdict != "good" or d.khat <= GOOD_KHAT:
        text += f",  k-hat {d.khat:.2f}"
    return text, VERDICT_COLORS[d.verdict]
