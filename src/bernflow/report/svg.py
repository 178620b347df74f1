"""Figures as inline SVG in HTML, with colors that follow the theme of the page."""

import io
import re
import warnings

from matplotlib import rc_context
from matplotlib.figure import Figure

from bernflow.filters import local_filters
from bernflow.plots.style import ACCENT, FIT, MUTED, REFERENCE
from bernflow.report.wording import escape

# Colors of the plots, and the corresponding CSS variables of the page.
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
# Matplotlib writes six decimals; two are sufficient for any screen.
LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
POINTS_PER_PIXEL = 0.75


def inline_svg(figure: Figure, alt: str, prefix: str) -> str:
    """Return a figure as an SVG element.

    Args:
        figure: the figure; its title and its note on omitted components are removed, since the page has its own.
        alt: alternative text.
        prefix: prefix of all ids of the element, which must be unique in the page.
    """
    # Empty text takes no space in the layout.
    for text in (figure.get_suptitle() and figure._suptitle, figure.get_supxlabel() and figure._supxlabel):  # type: ignore[attr-defined]
        if text:
            text.set_text("")
    file = io.StringIO()
    with rc_context({"svg.fonttype": "path", "svg.hashsalt": prefix}), local_filters():
        # The page shows the names in its own font, so missing glyphs in a figure are harmless.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return clean_svg(file.getvalue(), alt, prefix)


def clean_svg(source: str, alt: str, prefix: str) -> str:
    """Reduce an SVG file of matplotlib to an element that can be embedded in a page."""
    body = source[source.index("<svg") :]
    head, body = body[: body.index(">") + 1], body[body.index(">") + 1 :]
    box = re.search(r'viewBox="([^"]*)"', head)
    assert box is not None  # matplotlib always writes it
    # Remove comments (texts of the figure), metadata and styles.
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
