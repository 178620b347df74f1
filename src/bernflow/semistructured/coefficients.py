"""The coefficients of the table: their draws over all networks, and a table of them."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bernflow.diagnostics.summaries import summarize
from bernflow.keys import as_key
from bernflow.semistructured.design import INTERCEPT
from bernflow.semistructured.outcomes import RATIOS, site_names
from bernflow.semistructured.plan import Member

if TYPE_CHECKING:
    import pandas as pd


def coefficient_draws(
    members: Sequence[Member],
    columns: tuple[str, ...],
    num: int,
    key: Any,
) -> dict[tuple, np.ndarray]:
    """Return draws, `num` of every network, by (column,), or by (column, class)."""
    keys = jax.random.split(as_key(key), len(members))
    drawn = [m.posterior.draws(num, k, deterministic=False) for m, k in zip(members, keys, strict=True)]
    draws: dict[tuple, np.ndarray] = {}
    for column, site in zip(columns, site_names(columns), strict=True):
        values = np.concatenate([theta[site] for theta in drawn])
        if values.ndim == 1:
            draws[(column,)] = values
        else:
            draws |= {(column, k + 1): values[:, k] for k in range(values.shape[1])}
    return draws


def tabulate(draws: Mapping[tuple, np.ndarray], outcome: str) -> "pd.DataFrame":
    """Tabulate mean, sd and quantiles, and exp(beta) as odds ratio or rate ratio where the outcome has such."""
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
