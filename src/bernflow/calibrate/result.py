"""The result of a calibration: ranks, z-scores and contractions by name, with the verdict on them."""

import dataclasses
from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from bernflow.diagnostics.findings import VERDICTS, Verdict
from bernflow.diagnostics.uniformity import holm, rank_p_value
from bernflow.posterior import display

if TYPE_CHECKING:
    import pandas as pd

# Probabilities of a false alarm: ranks are not "good" below the first, and "poor" below the second.
DOUBTFUL_P, POOR_P = 0.05, 0.001
LOG_JOINT = "log_joint"
UNEVEN = "the ranks are uneven"


class Quantity(NamedTuple):
    """One scalar component of a parameter, or the log density.

    Attributes:
        label: name with index, for example `b[2]`.
        ranks: rank of the true value among the draws, (num_simulations,).
        z_scores: (posterior mean - true value) / posterior sd; None for the log density.
        contraction: 1 - posterior variance / prior variance; None for the log density.
    """

    label: str
    ranks: Int[np.ndarray, " n"]
    z_scores: Float[np.ndarray, " n"] | None
    contraction: Float[np.ndarray, " n"] | None


@dataclasses.dataclass(frozen=True, repr=False)
class Calibration:
    """Ranks of known parameters among the draws of posteriors fitted to data simulated from them.

    If prior, likelihood and fit are consistent, every rank is uniform on 0, ..., num_draws (Talts et al., 2018). So is
    that of the log density of parameters and data, under the name "log_joint", which detects errors that no single
    parameter shows (Modrák et al., 2023).

    Attributes:
        ranks: ranks by name, (num_simulations, *shape), and "log_joint".
        z_scores: (posterior mean - true value) / posterior sd by name: of mean 0, and of size 1 or less.
        contraction: 1 - posterior variance / prior variance by name: near 1 if the data are informative.
        p_values: probability of ranks that deviate as far from uniform, by name, (*shape).
        fits: the verdict on every fit.
        num_draws: number of draws among which a value is ranked.
        settings: settings of the fits, JSON-serializable.

    Example:
        >>> found = bf.calibrate(model, y, num_simulations=40, steps=100, progress=False)
        >>> found.verdict != "poor"
        True
        >>> found.num_simulations, found.ranks["mu"].shape
        (40, (40,))
        >>> found.plot().savefig("ranks.png")
    """

    ranks: Mapping[str, Int[np.ndarray, "n ..."]]
    z_scores: Mapping[str, Float[np.ndarray, "n ..."]]
    contraction: Mapping[str, Float[np.ndarray, "n ..."]]
    p_values: Mapping[str, Float[np.ndarray, "..."]]
    fits: tuple[Verdict, ...]
    num_draws: int
    settings: Mapping[str, Any]

    @property
    def num_simulations(self) -> int:
        """Number of simulated and fitted data sets."""
        return len(self.fits)

    @property
    def num_poor(self) -> int:
        """Number of fits with the verdict "poor"."""
        return Counter(self.fits)["poor"]

    @property
    def p_value(self) -> float:
        """Probability of ranks that deviate as far as the worst ones here, if model and fit are right (Holm)."""
        return float(np.min(self._adjusted))

    @property
    def verdict(self) -> Verdict:
        """Return "good" (p-value of all quantities together at least 0.05), "poor" (below 0.001) or "usable"."""
        return "good" if self.p_value >= DOUBTFUL_P else "poor" if self.p_value < POOR_P else "usable"

    @property
    def status(self) -> str:
        """A sentence that states the findings, and what to do."""
        head = f"{self.verdict.capitalize()} (p-value {self.p_value:.2g} of {len(self.quantities)} quantities together)"
        failed = [q for q, p in zip(self.quantities, self._adjusted, strict=True) if p < DOUBTFUL_P]
        found = "; ".join(f"{q.label}: {self._deviation(q)}" for q in failed[:4])
        more = f"; and {len(failed) - 4} more" if len(failed) > 4 else ""
        if self.verdict == "good":
            sentences = [f"{head}: the ranks are as uniform as they should be."]
        elif self.verdict == "usable":
            sentences = [
                f"{head}: a doubtful case ({found}{more}). Right posteriors look so in {100 * self.p_value:.1f} % of "
                "all calibrations; repeat it with another key and more simulations."
            ]
        else:
            sentences = [
                f"{head}: model and fit do not belong together ({found}{more}). Check the Jacobians and scale factors "
                "of the density, or use a richer family and more steps."
            ]
        if self.num_poor:
            sentences.append(f"{self.num_poor} of {self.num_simulations} fits are poor; more steps may mend them.")
        return " ".join(sentences)

    @cached_property
    def quantities(self) -> list[Quantity]:
        """Every scalar component, the log density last."""
        found = []
        for name, ranks in self.ranks.items():
            for index in np.ndindex(ranks.shape[1:]):
                at: Any = (slice(None), *index)
                label = name + (f"[{', '.join(map(str, index))}]" if index else "")
                z, contraction = (
                    part[name][at] if name in part else None for part in (self.z_scores, self.contraction)
                )
                found.append(Quantity(label, ranks[at], z, contraction))
        return found

    @cached_property
    def _adjusted(self) -> Float[np.ndarray, " m"]:
        return holm(np.concatenate([np.ravel(p) for p in self.p_values.values()]))

    def _deviation(self, quantity: Quantity) -> str:
        # "Too wide" applies to parameters only.
        return UNEVEN if quantity.z_scores is None else deviation(quantity.ranks, self.num_draws)

    def table(self) -> "pd.DataFrame":
        """Tabulate every scalar component: p-values, z-scores and contraction.

        Returns:
            One row per component: `p_value`, `p_holm` (adjusted for their number), `z_mean`, `z_sd` and
            `contraction`, which are averages over the simulations; the latter three are missing for the log density.
        """
        import pandas as pd

        raw = np.concatenate([np.ravel(p) for p in self.p_values.values()])
        rows = []
        for q, p, adjusted in zip(self.quantities, raw, self._adjusted, strict=True):
            row = {"p_value": p, "p_holm": adjusted, "z_mean": np.nan, "z_sd": np.nan, "contraction": np.nan}
            if q.z_scores is not None and q.contraction is not None:
                row |= {
                    "z_mean": q.z_scores.mean(),
                    "z_sd": q.z_scores.std(ddof=1),
                    "contraction": q.contraction.mean(),
                }
            rows.append(row)
        return pd.DataFrame(rows, index=[q.label for q in self.quantities])

    def plot(self, **kwargs: Any) -> Any:
        """Plot the ranks with their band, and z-scores against contraction.

        Args:
            **kwargs: arguments of `bernflow.plots.plot_calibration`.

        Returns:
            The figure.
        """
        from bernflow.plots import plot_calibration

        return plot_calibration(self, **kwargs)

    def __repr__(self) -> str:
        return display.plain(f"Calibration ({self._describe()})", self.status, self._figures(), *self._rows())

    def _repr_html_(self) -> str:
        what = ("Calibration", self._describe())
        return display.card(what, self.verdict, self.status, self._figures(), *self._rows())

    def _describe(self) -> str:
        chosen = self.settings
        return (
            f"{self.num_simulations} simulations, {self.num_draws} draws each, {chosen['family']}, "
            f"{chosen['steps']} steps"
        )

    def _figures(self) -> list[tuple[str, str]]:
        counts = Counter(self.fits)
        return [("fits called " + name, str(counts[name])) for name in VERDICTS]

    def _rows(self) -> tuple[tuple[str, ...], list[display.Row]]:
        """Return the columns and rows to show; if there are too many, those with the smallest p-values."""
        table = self.table()
        shown = table[table.index.isin(table["p_value"].nsmallest(display.MAX_ROWS).index)]
        rows = [
            display.Row(str(label), tuple("" if np.isnan(v) else float(v) for v in values))
            for label, values in zip(shown.index, shown.to_numpy(), strict=True)
        ]
        if len(table) > len(shown):
            rows.append(display.Row(f"... and {len(table) - len(shown)} more, of larger p-values", ()))
        return ("p-value", "adjusted", "mean z", "sd z", "contraction"), rows


def deviation(ranks: Int[np.ndarray, " n"], num_draws: int) -> str:
    """Describe in words how ranks differ from uniform."""
    u = (ranks + 0.5) / (num_draws + 1)
    # Both are standard normal for uniform ranks, which have mean 1/2 and variance 1/12 with these variances.
    shift = (u.mean() - 0.5) / np.sqrt(1 / (12 * u.size))
    spread = (np.mean((u - 0.5) ** 2) - 1 / 12) / np.sqrt(1 / (180 * u.size))
    if max(abs(shift), abs(spread)) < 2.0:
        return UNEVEN
    if abs(shift) > abs(spread):
        return "the posterior lies too low" if shift > 0 else "the posterior lies too high"
    return "the posterior is too narrow" if spread > 0 else "the posterior is too wide"


def p_values_of(ranks: Mapping[str, Int[np.ndarray, "n ..."]], num_draws: int) -> dict[str, np.ndarray]:
    """Return the p-value of every scalar component."""
    found = {}
    for name, values in ranks.items():
        columns = values.reshape(len(values), -1).T
        found[name] = np.array([rank_p_value(column, num_draws) for column in columns]).reshape(values.shape[1:])
    return found
