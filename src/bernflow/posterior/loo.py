"""Leave-one-out cross-validation by Pareto-smoothed importance sampling, of ArviZ."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bernflow.errors import ArgumentError
from bernflow.filters import local_filters

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

# A k-hat of leave-one-out above this says that the data point has too much influence for its estimate to be trusted.
MAX_KHAT = 0.7


def leave_one_out(
    tree: "xr.DataTree", var_name: str | None = None, independent: bool = True, has_model: bool = True
) -> Any:
    """Return the `ELPDData` of ArviZ, with one value per data point.

    Args:
        tree: draws with their pointwise log likelihood.
        var_name: the observed variable, where there are several.
        independent: the draws are those of a fit, which are independent, and not of chains.
        has_model: the model is known, so that it is the model that lacks a log likelihood where there is none.
    """
    import arviz_stats

    known = list(tree["log_likelihood"].data_vars) if "log_likelihood" in tree.children else []
    if not known and not has_model:
        raise ArgumentError(
            "loo() needs the pointwise log likelihood, which is not in the file: pass the model to bf.load(path, "
            "model=...)."
        )
    if not known:
        raise ArgumentError(
            "loo() needs the pointwise log likelihood, which this model does not have: write it as a bf.Model or a "
            "NumPyro or PyMC model, or add `log_lik` to the generated quantities of a Stan program."
        )
    if var_name is None and len(known) > 1:
        raise ArgumentError(f"loo() found several observed variables: choose one by var_name=, {' or '.join(known)}.")
    if var_name is not None and var_name not in known:
        raise ArgumentError(f"var_name={var_name!r}: expected one of {', '.join(map(repr, known))}.")
    with local_filters():
        # The data points with a large k-hat are counted in what is returned.
        warnings.simplefilter("ignore")
        reff = 1.0 if independent else None
        return arviz_stats.loo(tree, pointwise=True, var_name=var_name or known[0], reff=reff)


def rank(elpds: Mapping[str, Any]) -> "pd.DataFrame | None":
    """Return ArviZ's table that ranks models by leave-one-out; None where there are fewer than two."""
    import arviz_stats

    if len(elpds) < 2:
        return None
    with local_filters():
        # What ArviZ warns of is in the estimates.
        warnings.simplefilter("ignore")
        return arviz_stats.compare(dict(elpds))
