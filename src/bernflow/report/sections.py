"""The parts of the page, as HTML. Every text that comes from outside goes through `escape`."""

import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bernflow.diagnostics.advice import advise
from bernflow.diagnostics.findings import Diagnostics
from bernflow.posterior.display import write_error, write_evidence_error
from bernflow.report.components import COLUMNS, Component, table_row
from bernflow.report.material import Material
from bernflow.report.pictures import Gallery
from bernflow.report.wording import describe_support, describe_values, escape, isolate, say_khat, words_of_setting

PAPER_FAMILY = "bernstein-paper"
TITLES = {"good": "Good: use the draws", "usable": "Usable: with care", "poor": "Poor: do not use the draws"}
# A check mark, an exclamation mark in a triangle, a cross in an octagon: told apart without color.
ICONS = {
    "good": '<circle cx="12" cy="12" r="10.5" fill="currentColor"/><path d="M7 12.5l3.5 3.5L17 9" fill="none" '
    'stroke="var(--paper)" stroke-width="2.4"/>',
    "usable": '<path d="M12 1.5L23.5 22H.5z" fill="currentColor"/><path d="M12 8.5v6.5M12 17v2.4" '
    'stroke="var(--paper)" stroke-width="2.4"/>',
    "poor": '<path d="M7.5 1h9L23 7.5v9L16.5 23h-9L1 16.5v-9z" fill="currentColor"/><path d="M8 8l8 8M16 8l-8 8" '
    'stroke="var(--paper)" stroke-width="2.4"/>',
}


def verdict_section(material: Material) -> str:
    """Say whether the fit can be used, why, and what to do next."""
    d = material.diagnostics
    steps = advise(d, material.history, material.settings, material.weighted, max(1, len(material.parts)))
    advice = "".join(f"<li>{_with_code(sentence)}</li>" for sentence in steps)
    return (
        f'<section class="verdict {escape(d.verdict)}" aria-labelledby="verdict">'
        f'<h2 id="verdict"><svg viewBox="0 0 24 24" aria-hidden="true">{ICONS[d.verdict]}</svg>{TITLES[d.verdict]}</h2>'
        f"<p>{escape(d.status)}</p>{_say_tails(material)}<h3>What to do next</h3><ol>{advice}</ol></section>\n"
        f"{_figures(d)}"
    )


def _say_tails(material: Material) -> str:
    """Name the parameters in whose tails the largest weights lie."""
    if not material.tails:
        return ""
    named = "; ".join(f"{isolate(label)} ({100 * share:.0f} %)" for label, share in material.tails)
    return (
        f"<p>The largest importance weights lie in the tails of: {escape(named)}. The figures are the shares of these "
        "weights outside of the central 95 % of the fit.</p>"
    )


def _figures(d: Diagnostics) -> str:
    gap = d.log_evidence - d.elbo
    tiles = [
        ("Effective draws", f"{100 * d.ess_fraction:.1f} %", f"{100 * d.ess_fraction_se:.1f}", "after weighting (ESS)"),
        ("k-hat", f"{d.khat:.2f}", f"{d.khat_se:.2f}", f"shape of the tail of the weights; {say_khat(d)}"),
        ("ELBO", f"{d.elbo:.4f}", write_error(d.elbo_se), "evidence lower bound, nats"),
        ("Log evidence", f"{d.log_evidence:.4f}", write_evidence_error(d), "by importance sampling, nats"),
        (
            "Divergence",
            "below 0.0001" if gap < 5e-5 else f"{gap:.4f}",
            "",
            "log evidence less ELBO: KL(q, posterior), nats",
        ),
        ("Judged by", f"{d.num_draws:,}", "", "fresh draws"),
    ]
    if d.missing_mass is not None:
        tiles.append(("Missing mass", f"{100 * d.missing_mass:.1f} %", "", "found elsewhere and not covered"))
    parts = (
        f'<div><dt>{name}</dt><dd class="value">{value}{f" <small>± {error}</small>" if error else ""}</dd>'
        f'<dd class="note">{note}</dd></div>'
        for name, value, error, note in tiles
    )
    return f'<dl class="figures">{"".join(parts)}</dl>'


def table_section(material: Material, components: Sequence[Component], total: int) -> str:
    """Tabulate the components; the script of the page makes the table sortable."""
    num = len(components[0].values) if components else 0
    kinds = any(c.derived for c in components)
    head = '<th scope="col">Name</th>' + "".join(f'<th scope="col" class="number">{name}</th>' for name in COLUMNS)
    if kinds:
        head += '<th scope="col">Kind</th>'
    body = "\n".join(
        f'<tr><th scope="row"><span>{escape(c.label)}</span></th>'
        + "".join(f'<td class="number">{text}</td>' for text in table_row(c))
        + (f"<td>{'derived' if c.derived else 'parameter'}</td>" if kinds else "")
        + "</tr>"
        for c in components
    )
    caption = f"Mean, standard deviation and quantiles of {num:,} draws"
    caption += ", resampled by their importance weights." if material.weighted else "."
    if any(re.search(r"[\[ ]\d+[,\]]", c.label) for c in components):
        caption += f" Indices count from {material.first_index}."
    if total > len(components):
        caption += f" The first {len(components):,} of {total:,} components; post.summary() has all."
    return _section(
        "parameters-heading",
        "Parameters",
        '<div class="controls"><label for="filter">Filter by name</label><input id="filter" type="search" '
        'autocomplete="off" spellcheck="false"><span id="shown" role="status"></span>'
        '<button type="button" id="previous">Previous</button><button type="button" id="next">Next</button>'
        '<button type="button" id="everything">Show all</button></div>'
        f'<p class="caption" id="parameters-caption">{escape(caption)}</p>'
        '<div class="scroll" role="region" aria-label="Table of the parameters" tabindex="0">'
        '<table id="parameters" aria-labelledby="parameters-heading" aria-describedby="parameters-caption"><thead><tr>'
        f"{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table></div>",
    )


