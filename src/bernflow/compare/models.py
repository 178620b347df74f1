"""`compare_models`: compare models of the same data by predictive accuracy and evidence."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from bernflow.compare.entries import Entry, as_entry
from bernflow.diagnostics.findings import Diagnostics
from bernflow.errors import ArgumentError
from bernflow.posterior.arguments import check_count
from bernflow.posterior.drawing import KEY
from bernflow.posterior.loo import MAX_KHAT, leave_one_out, rank
from bernflow.posterior.weighting import AUTO, Weighted

if TYPE_CHECKING:
    import pandas as pd

NAN = float("nan")


def compare_models(
    models: Mapping[str, Any],
    *,
    var_name: str | None = None,
    num: int = 4000,
    key: Any = KEY,
    weighted: Weighted = AUTO,
) -> "pd.DataFrame":
    """Compare models of the same data by leave-one-out cross-validation and by their evidence.

    Leave-one-out (PSIS-LOO) measures how well new data are predicted, the evidence the prior probability of the data.
    The evidence depends on the width of the priors, even if the posterior hardly does. `bf.compare` compares posteriors
    of the same parameters instead.

    Args:
        models: posteriors of `bernflow.fit`, runs of `Posterior.to_nuts`, or ArviZ results with a pointwise log
            likelihood; at least two, by names of your choice.
        var_name: the observed variable, if there are several.
        num: number of draws of every fit.
        key: integer seed or `jax.random.key` of the draws of fits; by default those of `Posterior.loo`.
        weighted: see `Posterior.draws`.

    Returns:
        One row per model, the best first: `elpd_loo` with its standard error `se`, the effective number of parameters
        `p_loo`, the difference to the best `elpd_diff` with its standard error `dse`, the stacking `weight`, the number
        of data points with unreliable estimates `num_bad_k`; `log_evidence` with its standard error `log_evidence_se`,
        the log Bayes factor against the model with the highest evidence `log_bf`; and the `verdict` on the fit. Unknown
        values are NaN.

    Example:
        >>> import numpyro.distributions as dist
        >>> wide = bf.Model(
        ...     prior={"mu": dist.Normal(0, 10)}, likelihood=lambda theta: dist.Normal(theta["mu"], 1), y=y
        ... )
        >>> found = bf.compare_models({"narrow": post, "wide": bf.fit(wide, progress=False)})
        >>> bool(found.loc["narrow", "log_evidence"] > found.loc["wide", "log_evidence"])
        True
    """
    if not isinstance(models, Mapping) or len(models) < 2:
        given = f"{len(models)} of them" if isinstance(models, Mapping) else f"a {type(models).__name__}"
        raise ArgumentError(
            'compare_models expects at least two models by name, as in {"pooled": post, "groups": other}; '
            f"got {given}."
        )
    check_count(num)
    entries = [as_entry(str(name), value, num, key, weighted) for name, value in models.items()]
    return _table(entries, {e.name: found for e in entries if (found := _loo(e, var_name)) is not None})


def _loo(entry: Entry, var_name: str | None) -> Any:
    """Return the estimate of a model; None if its log likelihood is unknown."""
    tree = None if entry.tree is None else entry.tree()
    if tree is None or "log_likelihood" not in tree.children:
        return None
    return leave_one_out(tree, var_name, entry.independent)


def _table(entries: list[Entry], elpds: dict[str, Any]) -> "pd.DataFrame":
    import pandas as pd

    ranked = _ranking(elpds)
    rows = {entry.name: _row(entry, elpds.get(entry.name), ranked) for entry in entries}
    table = pd.DataFrame.from_dict(rows, orient="index")
    best = table["log_evidence"].max()
    table.insert(table.columns.get_loc("log_evidence_se") + 1, "log_bf", table["log_evidence"] - best)
    by = "elpd_loo" if ranked is not None else "log_evidence"
    return table.sort_values(by, ascending=False, na_position="last")


def _ranking(elpds: dict[str, Any]) -> "pd.DataFrame | None":
    """Return ArviZ's ranking; None if fewer than two models can be ranked."""
    counts = {name: int(elpd.n_data_points) for name, elpd in elpds.items()}
    if len(set(counts.values())) > 1:
        shown = ", ".join(f"{name}: {count}" for name, count in counts.items())
        raise ArgumentError(
            f"compare_models: the models have different numbers of data points ({shown}): expected one."
        )
    return rank(elpds)


def _row(entry: Entry, elpd: Any, ranked: "pd.DataFrame | None") -> dict[str, Any]:
    d = entry.diagnostics
    fit = d if isinstance(d, Diagnostics) else None
    place = None if ranked is None or entry.name not in ranked.index else ranked.loc[entry.name]
    return {
        "elpd_loo": NAN if elpd is None else float(elpd.elpd),
        "se": NAN if elpd is None else float(elpd.se),
        "p_loo": NAN if elpd is None else float(elpd.p),
        "elpd_diff": NAN if place is None else float(place["elpd_diff"]),
        "dse": NAN if place is None else float(place["dse"]),
        "weight": NAN if place is None else float(place["weight"]),
        "num_bad_k": NAN if elpd is None else int(np.sum(np.asarray(elpd.pareto_k) > MAX_KHAT)),
        "log_evidence": fit.log_evidence if fit else NAN,
        "log_evidence_se": fit.log_evidence_se if fit else NAN,
        "verdict": "" if d is None else d.verdict,
    }
