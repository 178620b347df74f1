"""The report as one self-contained HTML file."""

import base64
import hashlib
import itertools
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from bernflow.diagnostics.advice import advise
from bernflow.diagnostics.findings import Diagnostics
from bernflow.errors import ArgumentError
from bernflow.files import write_whole
from bernflow.posterior import Posterior
from bernflow.posterior.display import write_error, write_evidence_error
from bernflow.posterior.weighting import AUTO, Weighted
from bernflow.report.components import COLUMNS, Component, list_components, table_row
from bernflow.report.material import Material, gather
from bernflow.report.pictures import RESAMPLED, UNWEIGHTED, draw_galleries
from bernflow.report.repeat import call_of, citations, conditions
from bernflow.report.wording import (
    describe_support,
    describe_values,
    isolate,
    replace_controls,
    say_khat,
    words_of_setting,
)
from bernflow.versions import version_of

TITLE = "Posterior report"
# Longer tables are slow on a phone.
MAX_ROWS = 2000
MAX_NAMES = 6
PACKAGES = ("bernflow", "jax", "numpyro", "equinox", "optax")
# A table: its title, column names (or None) and rows.
Table = tuple[str, Sequence[str] | None, Sequence[Sequence[str]]]


def write_report(
    posterior: Posterior,
    path: str | PathLike = "report.html",
    *,
    title: str = TITLE,
    num: int = 4000,
    key: Any = 1,
    weighted: Weighted = AUTO,
) -> Path:
    """Write a report of a fit: verdict, advice, table, figures, model, data and settings.

    The page needs no network and no other files, and is written atomically. Without the model (a posterior loaded
    without it) it has no weights, no data and no predictive check.

    Args:
        posterior: the fit.
        path: the file to write.
        title: heading of the page.
        num: number of draws for table and figures.
        key: integer seed or `jax.random.key` of the draws.
        weighted: importance-resample the draws; "auto" if this corrects the fit.

    Returns:
        The path.
    """
    _check_path(path)
    return write_page(gather(posterior, num, key, weighted), path, title)


def write_page(material: Material, path: str | PathLike, title: str = TITLE) -> Path:
    """Write a report of material from a posterior or from the files of a run."""
    _check_path(path)
    page = render(material, title).encode()
    return write_whole(path, lambda file: file.write(page))


def _check_path(path: str | PathLike) -> None:
    """Raise an error, before any computation, for a path that cannot be written."""
    place = Path(path)
    if place.is_dir():
        raise ArgumentError(f"report({str(path)!r}): that is a folder; expected the name of a file, as report.html.")
    if not place.parent.is_dir():
        raise ArgumentError(f"report({str(path)!r}): the folder {str(place.parent)!r} does not exist: create it first.")


def render(material: Material, title: str = TITLE) -> str:
    """Return the page as HTML."""
    names = {site.name for site in material.sites}
    everything = list_components(material.draws, names, material.axes)
    components: list[Component] = list(itertools.islice(everything, MAX_ROWS))
    total = len(components) + sum(1 for _ in everything)
    script, d = _asset("page.js"), material.diagnostics
    # Nothing is loaded, and no script runs except ours, identified by its hash: a second defense besides escaping.
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    num_components = max(1, len(material.component_weights))
    tails = (f"{isolate(label)} ({100 * fraction:.0f} %)" for label, fraction in material.tails)
    return (
        _environment()
        .from_string(_asset("page.html.jinja"))
        .render(
            title=title,
            subtitle=_subtitle(material),
            policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
            style=Markup(_asset("page.css")),
            script=Markup(script),
            verdict=d.verdict,
            status=d.status,
            tails="; ".join(tails),
            advice=advise(d, material.history, material.settings, material.weighted, num_components),
            statistics=_statistics(d),
            caption=_caption(material, components, total),
            columns=COLUMNS,
            components=components,
            has_derived=any(component.derived for component in components),
            galleries=draw_galleries(material, components),
            model_tables=_model_tables(material),
            settings_tables=_settings_tables(material),
            notes=material.notes,
            citations=citations(material),
            call=call_of(material),
            conditions=" ".join(conditions(material)),
            weighting=RESAMPLED if material.weighted else UNWEIGHTED,
            version=version_of("bernflow"),
            written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        )
    )


