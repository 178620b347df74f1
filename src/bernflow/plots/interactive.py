"""Interactive figures, drawn by arviz-plots with plotly or bokeh in the colors of the static ones."""

import html
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bernflow.errors import ArgumentError
from bernflow.filters import local_filters
from bernflow.plots.components import Panel
from bernflow.plots.style import FIT, REFERENCE

# Size of a panel in pixels, and margins for headings and legends.
PANEL, MARGIN = (240, 170), (60, 110)
# An interactive figure contains all of its points.
MAX_POINTS = 2000
MAX_LINES = 50


def marginals(columns: Mapping[str, Mapping[str, np.ndarray]], heading: tuple[str, str], backend: str) -> Any:
    """Draw densities, medians and 90 % intervals.

    Args:
        columns: draws (num,) by component, by the name of the method; the fit comes first.
        heading: the heading and its color.
        backend: "plotly" or "bokeh".
    """
    import arviz_plots

    num = len(next(iter(columns.values())))
    across = min(num, 4)
    drawn = arviz_plots.plot_dist(
        _trees(columns),
        kind="kde",
        ci_kind="eti",
        ci_prob=0.9,
        point_estimate="median",
        visuals={"point_estimate_text": False},
        backend=backend,
        col_wrap=across,
        color=[FIT, REFERENCE][: len(columns)],
        figure_kwargs=_size(across, -(-num // across)),
    )
    if len(columns) > 1:
        drawn.add_legend("model")
    return _finish(drawn, heading, backend)


def pairs(
    columns: Mapping[str, Mapping[str, np.ndarray]], num: int, heading: tuple[str, str] | None, backend: str
) -> Any:
    """Draw scatter plots below the diagonal and densities on it; arguments as in `marginals`."""
    import arviz_plots

    drawn = None
    num_panels = len(next(iter(columns.values())))
    first: dict[str, Any] = {"figure_kwargs": _size(num_panels, num_panels)}
    for values, color in zip(columns.values(), (FIT, REFERENCE), strict=False):
        look = {"color": color}
        drawn = arviz_plots.plot_pair(
            _tree(_thinned(values, min(num, MAX_POINTS))),
            visuals={"scatter": {**look, "alpha": 0.25, "size": 3}, "dist": look},
            plot_matrix=drawn,
            backend=backend,
            **(first if drawn is None else {}),
        )
    text = " (blue) and ".join(columns) + (" (black)" if len(columns) > 1 else "")
    return _finish(drawn, heading or (text, REFERENCE), backend)


def predictive(data: Mapping[str, tuple[np.ndarray, np.ndarray]], is_counted: bool, backend: str) -> Any:
    """Draw the distributions of observed values and replicates.

    Args:
        data: observed values, (n,), and their replicates, (num, n), by name.
        is_counted: draw distribution functions, which are appropriate for integers, instead of densities.
        backend: "plotly" or "bokeh".
    """
    import arviz_base
    import arviz_plots

    tree = arviz_base.from_dict(
        {
            "posterior_predictive": {name: replicates[None] for name, (_, replicates) in data.items()},
            "observed_data": {name: values for name, (values, _) in data.items()},
        }
    )
    across = min(len(data), 3)
    with local_filters():
        # It recommends other figures for integers, which the static form provides.
        warnings.simplefilter("ignore", UserWarning)
        drawn = arviz_plots.plot_ppc_dist(
            tree,
            kind="ecdf" if is_counted else "kde",
            num_samples=min(MAX_LINES, *(len(replicates) for _, replicates in data.values())),
            visuals={"predictive_dist": {"color": FIT}, "observed_dist": {"color": REFERENCE}},
            backend=backend,
            col_wrap=across,
            figure_kwargs=_size(2 * across, 2 * -(-len(data) // across)),
        )
    what = "distribution functions" if is_counted else "densities"
    return _finish(drawn, (f"Observed (black) and replicated (blue) {what}", REFERENCE), backend)


def comparison(columns: Mapping[str, Mapping[str, np.ndarray]], colors: Sequence[str], unit: str, backend: str) -> Any:
    """Draw medians, 50 and 90 % intervals of every component side by side; columns as in `marginals`."""
    import arviz_plots

    num = len(next(iter(columns.values())))
    drawn = arviz_plots.plot_forest(
        _trees(columns),
        combined=True,
        ci_kind="eti",
        ci_probs=(0.5, 0.9),
        point_estimate="median",
        backend=backend,
        color=list(colors),
        figure_kwargs={"figsize": (760, 140 + 18 * num * (len(columns) + 1)), "figsize_units": "dots"},
    )
    drawn.add_legend("model")
    return _finish(drawn, (unit, REFERENCE), backend)


def label_columns(
    panels: Sequence[Panel],
    trusted: Sequence[np.ndarray | None],
    label: str,
    reference_label: str,
    texts: Sequence[str] | None = None,
) -> dict[str, dict[str, np.ndarray]]:
    """Return draws by component, of the fit and of the reference."""
    names = texts or [panel.label for panel in panels]
    columns = {label: {name: panel.values for name, panel in zip(names, panels, strict=True)}}
    found = {name: values for name, values in zip(names, trusted, strict=True) if values is not None}
    if found and len(found) < len(names):
        missing = [name for name in names if name not in found]
        raise ArgumentError(
            f"reference has no draws of {', '.join(missing)}: an interactive figure shows the reference in all of its "
            "panels or in none. Choose others with var_names=[...], or use backend='matplotlib'."
        )
    return {**columns, reference_label: found} if found else columns


def _trees(columns: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """Return one tree per entry, all with the same number of draws, as arviz-plots requires."""
    fewest = min(len(values) for entry in columns.values() for values in entry.values())
    return {name: _tree(_thinned(entry, fewest)) for name, entry in columns.items()}


def _tree(values: Mapping[str, np.ndarray]) -> Any:
    import arviz_base

    return arviz_base.from_dict({"posterior": {name: np.asarray(draws)[None] for name, draws in values.items()}})


def _thinned(values: Mapping[str, np.ndarray], num: int) -> dict[str, np.ndarray]:
    """Return evenly spaced draws, with the same indices for every component."""
    return {
        name: draws[np.linspace(0, len(draws) - 1, min(num, len(draws))).astype(int)] for name, draws in values.items()
    }


def _size(across: int, down: int) -> dict[str, Any]:
    width, height = (size * num + extra for size, num, extra in zip(PANEL, (across, down), MARGIN, strict=True))
    return {"figsize": (max(width, 480), height), "figsize_units": "dots"}


def _finish(drawn: Any, heading: tuple[str, str], backend: str) -> Any:
    """Add the heading, and return the figure of the backend."""
    figure = drawn.viz["figure"].item()
    text, color = heading
    if backend == "plotly":
        figure.update_layout(template="plotly_white", title={"text": text, "font": {"color": color, "size": 15}})
        return figure
    from bokeh.layouts import column
    from bokeh.models.widgets.markups import Div

    return column(Div(text=html.escape(text), styles={"color": color, "font-weight": "bold"}), figure)
