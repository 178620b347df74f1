"""The result of a comparison: tables, a status sentence, and a figure."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bernflow.compare.entries import Component, Entry
from bernflow.compare.measure import Joint, Marginal
from bernflow.diagnostics.agreement import Agreement
from bernflow.diagnostics.chains import ChainDiagnostics
from bernflow.diagnostics.findings import Diagnostics
from bernflow.posterior import display
from bernflow.posterior.loo import MAX_KHAT

if TYPE_CHECKING:
    import pandas as pd

MAX_NAMED = 4


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """A comparison of posteriors with a reference.

    Attributes:
        reference: the name of the reference entry.
        entries: draws and diagnostics by name.
        components: the scalar components that were compared.
        agreements: differences of means and sds from the reference, with their Monte Carlo errors, by entry.
        marginals: Kolmogorov-Smirnov and Wasserstein-1 distances, by entry, in the order of `components`.
        joints: sliced Wasserstein distance and its noise floor, by entry.
        elpds: leave-one-out estimates of ArviZ, by entry with a log likelihood.
        loo: ArviZ's ranking, or None.

    Example:
        >>> exact = np.random.default_rng(0).normal(0.525, 0.5, size=4000)  # the posterior of mu is N(2.1 / 4, 1 / 4)
        >>> found = bf.compare({"exact": {"mu": exact}, "flow": post})
        >>> found.agrees
        {'flow': True}
        >>> found.table().index.tolist()
        [('flow', 'mu')]
    """

    reference: str
    entries: Mapping[str, Entry]
    components: Sequence[Component]
    agreements: Mapping[str, Agreement]
    marginals: Mapping[str, Sequence[Marginal]]
    joints: Mapping[str, Joint]
    elpds: Mapping[str, Any]
    loo: "pd.DataFrame | None"

    @property
    def agrees(self) -> dict[str, bool]:
        """Whether all means and sds agree with the reference, by entry."""
        return {name: found.agrees for name, found in self.agreements.items()}

    @property
    def status(self) -> str:
        """A sentence that states which entries agree with the reference, and where the others differ."""
        if not self.components:
            return "No parameters were compared, only evidence and predictive accuracy."
        parts = []
        for name, found in self.agreements.items():
            off = [c.name for c in found.columns if not c.agrees]
            more = f" and {len(off) - MAX_NAMED} more" if len(off) > MAX_NAMED else ""
            parts.append(f"{name} differs in {', '.join(off[:MAX_NAMED])}{more}" if off else f"{name} agrees")
        word = "Agree" if all(self.agrees.values()) else "Differ"
        rule = next(iter(self.agreements.values()))
        allowed = f"{rule.num_errors:g} standard errors" + (f" + {rule.tolerance:g} sd" if rule.tolerance else "")
        return f"{word} (means and sds within {allowed} of {self.reference}): {'; '.join(parts)}."

    def table(self) -> "pd.DataFrame":
        """Tabulate every component of every entry except the reference.

        Returns:
            One row per (entry, component), in units of the reference's sd: `mean_diff` and `sd_diff` with their
            standard errors `mean_se` and `sd_se`, `agrees`, `ks` with `ks_limit` (exceeded by chance with probability
            1/10,000) and `wasserstein`.
        """
        import pandas as pd

        rows, index = [], []
        for name, found in self.agreements.items():
            for column, marginal in zip(found.columns, self.marginals[name], strict=True):
                index.append((name, column.name))
                rows.append(
                    {
                        "mean_diff": column.mean_error,
                        "mean_se": column.mean_se,
                        "sd_diff": column.sd_error,
                        "sd_se": column.sd_se,
                        "agrees": column.agrees,
                        **marginal._asdict(),
                    }
                )
        columns = ["mean_diff", "mean_se", "sd_diff", "sd_se", "agrees", *Marginal._fields]
        labels = pd.MultiIndex.from_tuples(index, names=["entry", "component"]) if index else None
        return pd.DataFrame(rows, index=labels, columns=columns)

    def overview(self) -> "pd.DataFrame":
        """Tabulate the entries: verdict, evidence, distance to the reference and predictive accuracy.

        Returns:
            One row per entry: `verdict`, `khat` or `rhat`, `elbo` and `log_evidence` with standard errors, `mean_diff`
            and `sd_diff` (the largest over components, in units of the reference's sd), `sliced_wasserstein` with its
            `floor`, `elpd_loo` with its standard error, and the number of data points with unreliable estimates
            `num_bad_k`. Unknown values are NaN.
        """
        import pandas as pd

        return pd.DataFrame([self._row(entry) for entry in self.entries.values()], index=list(self.entries))

    def _row(self, entry: Entry) -> dict[str, Any]:
        d, name = entry.diagnostics, entry.name
        fit = d if isinstance(d, Diagnostics) else None
        nan = float("nan")
        found, joint, elpd = self.agreements.get(name), self.joints.get(name), self.elpds.get(name)
        return {
            "verdict": "" if d is None else d.verdict,
            "khat": fit.khat if fit else nan,
            "rhat": d.rhat if isinstance(d, ChainDiagnostics) else nan,
            "elbo": fit.elbo if fit else nan,
            "elbo_se": fit.elbo_se if fit else nan,
            "log_evidence": fit.log_evidence if fit else nan,
            "log_evidence_se": fit.log_evidence_se if fit else nan,
            "mean_diff": found.worst_mean.mean_error if found else nan,
            "sd_diff": found.worst_sd.sd_error if found else nan,
            "sliced_wasserstein": joint.distance if joint else nan,
            "floor": joint.floor if joint else nan,
            "elpd_loo": float(elpd.elpd) if elpd is not None else nan,
            "elpd_loo_se": float(elpd.se) if elpd is not None else nan,
            "num_bad_k": int(np.sum(np.asarray(elpd.pareto_k) > MAX_KHAT)) if elpd is not None else nan,
        }

    def plot(self, **kwargs: Any) -> Any:
        """Plot the intervals of all entries side by side.

        Args:
            **kwargs: arguments of `bernflow.plots.plot_comparison`.

        Returns:
            The figure.
        """
        from bernflow.plots import plot_comparison

        return plot_comparison(self, **kwargs)

    def __repr__(self) -> str:
        return display.plain(f"Comparison ({self._describe()})", self.status, self._figures(), *self._rows())

    def _repr_html_(self) -> str:
        word = self.status.split(" ", 1)[0]
        verdict = "poor" if word == "Differ" else "good"
        what = ("Comparison", self._describe())
        return display.card(what, verdict, self.status, self._figures(), *self._rows(), word=word)

    def _describe(self) -> str:
        num = len(self.components)
        return f"{len(self.entries)} posteriors, {num} component{'s' if num != 1 else ''}, reference {self.reference}"

    def _figures(self) -> list[tuple[str, str]]:
        figures = [("differences in units of", f"the sd of {self.reference}")] if self.components else []
        if self.loo is not None:
            figures.append(("highest elpd by LOO", str(self.loo.index[0])))
        return figures

    def _rows(self) -> tuple[list[str], list[display.Row]]:
        """Return the columns that have values, and one row per entry."""
        shown = {
            "verdict": "verdict",
            "khat": "k-hat",
            "rhat": "R-hat",
            "log_evidence": "log evidence",
            "mean_diff": "mean diff",
            "sd_diff": "sd diff",
            "sliced_wasserstein": "sliced W",
            "floor": "its floor",
            "elpd_loo": "elpd LOO",
            "elpd_loo_se": "its se",
        }
        table = self.overview()
        columns = [name for name in shown if not all(v == "" or v != v for v in table[name])]
        rows = [
            display.Row(str(name), tuple("" if v != v else v if isinstance(v, str) else float(v) for v in row))
            for name, row in zip(table.index, table[columns].itertuples(index=False), strict=True)
        ]
        return [shown[name] for name in columns], rows
