"""The page as a whole: one HTML file that needs nothing else, written whole or not at all."""

import base64
import hashlib
import itertools
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

from bernflow.errors import ArgumentError
from bernflow.files import write_whole
from bernflow.posterior import Posterior
from bernflow.posterior.weighting import AUTO, Weighted
from bernflow.report import sections
from bernflow.report.components import Component, list_components
from bernflow.report.material import Material, gather
from bernflow.report.pictures import draw_galleries
from bernflow.report.wording import escape, isolate
from bernflow.versions import version_of

TITLE = "Posterior report"
# A table of more rows is slow on a phone, and nobody reads it.
MAX_ROWS = 2000
MAX_NAMES = 6
PACKAGES = ("bernflow", "jax", "numpyro", "equinox", "optax")


def write_report(
    posterior: Posterior,
    path: str | PathLike = "report.html",
    *,
    title: str = TITLE,
    num: int = 4000,
    key: Any = 1,
    weighted: Weighted = AUTO,
) -> Path:
    """Write a report of a fit: verdict, what to do next, table, pictures, model, data and settings.

    The page needs no network and no other file. It appears whole or not at all. Without the model (a posterior that
    was loaded alone) it has no weights, no data and no predictive check.

    Args:
        posterior: the fit.
        path: the file to write.
        title: heading of the page.
        num: number of draws behind table and pictures.
        key: integer seed or `jax.random.key` of the draws.
        weighted: resample the draws by their importance weights; "auto" where these correct the fit.

    Returns:
        The path.
    """
    _check_place(path)
    return write_page(gather(posterior, num, key, weighted), path, title)


def write_page(material: Material, path: str | PathLike, title: str = TITLE) -> Path:
    """Write a report of what was gathered from a posterior or from the files of a run."""
    _check_place(path)
    page = render(material, title).encode()
    return write_whole(path, lambda file: file.write(page))


def _check_place(path: str | PathLike) -> None:
    """Refuse, before any work, what cannot be a file."""
    place = Path(path)
    if place.is_dir():
        raise ArgumentError(f"report({str(path)!r}): that is a folder; expected the name of a file, as report.html.")
    if not place.parent.is_dir():
        raise ArgumentError(f"report({str(path)!r}): the folder {str(place.parent)!r} does not exist: create it first.")


def render(material: Material, title: str = TITLE) -> str:
    """Return the page."""
    names = {site.name for site in material.sites}
    everything = list_components(material.draws, names, material.dims, material.coords, material.first_index)
    components: list[Component] = list(itertools.islice(everything, MAX_ROWS))
    total = len(components) + sum(1 for _ in everything)
    galleries = draw_galleries(material, components)
    versions = {name: version_of(name) for name in PACKAGES} | {"python": platform.python_version()}
    body = [
        sections.verdict_section(material),
        sections.table_section(material, components, total),
        *map(sections.gallery_section, galleries),
        sections.model_section(material),
        sections.settings_section(material, versions),
    ]
    listed = [
        ("parameters-heading", "Parameters"),
        *((gallery.name, gallery.title) for gallery in galleries),
        ("model", "Model and data"),
        ("settings", "Settings"),
    ]
    written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return _document(title, _subtitle(material), sections.contents(listed), body, written)


def _subtitle(material: Material) -> str:
    """Name the parameters and the family."""
    names = [isolate(site.name) for site in material.sites]
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    family = material.settings.get("family")
    return f"Parameters {', '.join(names[:MAX_NAMES])}{more}" + (f"; family {family}" if family else "")


def _document(title: str, subtitle: str, contents: str, body: Sequence[str], written: str) -> str:
    script, style = _asset("page.js"), _asset("page.css")
    # Nothing is loaded, and no script runs but ours, known by its checksum: a second wall behind the escaping.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    title = escape(title)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n<meta name="color-scheme" '
        f'content="light dark">\n<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n'
        f'<header><h1>{title}</h1><p class="subtitle">{escape(subtitle)}</p></header>\n{contents}\n<main>\n'
        + "\n".join(body)
        + f"\n</main>\n<footer>Written by bernflow {escape(version_of('bernflow'))}, {written}.</footer>\n"
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


@cache
def _asset(name: str) -> str:
    return resources.files("bernflow.report").joinpath(name).read_text(encoding="utf-8")
