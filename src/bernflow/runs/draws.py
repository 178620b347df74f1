"""Named draws as tables: the layout of CmdStan's CSV files, and a summary in its names."""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from bernflow.diagnostics.summaries import summarize
from bernflow.errors import ArgumentError
from bernflow.models.stan.model import LOG_LIKELIHOOD
from bernflow.posterior import Posterior
from bernflow.posterior.drawing import KEY
from bernflow.posterior.export import export
from bernflow.posterior.tables import Axes
from bernflow.posterior.weighting import Weighted
from bernflow.precision import use_precision

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

# Columns that describe a draw, named as by CmdStan's Pathfinder: log densities on R^p of the fit and of the model.
STATS = {"lp_approx__": "log_q", "lp__": "lp"}
QUANTILES = (0.025, 0.05, 0.25, 0.5, 0.75, 0.95, 0.975)
# A pointwise log likelihood of more numbers than this is left out.
MAX_LOG_LIKELIHOOD = 50_000_000


def take_draws(posterior: Posterior, num: int, weighted: Weighted) -> tuple["xr.DataTree", list[str]]:
    """Draw, with the default key; return the draws for ArviZ and notes on what could not be had."""
    notes = []
    with use_precision(posterior.precision):
        observed = {} if posterior.model is None else posterior.model.observed()
    num_terms = num * sum(np.size(value) for value in observed.values())
    small = num_terms <= MAX_LOG_LIKELIHOOD
    if not small:
        notes.append(f"The pointwise log likelihood ({num_terms:,} numbers) was left out of the draws.")
    try:
        tree = export(posterior, num, KEY, weighted, small)
    except ArgumentError as error:
        if weighted is False:
            raise
        # A fit is not lost because its draws cannot be weighted; its verdict is poor anyway.
        notes.append(f"The draws are not resampled: {error}")
        tree = export(posterior, num, KEY, False, small)
    found = posterior.diagnostics
    tree.attrs |= {"verdict": found.verdict, "status": found.status, "khat": found.khat}
    return tree, notes


def named_draws(tree: "xr.DataTree") -> dict[str, np.ndarray]:
    """Return the draws, (num, *shape) each, by names that a CSV file of CmdStan can hold."""
    draws: dict[str, np.ndarray] = {}
    for name, values in _variables(tree):
        plain = plain_name(name)
        while plain in draws or plain in STATS:
            plain += "_"
        draws[plain] = np.asarray(values)[0]
    return draws


def _variables(tree: "xr.DataTree") -> Iterator[tuple[str, Any]]:
    """Yield parameters and derived quantities; those of Stan programs may lie in the groups of predictions."""
    for group in ("posterior", "posterior_predictive"):
        if group in tree.children:
            yield from ((str(name), values) for name, values in tree[group].data_vars.items())
    if "log_likelihood" in tree.children and LOG_LIKELIHOOD in tree["log_likelihood"].data_vars:
        yield LOG_LIKELIHOOD, tree["log_likelihood"][LOG_LIKELIHOOD]


def row_labels(tree: "xr.DataTree", axes: Axes) -> list[str]:
    """Return what the model calls the rows of `tabulate`, by coordinates where it has them, as in `slope[park]`."""
    return [label for name, values in _variables(tree) for _, label in axes.labels(name, np.shape(values)[2:])]


def plain_name(name: str) -> str:
    """Return a name with underscores for letters that CmdStan's may not have; `name:1` is its slot of a tuple."""
    return re.sub(r"[^A-Za-z0-9_:]|:(?!\d)", "_", name)


def write_csv(file: BinaryIO, tree: "xr.DataTree", settings: Mapping[str, Any]) -> None:
    """Write draws as CmdStan writes those of Pathfinder.

    Its format for draws of an approximation has one row per draw and no other, unlike that of ADVI, whose first row is
    a mean, which a reader that does not know takes for a draw. Numbers keep all their digits.

    Args:
        file: a binary stream.
        tree: draws as `Posterior.to_arviz` returns them.
        settings: what the comments before the header say, by name; nested ones are indented.
    """
    import pandas as pd

    stats = tree["sample_stats"]
    table = {name: np.asarray(stats[key])[0] for name, key in STATS.items() if key in stats}
    for name, values in named_draws(tree).items():
        # The first index runs fastest, as in CmdStan.
        flat = values.transpose(0, *range(values.ndim - 1, 0, -1)).reshape(len(values), -1)
        labels = [".".join([name, *(str(i + 1) for i in index[::-1])]) for index in np.ndindex(values.shape[:0:-1])]
        table |= dict(zip(labels, flat.T, strict=True))
    file.write("".join(f"# {line}\n" for line in _comments(settings)).encode())
    pd.DataFrame(table).to_csv(file, index=False, na_rep="nan", lineterminator="\n", mode="wb", encoding="utf-8")


def _comments(settings: Mapping[str, Any], indent: str = "") -> Iterator[str]:
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield f"{indent}{name}"
            yield from _comments(value, f"{indent}  ")
        elif value is None:
            yield f"{indent}{name}"
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            yield f"{indent}{name} = {' '.join(text.split())}"


def tabulate(tree: "xr.DataTree") -> "pd.DataFrame":
    """Tabulate mean, sd and quantiles of every scalar component, unrounded; indices count from 1, as in Stan."""
    import pandas as pd

    rows = {}
    for name, values in named_draws(tree).items():
        for index in np.ndindex(values.shape[1:]):
            label = name + (f"[{','.join(str(i + 1) for i in index)}]" if index else "")
            rows[label] = summarize(values[(slice(None), *index)], QUANTILES)
    columns = ["mean", "sd", *(f"{100 * q:g}%" for q in QUANTILES)]
    return pd.DataFrame.from_dict(rows, orient="index", columns=columns).rename_axis("name")
