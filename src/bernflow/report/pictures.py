"""The figures of a report, with captions and alternative texts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bernflow.diagnostics.importance import MIN_DRAWS
from bernflow.diagnostics.summaries import is_constant
from bernflow.plots import plot_convergence, plot_pairs, plot_predictive, plot_structure, plot_weights
from bernflow.plots.backends import static_figures
from bernflow.plots.components import Panel, component_draws
from bernflow.plots.densities import Curve, estimate_density
from bernflow.plots.marginals import draw_marginal
from bernflow.plots.predictive import match_replicates
from bernflow.plots.style import MUTED, house_style
from bernflow.posterior.structure import count
from bernflow.report.components import Component, select_evenly, strongest_pairs, table_row, vary
from bernflow.report.material import Material
from bernflow.report.svg import inline_svg
from bernflow.report.wording import isolate

MAX_MARGINALS = 24
# More panels would be too small on a phone.
MAX_PAIRED = 4
MAX_LABEL = 15
NUM_POINTS = 1000
MAX_PREDICTED = 6
# Size in inches; the text of a wider figure would be too small on a phone.
READABLE_ON_A_PHONE = (5.2, 3.3)


RESAMPLED = (
    "The draws behind the table, the densities, the pairs and the predictive check were resampled by their importance "
    "weights, which corrects remaining errors of the fit. The ELBO and the training curve are of the fit as it is."
)
UNWEIGHTED = "No draw of this page is weighted: the weights only judge the fit."


@dataclass(frozen=True)
class Picture:
    """A figure as an SVG element, with a caption (plain text)."""

    svg: str
    caption: str


@dataclass(frozen=True)
class Gallery:
    """The figures of one section.

    Attributes:
        name: the id of the section.
        title: its heading.
        text: an explanation.
        pictures: several small ones, or one.
        failed: the error, if they could not be drawn.
    """

    name: str
    title: str
    text: str
    pictures: Sequence[Picture] = ()
    failed: str = ""

    @property
    def is_grid(self) -> bool:
        """Whether to show small figures side by side."""
        return self.name == "marginals"


def draw_galleries(material: Material, components: Sequence[Component]) -> list[Gallery]:
    """Draw all figures for which there is material; the error of a figure that fails is shown instead."""
    parameters = _densely(material, [c for c in components if not c.derived])
    kinds: list[tuple[str, str, Callable[[], Gallery | None]]] = [
        ("marginals", "Marginals", lambda: _marginals(parameters, material)),
        ("pairs", "Pairs", lambda: _pairs(parameters)),
        ("structure", "Structure", lambda: _structure(material)),
        ("training", "Training", lambda: _training(material)),
        ("weights", "Importance weights", lambda: _weights(material)),
        ("predictive", "Predictive check", lambda: _predictive(material)),
    ]
    galleries = []
    for name, title, draw in kinds:
        try:
            # Names in a user's model are not TeX formulas, even if they contain dollar signs.
            with rc_context({"text.parse_math": False}), static_figures():
                gallery = draw()
        except Exception as error:  # the failure of one figure must not prevent the report
            gallery = Gallery(name, title, "", failed=f"{type(error).__name__}: {error}")
        if gallery is not None:
            galleries.append(gallery)
    return galleries


def _densely(material: Material, components: Sequence[Component]) -> list[Component]:
    """Return the components with more draws, if there are more."""
    dense = material.dense
    return [c._replace(values=component_draws(dense[c.name], c.where)) if c.name in dense else c for c in components]


def _marginals(components: Sequence[Component], material: Material) -> Gallery | None:
    varying = vary(components)
    shown = select_evenly(varying, MAX_MARGINALS)
    pictures = []
    for number, component in enumerate(shown):
        row = table_row(component)
        interval = f"median {row[3]}, 90 % interval {row[2]} to {row[4]}"
        figure = _marginal(component, material)
        svg = inline_svg(figure, f"Density of {component.label}: {interval}.", f"m{number}")
        pictures.append(Picture(svg, component.label))
    text = "Posterior density, median and central 90 % interval."
    if any(component.name in material.prior for component in shown):
        text += " The dashed line is the density of the prior."
    if len(varying) > len(shown):
        text += f" {len(shown)} of {len(varying):,} components; select others with post.plot(var_names=[...])."
    return Gallery("marginals", "Marginals", text, pictures) if pictures else None


def _marginal(component: Component, material: Material) -> Figure:
    exact = material.exact.get((component.name, component.where))
    curve = exact or estimate_density(component.values)
    with house_style():
        figure = Figure(figsize=(2.5, 1.35))
        axes = figure.add_axes((0.05, 0.2, 0.9, 0.78))
        draw_marginal(axes, Panel(component.label, (), component.values, exact=curve))
        if component.name in material.prior:
            _draw_prior(axes, component_draws(material.prior[component.name], component.where), curve)
        axes.set_title("")
    return figure


def _draw_prior(axes: Axes, values: np.ndarray, curve: Curve) -> None:
    """Draw the density of the prior on the range of the posterior, which is usually narrower."""
    values = values[np.isfinite(values)]
    if len(values) < MIN_DRAWS or is_constant(values):
        return
    limits = axes.get_xlim(), axes.get_ylim()
    prior = estimate_density(values)
    inside = (prior.grid >= curve.low) & (prior.grid <= curve.high)
    grid = np.concatenate([[curve.low], prior.grid[inside], [curve.high]])
    density = np.interp(grid, prior.grid, prior.density, left=0.0, right=0.0)
    axes.plot(grid, density, color=MUTED, linewidth=1.2, linestyle=(0, (4, 2)), label="prior")
    axes.set(xlim=limits[0], ylim=(limits[1][0], max(limits[1][1], 1.08 * float(density.max()))))


def _pairs(components: Sequence[Component]) -> Gallery | None:
    chosen, strongest, pair = strongest_pairs(components, MAX_PAIRED)
    if len(chosen) < 2:
        return None
    draws = {str(i): component.values for i, component in enumerate(chosen)}
    labels = [c.label if len(c.label) <= MAX_LABEL else f"{c.label[: MAX_LABEL - 1]}…" for c in chosen]
    figure = plot_pairs(draws, labels=labels, num=NUM_POINTS)
    found = f"The strongest rank correlation is {strongest:.2f}, between {isolate(pair[0])} and {isolate(pair[1])}."
    alt = f"Scatter plots with contours for all pairs of {', '.join(c.label for c in chosen)}. {found}"
    picture = Picture(inline_svg(figure, alt, "pairs"), found)
    which = "All components" if len(chosen) == len(components) else "The components with the strongest correlations"
    return Gallery("pairs", "Pairs", f"{which}, with 50 % and 90 % highest-density contours.", [picture])


def _structure(material: Material) -> Gallery | None:
    structure = material.structure
    if structure is None:
        return None
    if not structure.blocks:
        text = (
            f"{count(len(structure.globals), 'parameter')}, fitted together: each may depend on all others. No blocks "
            "of locals that are independent given globals were found, or looked for in few dimensions."
        )
        return Gallery("structure", "Structure", text)
    text = (
        "The dependence structure of the fit: a few globals, which influence all other parameters, and blocks of "
        "locals given them. If there are many, the first ones and the last one are shown."
    )
    found = " ".join(
        f"{group.what}: {', '.join(filter(None, (f'{group.how_many} ({group.names})', group.dependence)))}."
        for group in structure.groups()
    )
    alt = f"Matrix of parameters, with color for pairs that depend on each other. {found}"
    picture = Picture(inline_svg(plot_structure(structure), alt, "structure"), found)
    return Gallery("structure", "Structure", text, [picture])


def _training(material: Material) -> Gallery | None:
    elbo, steps = (np.asarray(material.history.get(name, ())) for name in ("elbo", "step"))
    if not len(elbo) or len(elbo) != len(steps):
        return None
    d = material.diagnostics
    alt = f"ELBO from {elbo[0]:.4g} at step {steps[0]} to {elbo[-1]:.4g} at step {steps[-1]}."
    text = "The evidence lower bound (ELBO) over the training steps, with two Monte Carlo standard errors."
    if d.verdict != "poor":
        alt += f" The log evidence is {d.log_evidence:.4g}."
        text += " The distance from the log evidence is the Kullback-Leibler divergence in nats."
    figure = plot_convergence(material)
    figure.set_size_inches(*READABLE_ON_A_PHONE)
    return Gallery("training", "Training", text, [Picture(inline_svg(figure, alt, "elbo"), "")])


def _weights(material: Material) -> Gallery | None:
    raw = material.log_weights
    if raw is None:
        return None
    # Treated as weight zero, as in the diagnostics.
    raw = np.where(np.isnan(raw) | (raw == np.inf), -np.inf, raw)
    if np.sum(raw > -np.inf) < MIN_DRAWS:
        return None
    text = (
        f"The fraction of {len(raw):,} fresh draws whose weight exceeds a value. Every point is a draw of the tail; "
        "the line is the Pareto fit, whose shape is k-hat. A tail that decreases more steeply than the dotted line is "
        "good. " + (RESAMPLED if material.weighted else UNWEIGHTED)
    )
    alt = f"Fraction of draws with a larger weight against the log weight; k-hat {material.diagnostics.khat:.2f}."
    figure = plot_weights(raw, show_khat=False)
    figure.set_size_inches(*READABLE_ON_A_PHONE)
    return Gallery("weights", "Importance weights", text, [Picture(inline_svg(figure, alt, "weights"), "")])


def _predictive(material: Material) -> Gallery | None:
    names = list(match_replicates(material.observed, material.replicates))
    if not names:
        return None
    num = len(next(iter(material.replicates.values())))
    pictures = []
    for number, name in enumerate(names[:MAX_PREDICTED]):
        figure = plot_predictive(material.replicates, {name: material.observed[name]})
        alt = f"Distribution of observed {name} and of {num} replicated data sets."
        pictures.append(Picture(inline_svg(figure, alt, f"ppc{number}"), ""))
    text = (
        "Observed data and data simulated from the fitted model (in color). If they look different, the model is "
        "inadequate, however good the fit."
    )
    return Gallery("predictive", "Predictive check", text, pictures)
