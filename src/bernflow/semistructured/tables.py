"""The effects as a table."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bernflow.diagnostics.summaries import summarize
from bernflow.semistructured.design import INTERCEPT, Design
from bernflow.semistructured.outcomes import RATIOS, describe_prior, site_names

if TYPE_CHECKING:
    import pandas as pd


def by_coefficient(drawn: Mapping[str, np.ndarray], design: Design) -> dict[tuple, np.ndarray]:
    """Return draws (num,) by (column,), or by (column, class)."""
    names = list(zip(design.names, site_names(design.names), strict=True))
    if design.has_intercept:
        names.insert(0, (INTERCEPT, INTERCEPT))
    draws: dict[tuple, np.ndarray] = {}
    for column, site in names:
        values = drawn[site]
        if values.ndim == 1:
            draws[(column,)] = values
        else:
            draws |= {(column, k + 1): values[:, k] for k in range(values.shape[1])}
    return draws


def tabulate(draws: Mapping[tuple, np.ndarray], outcome: str) -> "pd.DataFrame":
    """Tabulate mean, sd and quantiles, and exp(beta) as odds ratio or rate ratio if that applies to the outcome."""
    import pandas as pd

    rows = {}
    for name, values in draws.items():
        mean, sd, low, median, high = summarize(values, (0.05, 0.5, 0.95))
        row = {"mean": mean, "sd": sd, "5%": low, "50%": median, "95%": high}
        if outcome in RATIOS:
            ratio, is_ratio = RATIOS[outcome], name[0] != INTERCEPT
            for label, value in ((ratio, median), (f"{ratio}_5%", low), (f"{ratio}_95%", high)):
                row[label] = np.exp(value) if is_ratio else np.nan
        rows[name] = row
    frame = pd.DataFrame.from_dict({i: row for i, row in enumerate(rows.values())}, orient="index")
    if outcome == "categorical":
        frame.index = pd.MultiIndex.from_tuples(list(rows), names=["column", "class"])
    else:
        frame.index = pd.Index([name for name, *_ in rows], name="column")
    return frame


def describe_priors(design: Design, priors: Mapping[str, Any], unit: float) -> dict[str, dict[str, str]]:
    """Describe the priors in the user's units, and per standard deviation of the column (and of a Gaussian outcome)."""
    scales = dict(zip(site_names(design.names), design.scale, strict=True))
    names = dict(zip(site_names(design.names), design.names, strict=True))
    rows = {}
    for site, prior in priors.items():
        base = getattr(prior, "base_dist", prior)
        factor = scales.get(site, 1.0) / unit
        is_normal = type(base).__name__ == "Normal" and site in scales
        inside = f"Normal({np.max(base.loc) * factor:.4g}, {np.max(base.scale) * factor:.4g})" if is_normal else ""
        rows[names.get(site, site)] = {"prior": describe_prior(prior), "standardized": inside}
    return rows
