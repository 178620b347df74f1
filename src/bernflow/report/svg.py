"""Figures as parts of a page: SVG inside of the HTML, in colors that follow the page's."""

import io
import re
import warnings

from matplotlib import rc_context
from matplotlib.figure import Figure

from bernflow.filters import local_filters
from bernflow.plots.style import ACCENT, FIT, MUTED, REFERENCE
from bernflow.report.wording import escape

# Colors of the plots, and the variables of the page's style that stand for them.
THEME = {
    FIT: "--fit",
    REFERENCE: "--reference",
    ACCENT: "--accent",
    MUTED: "--muted",
    "#9A9A9A": "--axis",
    "#333333": "--text",
    "#444444": "--text",
    "#000000": "--text",
    "#FFFFFF": "--paper",
}
# Matplotlib writes six decimals of a point; one in a hundred is finer than any screen.
LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
POINTS_PER_PIXEL = 0.75


def inline_svg(figure: Figure, alt: str, prefix: str) -> str:
    """Return a figure as an SVG element.

    Args:
        figure: the figure; its heading and its note on what is left out are removed, since the page has its own.
        alt: what a reader who cannot see it should know.
        prefix: begins all ids of the element, which must not meet those of other pictures.
    """
    # An empty text takes no space in the layout.
    for text in (figure.get_suptitle() and figure._suptitle, figure.get_supxlabel() and figure._supxlabel):  # type: ignore[attr-defined]
        if text:
            text.set_text("")
    file = io.StringIO()
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": prefix}), local_filters():
        # The page has the names in its own type; a box in their place in a picture does no harm.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return clean_svg(file.getvalue(), alt, prefix)


def clean_svg(source: str, alt: str, prefix: str) -> str:
    """Strip an SVG file of matplotlib down to an element that can stand among others in a page."""
    body = source[source.index("<svg") :]
    head, body = body[: body.index(">") + 1], body[body.index(">") + 1 :]
    box = re.search(r'viewBox="([^"]*)"', head)
    assert box is not None  # matplotlib writes it always
    # Comments hold the texts of the figure, metadata the address of matplotlib; neither is of use here.
    body = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'\bid="', f'id="{prefix}-', body)
    body = re.sub(r'(href="#|url\(#)', rf"\1{prefix}-", body)
    body = re.sub(r' (?:d|x|y)="[^"]*"', lambda match: LONG_NUMBER.sub(_shorten, match[0]), body)
    body = re.sub(r"\n\s*", "\n", body)
    for color, variable in THEME.items():
        body = re.sub(re.escape(color), f"var({variable})", body, flags=re.IGNORECASE)
    width = float(box[1].split()[2]) / POINTS_PER_PIXEL
    return (
        f'<svg role="img" aria-label="{escape(alt)}" viewBox="{box[1]}" style="max-width:{width:.0f}px">{body.strip()}'
    )


def _shorten(match: re.Match) -> str:
    return f"{float(match[0]):.2f}".rstrip("0").rstrip(".")