@cache
def _environment() -> Environment:
    def clean(value: Any) -> Any:
        return replace_controls(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(autoescape=True, undefined=StrictUndefined, finalize=clean)
    # Text between backquotes is code.
    environment.filters["code"] = lambda text: Markup(
        re.sub(r"`([^`]*)`", r"<code>\1</code>", str(Markup.escape(clean(text))))
    )
    environment.filters["row"] = table_row
    return environment


def _subtitle(material: Material) -> str:
    """Name the parameters and the family."""
    names = [isolate(site.name) for site in material.sites]
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    family = material.settings.get("family")
    return f"Parameters {', '.join(names[:MAX_NAMES])}{more}" + (f"; family {family}" if family else "")


def _statistics(d: Diagnostics) -> list[tuple[str, str, str, str]]:
    """Return (name, value, standard error, note) of every statistic of the fit."""
    gap = d.log_evidence - d.elbo
    divergence = "below 0.0001" if gap < 5e-5 else f"{gap:.4f}"
    rows = [
        ("Effective draws", f"{100 * d.ess_fraction:.1f} %", f"{100 * d.ess_fraction_se:.1f}", "after weighting (ESS)"),
        ("k-hat", f"{d.khat:.2f}", f"{d.khat_se:.2f}", f"shape of the tail of the weights; {say_khat(d)}"),
        ("ELBO", f"{d.elbo:.4f}", write_error(d.elbo_se), "evidence lower bound, nats"),
        ("Log evidence", f"{d.log_evidence:.4f}", write_evidence_error(d), "by importance sampling, nats"),
        ("Divergence", divergence, "", "log evidence minus ELBO: KL(q, posterior), nats"),
        ("Judged by", f"{d.num_draws:,}", "", "fresh draws"),
    ]
    if d.missing_mass is not None:
        rows.append(("Missing mass", f"{100 * d.missing_mass:.1f} %", "", "found elsewhere and not covered"))
    return rows


def _caption(material: Material, components: Sequence[Component], total: int) -> str:
    """Describe the table of the parameters."""
    num = len(components[0].values) if components else 0
    caption = f"Mean, standard deviation and quantiles of {num:,} draws"
    caption += ", resampled by their importance weights." if material.weighted else "."
    if any(re.search(r"[\[ ]\d+[,\]]", component.label) for component in components):
        caption += f" Indices count from {material.axes.first}."
    if total > len(components):
        caption += f" The first {len(components):,} of {total:,} components; post.summary() has all."
    return caption


def _model_tables(material: Material) -> list[Table]:
    """Describe parameters, derived quantities and data: names, shapes, supports."""

    def shape(name: str, sizes: Sequence[int]) -> str:
        dims = material.axes.dims.get(name, ())
        names = dims if len(dims) == len(sizes) else (None,) * len(sizes)
        pairs = zip(sizes, names, strict=True)
        return " × ".join(f"{size:,} ({dim})" if dim else f"{size:,}" for size, dim in pairs) or "scalar"

    def support(site: Any) -> str:
        return "bounded below" if site.name in material.scales else describe_support(site.support)

    known = {site.name for site in material.sites}
    sites = [(site.name, shape(site.name, site.shape), support(site)) for site in material.sites]
    derived = [(name, shape(name, v.shape[1:])) for name, v in material.draws.items() if name not in known]
    tables: list[Table] = [("Parameters", ("Name", "Shape", "Support"), sites)]
    tables.append(("Derived quantities", ("Name", "Shape"), derived))
    for title, values in (("Observed data", material.observed), ("Other data", material.constants)):
        rows = [(name, shape(name, np.shape(v)), *describe_values(np.asarray(v))) for name, v in values.items()]
        tables.append((title, ("Name", "Shape", "Type", "Values"), rows))
    return [table for table in tables if table[2]]


def _settings_tables(material: Material) -> list[Table]:
    """Describe the settings, the time and the versions of the fit."""
    settings = dict(material.settings)
    fitted_by = settings.pop("versions", {})
    rows = [(name, text) for key, value in settings.items() for name, text in [words_of_setting(key, value)] if text]
    seconds, steps = settings.get("wall_seconds"), settings.get("steps")
    if isinstance(seconds, int | float) and isinstance(steps, int) and seconds > 0:
        rows.append(("Steps per second", f"{steps / seconds:,.0f} (compilation and diagnostics included)"))
    if material.component_weights:
        rows.append(("Weights of the components", ", ".join(f"{w:.3f}" for w in material.component_weights)))
    here = {name: version_of(name) for name in PACKAGES} | {"python": platform.python_version()}
    both = [(name, str(fitted_by.get(name, "")), str(here.get(name, ""))) for name in {**fitted_by, **here}]
    tables: list[Table] = [("Fit", None, rows), ("Origin", None, material.origin)]
    return [table for table in (*tables, ("Versions", ("Package", "Fit", "This report"), both)) if table[2]]


@cache
def _asset(name: str) -> str:
    return resources.files("bernflow.report").joinpath(name).read_text(encoding="utf-8")
