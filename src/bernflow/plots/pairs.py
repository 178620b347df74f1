"""Pairs of components: scatter plots with contours below the diagonal, marginal densities on it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from bernflow.errors import ArgumentError
from bernflow.plots import interactive
from bernflow.plots.backends import STATIC, choose_backend
from bernflow.plots.components import Panel, components, leftover_note, named_axes, trusted_draws
from bernflow.plots.densities import Curve, draw_curve, estimate_density
from bernflow.plots.draws import figure_draws
from bernflow.plots.exact import with_exact
from bernflow.plots.regions import highest_density, independent
from bernflow.plots.style import (
    FIT,
    LITERAL,
    MUTED,
    REFERENCE,
    HouseFigure,
    house_style,
    verdict_title,
)
from bernflow.posterior import Posterior
from bernflow.posterior.arguments import check_count
from bernflow.posterior.drawing import num_available
from bernflow.posterior.weighting import is_weighted

MAX_COMPONENTS = 8
# Larger limit for components chosen by name.
MAX_CHOSEN = 12
# Components are tested for being functions of others among at most so many.
MAX_TESTED = 200
DASHES = (0, (3, 1.6))
# Densities and contours need more draws than a scatter plot; weights and derived quantities need the model at each.
DRAWS_PER_POINT, WITH_MODEL = 25, 10
# Number of characters of tick labels that fit along a panel.
CHARACTERS = 17


def plot_pairs(
    posterior_or_draws: Posterior | Mapping[str, Any],
    var_names: Sequence[str] | str | None = None,
    reference: Mapping[str, Any] | None = None,
    num: int = 2000,
    labels: Mapping[str, str] | Sequence[str] | None = None,
    reference_label: str = "NUTS",
    label: str = "bernflow",
    key: Any = 1,
    backend: str | None = None,
) -> Any:
    r"""Plot all pairs of components, with 50 and 90 % highest-density contours (the paper's figure of pairs).

    Args:
        posterior_or_draws: a posterior, or draws by name, (num', *shape).
        var_names: the quantities to plot, or single components like "b[2]", at most 12; if None, the
            first 8 components of all parameters that are neither constant nor functions of one another.
        reference: reference draws by name, (num'', *shape).
        num: number of points per panel. Contours and densities use 25 num draws of a posterior (10 num if they need
            the model), or all given draws.
        labels: labels of the axes, by component like {"b[2]": r"$\beta_2$"}, or one per component.
        reference_label: label of the reference in the legend.
        label: label of the fit in the legend.
        key: integer seed or `jax.random.key` of the draws of a posterior.
        backend: "matplotlib", "plotly" or "bokeh"; the default set by `bernflow.plots.use` if None.
            Interactive figures have no contours.

    Returns:
        The figure. A matplotlib figure is not managed by pyplot: show it in a notebook or call its `savefig`. A plotly
        figure has `write_html`; pass a bokeh figure to `bokeh.plotting.show`.

    Example:
        >>> from bernflow.plots import plot_pairs
        >>> draws = np.random.default_rng(0).normal(size=(2, 1000))
        >>> plot_pairs({"a": draws[0], "b": draws[0] + draws[1]}).savefig("pairs.png")
    """
    backend = choose_backend(backend)
    check_count(num)
    draws, names, heading = _prepared(posterior_or_draws, var_names, num, key)
    by_name = var_names is not None or not isinstance(posterior_or_draws, Posterior)
    panels, total = _choose(draws, names, by_name, named_axes(posterior_or_draws))
    if len(panels) < 2:
        raise ArgumentError(
            f"plot_pairs: only {panels[0].label if panels else 'nothing'} was chosen; expected at least two "
            "components. For one, use plot_posterior."
        )
    if isinstance(posterior_or_draws, Posterior) and not is_weighted(posterior_or_draws):
        panels = [with_exact(posterior_or_draws, panel) for panel in panels]
    trusted = trusted_draws(reference, panels)
    _check_joint(panels, trusted)
    texts = _texts(labels, panels)
    if backend != STATIC:
        entries = interactive.label_columns(panels, trusted, label, reference_label, texts)
        return interactive.pairs(entries, num, heading, backend)
    with house_style():
        figure, grid = _open(len(panels), heading)
        _fill(grid, panels, trusted, num)
        _label_edges(grid, texts, panels)
        _legend(grid, label, reference_label if reference else None)
        figure.set_note(leftover_note(len(panels), total))
    return figure


def _open(num: int, heading: tuple[str, str] | None) -> tuple[HouseFigure, np.ndarray]:
    """Return a figure, at most as wide as a page, and its panels."""
    width = min(1.15 * num + 0.9, 7.4)
    layout = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02, wspace=0.02, hspace=0.02)
    figure = HouseFigure(figsize=(width, width + (0.3 if heading else 0.0)), layout=layout)
    if heading:
        figure.set_heading(*heading)
    return figure, figure.subplots(num, num, squeeze=False)


def _prepared(
    given: Posterior | Mapping[str, Any], var_names: Sequence[str] | str | None, num: int, key: Any
) -> tuple[dict[str, np.ndarray], list[str], tuple[str, str] | None]:
    """Return draws by name, the names to plot, and the heading."""
    if not isinstance(given, Posterior):
        draws = _checked(given)
        return draws, [var_names] if isinstance(var_names, str) else list(var_names or draws), None
    names = [var_names] if isinstance(var_names, str) else list(var_names or given.names)
    needs_model = is_weighted(given) or any(str(name).partition("[")[0] not in given.names for name in names)
    # The file of a loaded posterior has fewer draws with derived quantities than its flow can make without.
    available = num_available(given, (WITH_MODEL if needs_model else DRAWS_PER_POINT) * num, needs_model)
    return figure_draws(given, names, available, key).theta, names, verdict_title(given.diagnostics)


def _choose(draws: Mapping[str, np.ndarray], names: Sequence[str], by_name: bool, axes: Any) -> tuple[list[Panel], int]:
    """Return the components to plot, and the number of all that vary."""
    if by_name:
        return components(draws, names, MAX_CHOSEN, axes)
    candidates, total = components(draws, names, MAX_TESTED, axes)
    return independent(candidates, MAX_COMPONENTS), total


def _checked(draws: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Return given draws as arrays with the same number of draws."""
    if not isinstance(draws, Mapping) or not draws:
        raise ArgumentError(
            f"plot_pairs: got a {type(draws).__name__}; expected a Posterior or draws by name, (num, *shape)."
        )
    arrays = {name: np.asarray(value) for name, value in draws.items()}
    for name, value in arrays.items():
        if value.ndim < 1 or len(value) < 2:
            raise ArgumentError(f"draws[{name!r}] has shape {value.shape}: expected at least two draws, (num, *shape).")
        if not np.all(np.isfinite(value)):
            raise ArgumentError(f"draws[{name!r}] has values that are not finite: leave these draws out.")
    lengths = {name: len(value) for name, value in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise ArgumentError(f"The numbers of draws differ ({lengths}): expected draws of all names together.")
    return arrays


def _check_joint(panels: Sequence[Panel], trusted: Sequence[np.ndarray | None]) -> None:
    found = {panel.name: values for panel, values in zip(panels, trusted, strict=True) if values is not None}
    lengths = {name: len(values) for name, values in found.items()}
    if len(set(lengths.values())) > 1:
        raise ArgumentError(f"The numbers of reference draws differ ({lengths}): expected draws of all names together.")
    for name, values in found.items():
        if not np.all(np.isfinite(values)):
            raise ArgumentError(f"reference[{name!r}] has values that are not finite: leave these draws out.")


def _texts(labels: Mapping[str, str] | Sequence[str] | None, panels: Sequence[Panel]) -> list[str]:
    """Return the labels of the axes."""
    own = [panel.label for panel in panels]
    if labels is None:
        return own
    if isinstance(labels, Mapping):
        unknown = [name for name in labels if name not in own]
        if unknown:
            raise ArgumentError(f"labels: {unknown[0]!r} is not plotted; expected some of {', '.join(own)}.")
        return [labels.get(name, name) for name in own]
    if isinstance(labels, str) or len(labels) != len(own):
        raise ArgumentError(f"labels={labels!r}: expected one text for each of {', '.join(own)}.")
    return list(labels)


def _fill(grid: np.ndarray, panels: Sequence[Panel], trusted: Sequence[np.ndarray | None], num: int) -> None:
    curves = [panel.exact or estimate_density(panel.values) for panel in panels]
    theirs = [None if values is None else estimate_density(values) for values in trusted]
    views = [_view(*pair) for pair in zip(curves, theirs, strict=True)]
    for (row, column), axes in np.ndenumerate(grid):
        if column > row:
            axes.axis("off")
            continue
        if column == row:
            axes.set_ylim(0.0, 1.1 * draw_curve(axes, curves[row], theirs[row], DASHES))
        else:
            across, up = trusted[column], trusted[row]
            if across is not None and up is not None:
                _draw_cloud(axes, across, up, num, REFERENCE, DASHES)
            _draw_cloud(axes, panels[column].values, panels[row].values, num, FIT, "-")
            axes.set_ylim(*views[row])
        axes.set_xlim(*views[column])


def _view(curve: Curve, reference: Curve | None) -> tuple[float, float]:
    """Return the range of an axis, which is that of the densities."""
    curves = [curve] if reference is None else [curve, reference]
    return min(c.low for c in curves), max(c.high for c in curves)


def _draw_cloud(axes: Axes, x: np.ndarray, y: np.ndarray, num: int, color: str, linestyle: Any) -> None:
    """Draw evenly spaced points, and contours of all draws."""
    shown = np.unique(np.linspace(0, len(x) - 1, min(num, len(x))).astype(int))
    axes.scatter(x[shown], y[shown], s=2.0, color=color, alpha=0.12, linewidths=0, rasterized=True)
    region = highest_density(x, y)
    if region is not None:
        mesh = (region.x, region.y, region.density)
        axes.contour(*mesh, levels=region.levels, colors=color, linewidths=1.0, linestyles=[linestyle])


def _label_edges(grid: np.ndarray, texts: Sequence[str], panels: Sequence[Panel]) -> None:
    """Add labels and tick labels at the left and at the bottom only."""
    last = len(texts) - 1
    # Only labels given by the caller may contain formulas.
    looks = [LITERAL if text == panel.label else {} for text, panel in zip(texts, panels, strict=True)]
    size = 8.0 if last < 5 else 7.0
    for (row, column), axes in np.ndenumerate(grid):
        if column > row:
            continue
        axes.set_xticks(_ticks(*axes.get_xlim()))
        if row != column:
            axes.set_yticks(_ticks(*axes.get_ylim()))
        axes.tick_params(labelsize=size, length=2.5, pad=2, labelbottom=row == last, labelleft=column == 0)
        if row == last:
            axes.set_xlabel(texts[column], fontsize=size + 1.5, **looks[column])
        if column == 0 and row > 0:
            axes.set_ylabel(texts[row], fontsize=size + 1.5, **looks[row])
    figure = grid[0, 0].figure
    figure.align_ylabels(grid[1:, 0])
    figure.align_xlabels(grid[-1])


def _ticks(low: float, high: float) -> np.ndarray:
    """Return a few ticks away from the ends, so that tick labels of adjacent panels do not overlap."""
    margin = 0.14 * (high - low)
    ticks = np.array([])
    for num_bins in (3, 4, 5, 6):
        ticks = np.asarray(MaxNLocator(num_bins, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high))
        ticks = ticks[(ticks > low + margin) & (ticks < high - margin)]
        if len(ticks) > 1:
            break
    if len(ticks) > 2 and (ticks[1] - ticks[0]) / (high - low) * CHARACTERS < _longest(ticks) + 1:
        return ticks[[0, -1]] if len(ticks) % 2 == 0 else ticks[::2]
    return ticks


def _longest(ticks: np.ndarray) -> int:
    """Return the length of the longest tick label, with the same number of decimals for all."""
    decimals = max(len(f"{tick:.10g}".partition(".")[2]) for tick in ticks)
    return max(len(f"{tick:.{decimals}f}") for tick in ticks)


def _legend(grid: np.ndarray, label: str, reference_label: str | None) -> None:
    """Add the legend in the empty triangle above the diagonal."""
    handles = [Line2D([], [], color=FIT, linewidth=1.4, label=label)]
    if reference_label is not None:
        handles.append(Line2D([], [], color=REFERENCE, linewidth=1.1, linestyle=DASHES, label=reference_label))
    legend = grid[0, -1].legend(
        handles=handles,
        loc="upper right",
        title="50, 90 % contours",
        title_fontsize=8,
        fontsize=9,
        handlelength=2.2,
        borderpad=0.0,
        borderaxespad=0.0,
        alignment="left",
    )
    legend.get_title().set_color(MUTED)
    legend.set_in_layout(False)
