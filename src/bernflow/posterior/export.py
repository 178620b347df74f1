"""Named draws for ArviZ: a DataTree, and the table of its summary."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


def to_datatree(
    draws: dict[str, np.ndarray],
    stats: dict[str, np.ndarray] | None = None,
    log_likelihood: dict[str, np.ndarray] | None = None,
    observed: dict[str, np.ndarray] | None = None,
    constant: dict[str, np.ndarray] | None = None,
    predictive: dict[str, np.ndarray] | None = None,
    dims: Mapping[str, Any] | None = None,
    coords: Mapping[str, Any] | None = None,
    by_chain: bool = False,
) -> "xr.DataTree":
    """Arrange independent draws, (num, *shape) each, as one chain; empty groups are left out.

    Args:
        draws: draws of the parameters and derived quantities.
        stats: numbers per draw.
        log_likelihood: pointwise log likelihood per draw.
        observed: observed data.
        constant: other data.
        predictive: draws of new observations.
        dims: names of axes by variable; None for an axis without name.
        coords: labels along named axes.
        by_chain: the draws come from Markov chains, (chains, num, *shape) each.
    """
    from arviz_base import from_dict

    groups = {
        "posterior": draws,
        "posterior_predictive": predictive,
        "sample_stats": stats,
        "log_likelihood": log_likelihood,
    }
    data = {
        group: {_label(name): v if by_chain else v[None] for name, v in values.items()}
        for group, values in groups.items()
        if values
    }
    for group, values in {"observed_data": observed, "constant_data": constant}.items():
        if values:
            data[group] = {_label(name): v for name, v in values.items()}
    return from_dict(
        data,
        attrs={"/": {"inference_library": "bernflow"}},
        dims={_label(name): [axis and _label(axis) for axis in axes] for name, axes in (dims or {}).items()},
        coords={_label(axis): labels for axis, labels in (coords or {}).items()},
        # Draws number more than chains here by design, so the check for swapped axes has nothing to say.
        check_conventions=False,
    )


def _label(name: str) -> str:
    """Name a variable of a DataTree, where slashes separate groups; NumPyro's scopes have them."""
    return name.replace("/", ".")


def to_summary(draws: dict[str, np.ndarray], ci_prob: float) -> "pd.DataFrame":
    """Tabulate mean, sd and the equal-tailed interval of every scalar component."""
    from arviz_stats import summary

    return summary(to_datatree(draws), kind="stats", ci_kind="eti", ci_prob=ci_prob, round_to="none")
