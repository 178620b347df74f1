"""Leave-one-out cross-validation by Pareto-smoothed importance sampling (PSIS-LOO), with ArviZ."""

import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bernflow.errors import ArgumentError
from bernflow.filters import local_filters

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

# Above this k-hat the leave-one-out estimate of a data point is unreliable.
MAX_KHAT = 0.7


def leave_one_out(
    tree: "xr.DataTree", var_name: str | None = None, independent: bool = True, has_model: bool = True
) -> Any:
    """Return the `ELPDData` of ArviZ, with one value per data point.

    Args:
        tree: draws with their pointwise log likelihood.
        var_name: the observed variable, if there are several.
        independent: the draws are independent draws of a fit, not Markov chains.
        has_model: the model is known, so that a missing log likelihood is missing in the model.
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
            "loo() needs the pointwise log likelihood, which this model does not provide: use a bf.Model, a NumPyro or "
            "PyMC model, or a Stan program with `log_lik` in its generated quantities."
        )
    if var_name is None and len(known) > 1:
        raise ArgumentError(f"loo() found several observed variables: choose one by var_name=, {' or '.join(known)}.")
    if var_name is not None and var_name not in known:
        raise ArgumentError(f"var_name={var_name!r}: expected one of {', '.join(map(repr, known))}.")
    with local_filters():
        # The result counts the data points with a large k-hat.
        warnings.simplefilter("ignore")
        reff = 1.0 if independent else None
        return arviz_stats.loo(tree, pointwise=True, var_name=var_name or known[0], reff=reff)


def rank(elpds: Mapping[str, Any]) -> "pd.DataFrame | None":
    """Return ArviZ's ranking of models by PSIS-LOO; None for fewer than two models."""
    import arviz_stats

    if len(elpds) < 2:
        return None
    with local_filters():
        # The estimates contain what ArviZ warns about.
        warnings.simplefilter("ignore")
        return arviz_stats.compare(dict(elpds))
