"""KL by target and method, one dot each, on a logarithmic axis."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.accuracy.cases import GROUPS, Case
from benchmarks.accuracy.methods import METHODS
from benchmarks.accuracy.summary import Row

# A KL below this is drawn at it: it cannot be told from zero.
LEAST = 1e-5
HIGHEST = 1e4
# One color per library (Okabe and Ito), one marker per method; ours are filled.
LOOKS: dict[str, dict] = {
    "bernflow": {"color": "#0072B2", "marker": "o", "markersize": 7, "zorder": 5},
    "bernflow-thorough": {"color": "#0072B2", "marker": "o", "markersize": 4.5, "markerfacecolor": "none"},
    "bernflow-choices": {"color": "#0072B2", "marker": "D", "markersize": 5.5, "zorder": 4},
    "bernstein-paper": {"color": "#D55E00", "marker": "s", "markerfacecolor": "none"},
    "bernstein-paper-text": {"color": "#8C564B", "marker": "s", "markerfacecolor": "none"},
    "start": {"color": "#56B4E9", "marker": "1", "markersize": 7},
    "start-fullrank": {"color": "#56B4E9", "marker": "2", "markersize": 7},
    "start-IAF": {"color": "#56B4E9", "marker": "x"},
    "start-BNAF": {"color": "#56B4E9", "marker": "+", "markersize": 7},
    "start-spline": {"color": "#56B4E9", "marker": "P", "markerfacecolor": "none"},
    "AutoLaplaceApproximation": {"color": "#009E73", "marker": "1", "markersize": 7},
    "AutoDiagonalNormal": {"color": "#009E73", "marker": "v", "markerfacecolor": "none"},
    "AutoMultivariateNormal": {"color": "#009E73", "marker": "^", "markerfacecolor": "none"},
    "AutoIAFNormal": {"color": "#009E73", "marker": "x"},
    "AutoBNAFNormal": {"color": "#009E73", "marker": "+", "markersize": 7},
    "flowjax-spline": {"color": "#CC79A7", "marker": "P", "markerfacecolor": "none"},
    "blackjax-pathfinder": {"color": "#A07800", "marker": "*", "markerfacecolor": "none", "markersize": 7},
    "pymc-advi": {"color": "#222222", "marker": "<", "markerfacecolor": "none"},
    "pymc-fullrank": {"color": "#222222", "marker": ">", "markerfacecolor": "none"},
}

Table = Mapping[str, Mapping[str, Row]]


def draw(tables: Mapping[str, Table], cases: Mapping[str, Case]) -> Figure | None:
    """Draw one panel per table; None where no KL is known."""
    order = [t for group in GROUPS for t in cases if cases[t].group == group]
    targets = [t for t in order if any(_known(table.get(t, {})) for table in tables.values())]
    if not targets:
        return None
    places = _places(targets, cases)
    figure = Figure(figsize=(3.2 + 3.6 * len(tables), 1.9 + 0.26 * max(places.values())), layout="constrained")
    panels = figure.subplots(1, len(tables), sharex=True, sharey=True, squeeze=False)[0]
    drawn: dict[str, object] = {}
    for axes, (title, table) in zip(panels, tables.items(), strict=True):
        for target, place in places.items():
            axes.axhline(place, color="#E3E3E3", linewidth=0.7, zorder=0)
            drawn |= _draw_row(axes, place, table.get(target, {}))
        axes.set_title(title, fontsize=9)
        axes.set_xlabel(f"KL (nats); in the gray band: below {2 * LEAST:g}")
        axes.set_xscale("log")
        axes.axvspan(LEAST / 2, LEAST * 2, color="#F2F2F2", zorder=-1, linewidth=0)
        axes.set_xlim(LEAST / 2, None)
    panels[0].set_yticks(list(places.values()), [cases[t].benchmark.title for t in places])
    panels[0].set_ylim(max(places.values()) + 0.8, -0.8)
    for axes in panels:
        axes.tick_params(axis="y", length=0)
    ordered = [m for m in LOOKS if m in drawn]
    figure.legend(
        [drawn[m] for m in ordered],
        [METHODS[m].label for m in ordered],
        loc="outside lower center",
        ncols=min(len(ordered), 2 + len(tables)),
        fontsize=8.5,
    )
    return figure


def _draw_row(axes: Axes, place: float, row: Mapping[str, Row]) -> dict[str, object]:
    found = _known(row)
    return {
        method: axes.plot(
            [min(max(found[method], LEAST), HIGHEST)],
            [place],
            **{"linestyle": "none", "markersize": 5.5, "markeredgewidth": 1.2, **LOOKS[method]},
        )[0]
        for method in LOOKS
        if method in found
    }


def _known(row: Mapping[str, Row]) -> dict[str, float]:
    return {m: r.kl for m, r in row.items() if r.kl is not None and r.kl == r.kl and m in LOOKS}


def _places(targets: list[str], cases: Mapping[str, Case]) -> dict[str, float]:
    """Give every target a place on the axis, with a gap between groups."""
    places, place, group = {}, -1.0, None
    for target in targets:
        place += 1.0 if cases[target].group == group or group is None else 1.6
        group = cases[target].group
        places[target] = place
    return places