def gallery_section(gallery: Gallery) -> str:
    """Show pictures with captions."""
    if gallery.failed:
        return _section(gallery.name, gallery.title, f'<p class="note">Not drawn ({escape(gallery.failed)}).</p>')
    figures = []
    for picture in gallery.pictures:
        caption = f"<figcaption>{escape(picture.caption)}</figcaption>" if picture.caption else ""
        if gallery.is_grid:  # small pictures are read from the top, where their name is
            figures.append(f"<figure>{caption}{picture.svg}</figure>")
        else:
            wide = ' class="wide"' if gallery.is_wide else ""
            figures.append(f'<figure{wide}><div class="scroll">{picture.svg}</div>{caption}</figure>')
    grid = ' class="grid"' if gallery.is_grid else ""
    content = f"<p>{escape(gallery.text)}</p><div{grid}>{''.join(figures)}</div>"
    return _section(gallery.name, gallery.title, content, keep=not gallery.is_grid)


def model_section(material: Material) -> str:
    """Describe parameters, derived quantities and data: names, shapes, supports."""
    dims = material.dims
    sites = [
        (
            site.name,
            _shape(site.shape, dims.get(site.name, ())),
            "bounded below" if site.name in material.scales else describe_support(site.support),
        )
        for site in material.sites
    ]
    parts = [_table("Parameters", ("Name", "Shape", "Support"), sites)]
    known = {s.name for s in material.sites}
    derived = [(n, _shape(v.shape[1:], dims.get(n, ()))) for n, v in material.draws.items() if n not in known]
    if derived:
        parts.append(_table("Derived quantities", ("Name", "Shape"), derived))
    for title, values in (("Observed data", material.observed), ("Other data", material.constants)):
        rows = [(n, _shape(np.shape(v), dims.get(n, ())), *describe_values(np.asarray(v))) for n, v in values.items()]
        if rows:
            parts.append(_table(title, ("Name", "Shape", "Type", "Values"), rows))
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in material.notes)
    return _section("model", "Model and data", f'<div class="tables">{"".join(parts)}</div>{notes}')


def settings_section(material: Material, versions: Mapping[str, str]) -> str:
    """Say how the fit was made: settings, time, versions."""
    settings = dict(material.settings)
    fitted_by = settings.pop("versions", {})
    if settings.get("family") != PAPER_FAMILY:
        settings.pop("variant", None)  # the only family that has any
    rows = [(name, text) for key, value in settings.items() for name, text in [words_of_setting(key, value)] if text]
    seconds, steps = settings.get("wall_seconds"), settings.get("steps")
    if isinstance(seconds, int | float) and isinstance(steps, int) and seconds > 0:
        rows.append(("Steps per second", f"{steps / seconds:,.0f} (compilation and judgment included)"))
    if material.parts:
        rows.append(("Weights of the parts", ", ".join(f"{weight:.3f}" for weight in material.parts)))
    parts = [_table("Fit", None, rows)] if rows else []
    if material.origin:
        parts.append(_table("Origin", None, material.origin))
    both = [(name, str(fitted_by.get(name, "")), str(versions.get(name, ""))) for name in {**fitted_by, **versions}]
    parts.append(_table("Versions", ("Package", "Fit", "This report"), both))
    return _section("settings", "Settings, time and versions", f'<div class="tables">{"".join(parts)}</div>')


def _section(name: str, title: str, content: str, keep: bool = False) -> str:
    """Return a part of the page; `keep` it on one sheet of paper."""
    together = ' class="keep"' if keep else ""
    return f'<section aria-labelledby="{name}"{together}><h2 id="{name}">{escape(title)}</h2>\n{content}</section>'


def _table(title: str, head: Sequence[str] | None, rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose first column names the rows."""
    top = "".join(f'<th scope="col">{escape(name)}</th>' for name in head or ())
    body = "".join(
        f'<tr><th scope="row"><span>{escape(row[0])}</span></th>'
        + "".join(f"<td>{escape(text)}</td>" for text in row[1:])
        + "</tr>"
        for row in rows
    )
    head_row = f"<thead><tr>{top}</tr></thead>" if top else ""
    title = escape(title)
    return (
        f'<div><h3>{title}</h3><div class="scroll" role="region" aria-label="{title}" tabindex="0"><table>'
        f"{head_row}<tbody>{body}</tbody></table></div></div>"
    )


def _shape(shape: Sequence[int], dims: Sequence[str | None]) -> str:
    if not shape:
        return "scalar"
    names = dims if len(dims) == len(shape) else (None,) * len(shape)
    return " × ".join(f"{size:,} ({name})" if name else f"{size:,}" for size, name in zip(shape, names, strict=True))


def _with_code(sentence: str) -> str:
    """Escape a sentence; what stands between backquotes is code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(sentence))


def contents(sections: Sequence[tuple[str, str]]) -> str:
    """List the parts of the page."""
    items = "".join(f'<li><a href="#{name}">{escape(title)}</a></li>' for name, title in sections)
    return f'<nav aria-label="Contents"><ul>{items}</ul></nav>'
