"""Named draws for ArviZ: a DataTree, and the table of its summary."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


def to_datatree(
    draws: dict[str, np.ndarray],
    stats: dict[str, np.ndarray] | None = None,
    log_likelihood: dict[str, np.ndarray] | None = None,
    observed: dict[str, np.ndarray] | None = None,
) -> "xr.DataTree":
    """Arrange independent draws, (num, *shape) each, as one chain; empty groups are left out."""
    from arviz_base import from_dict

    groups = {"posterior": draws, "sample_stats": stats, "log_likelihood": log_likelihood}
    data = {group: {name: v[None] for name, v in values.items()} for group, values in groups.items() if values}
    if observed:
        data["observed_data"] = observed
    # Draws number more than chains here by design, so the check for swapped axes has nothing to say.
    return from_dict(data, attrs={"/": {"inference_library": "bernflow"}}, check_conventions=False)


def to_summary(draws: dict[str, np.ndarray], ci_prob: float) -> "pd.DataFrame":
    """Tabulate mean, sd and the equal-tailed interval of every scalar component."""
    from arviz_stats import summary

    return summary(to_datatree(draws), kind="stats", ci_kind="eti", ci_prob=ci_prob, round_to="none")
