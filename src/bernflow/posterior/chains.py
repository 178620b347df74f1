"""Draws of Markov chains by name, with convergence diagnostics."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from bernflow.diagnostics.chains import ChainDiagnostics, Convergence, convergence, judge_chains
from bernflow.diagnostics.summaries import summarize
from bernflow.models.base import AbstractModel
from bernflow.posterior import display, sampling
from bernflow.posterior.export import SAMPLED, Kind, as_installed, model_groups, moved, to_datatree
from bernflow.posterior.stored import Roles
from bernflow.posterior.tables import Axes, select, written
from bernflow.precision import use_precision
from bernflow.target import AbstractLayout

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

Draws = dict[str, np.ndarray]


class NutsRun:
    """Draws of NUTS, exact up to Monte Carlo error if the chains have converged.

    Attributes:
        x: the draws on R^p, (chains, num, p).
        stats: sampler statistics of every draw, (chains, num) each, with the names of ArviZ.
        num_gradients: number of gradient evaluations, including warmup.
        settings: settings of the run, JSON-serializable.
        diagnostics: R-hat, effective sample sizes, divergences, `verdict` and `status`.
    """

    def __init__(
        self,
        x: Float[np.ndarray, "chains num p"],
        stats: Mapping[str, np.ndarray],
        layout: AbstractLayout,
        model: AbstractModel,
        num_gradients: int,
        settings: Mapping[str, Any],
    ):
        self.x = x
        self.stats = dict(stats)
        self.num_gradients = num_gradients
        self.settings = dict(settings)
        self._layout, self._model = layout, model
        self._names, self._values = _varying({name: self._theta[name] for name in layout.names}, self.axes)
        self._convergence = convergence(self._values)
        self.diagnostics: ChainDiagnostics = judge_chains(
            self._convergence, self._names, x.shape[0] * x.shape[1], int(np.sum(self.stats["diverging"]))
        )

    def draws(self, deterministic: bool = True) -> Draws:
        """Return the draws on the constrained scale.

        Args:
            deterministic: include derived quantities.

        Returns:
            One array of shape (chains, num, *shape) per name.
        """
        return {name: value for name, value in self._theta.items() if deterministic or name in self._layout.names}

    def summary(
        self, var_names: Sequence[str] | str | None = None, filter_vars: str | None = None, *, ci_prob: float = 0.9
    ) -> "pd.DataFrame":
        """Tabulate mean, sd, central interval, R-hat and effective sample size of every scalar component.

        Args:
            var_names: the quantities to show, or to leave out if prefixed by `~`; all if None.
            filter_vars: None (whole names), "like" (parts of names) or "regex", as in ArviZ.
            ci_prob: probability of the interval.
        """
        from arviz_stats import summary

        axes = self.axes
        tree = to_datatree({"posterior": select(self._theta, var_names, filter_vars)}, axes.dims, axes.coords, True)
        return summary(tree, kind="all", ci_kind="eti", ci_prob=ci_prob, round_to="none")

    def to_arviz(self, log_likelihood: bool = True, kind: Kind = "auto") -> Any:
        """Export to ArviZ with one chain per Markov chain.

        Args:
            log_likelihood: include the pointwise log likelihood, which is the largest part.
            kind: "datatree" for ArviZ 1, "inferencedata" for ArviZ 0.x, "auto" for the installed version.

        Returns:
            The groups `posterior`, `sample_stats` and, if available, `log_prior`, `log_likelihood`, `observed_data` and
            `constant_data`.
        """
        return as_installed(self.to_tree(log_likelihood), kind)

    def to_tree(self, log_likelihood: bool = True) -> "xr.DataTree":
        """Export as a DataTree; see `to_arviz`."""
        model, sites = self._model, {name: self._flat(self._theta[name]) for name in self._layout.names}
        groups: dict[str, Any] = {"sample_stats": self.stats}
        with use_precision(str(self.x.dtype)):
            for group, values in model_groups(model, sites, log_likelihood).items():
                by_chain = group in SAMPLED
                groups[group] = {name: self._by_chain(v) if by_chain else v for name, v in values.items()}
            roles = Roles(model.predicted_names(), model.likelihood_names())
            groups |= moved(self._theta, roles, groups.get("log_likelihood"), log_likelihood)
        return to_datatree(groups, self.axes.dims, self.axes.coords, by_chain=True)

    @property
    def axes(self) -> Axes:
        """Names and coordinate labels of the axes of all quantities."""
        with use_precision(str(self.x.dtype)):
            return Axes(self._model.dims(), self._model.coords(), self._model.first_index())

    @cached_property
    def _theta(self) -> Draws:
        with use_precision(str(self.x.dtype)):
            theta = sampling.constrain(self._layout, self._model, self._flat(self.x))
        return {name: self._by_chain(value) for name, value in theta.items()}

    def _flat(self, value: np.ndarray) -> np.ndarray:
        return value.reshape(-1, *value.shape[2:])

    def _by_chain(self, value: np.ndarray) -> np.ndarray:
        return value.reshape(*self.x.shape[:2], *value.shape[1:])

    def __repr__(self) -> str:
        return _text(self.settings, self.diagnostics, self.num_gradients, self._names, self._values, self._convergence)


def _varying(theta: Draws, axes: Axes) -> tuple[list[str], Float[np.ndarray, "d chains num"]]:
    """Return the scalar components that vary, with their names; one corner of a Cholesky factor is always 1."""
    names, values = [], []
    for name, value in theta.items():
        for index, label in axes.labels(name, value.shape[2:]):
            at: Any = (slice(None), slice(None), *index)
            component = value[at]
            if np.any(component != component[0, 0]):
                names.append(label)
                values.append(component)
    # If all chains are stuck at one point, R-hat is NaN and the verdict poor.
    return (names, np.stack(values)) if names else (["every parameter"], np.full((1, *value.shape[:2]), np.nan))


def _text(
    settings: dict[str, Any],
    diagnostics: ChainDiagnostics,
    num_gradients: int,
    names: list[str],
    values: Float[np.ndarray, "d chains num"],
    found: Convergence,
) -> str:
    """Show verdict, costs and table as text."""
    chains, num = values.shape[1:]
    per_draw = num_gradients / max(diagnostics.ess_bulk, 1.0)
    shown = names[: display.MAX_ROWS]
    width = max(map(len, shown))
    columns = (*display.COLUMNS, "R-hat", "ESS bulk", "ESS tail")
    lines = [
        f"NutsRun ({settings['sampler']}, {chains} chains of {num} draws after {settings['warmup']} of warmup)",
        f"  {diagnostics.status}",
        f"  {num_gradients:,} gradients, {per_draw:.1f} per effective draw",
        "",
        "  " + " " * width + "".join(f"{column:>11}" for column in columns),
    ]
    for i, name in enumerate(shown):
        figures = summarize(values[i].ravel(), display.QUANTILES)
        ends = f"{found.rhat[i]:>11.3f}{found.ess_bulk[i]:>11.0f}{found.ess_tail[i]:>11.0f}"
        lines.append(f"  {name:<{width}}" + "".join(f"{figure:>11}" for figure in written(figures)) + ends)
    if len(names) > len(shown):
        lines.append(f"  ... and {len(names) - len(shown):,} more rows: run.summary() has all")
    return "\n".join(line.rstrip() for line in lines)
