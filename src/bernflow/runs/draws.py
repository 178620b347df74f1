"""Named draws as tables: CSV files in CmdStan's layout, and a summary."""

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

# Columns of statistics, with the names of CmdStan's Pathfinder: log densities of fit and model on R^p.
STAT_COLUMNS = {"lp_approx__": "log_q", "lp__": "lp"}
QUANTILES = (0.025, 0.05, 0.25, 0.5, 0.75, 0.95, 0.975)
# A pointwise log likelihood with more values than this is omitted.
MAX_LOG_LIKELIHOOD = 50_000_000


def take_draws(posterior: Posterior, num: int, weighted: Weighted) -> tuple["xr.DataTree", list[str]]:
    """Draw with the default key; return the draws for ArviZ and notes on omitted content."""
    notes = []
    with use_precision(posterior.precision):
        observed = {} if posterior.model is None else posterior.model.observed()
    num_terms = num * sum(np.size(value) for value in observed.values())
    small = num_terms <= MAX_LOG_LIKELIHOOD
    if not small:
        notes.append(f"The pointwise log likelihood ({num_terms:,} numbers) was omitted from the draws.")
    try:
        tree = export(posterior, num, KEY, weighted, small)
    except ArgumentError as error:
        if weighted is False:
            raise
        # Save the fit even if its draws cannot be weighted; its verdict is poor anyway.
        notes.append(f"The draws are not resampled: {error}")
        tree = export(posterior, num, KEY, False, small)
    found = posterior.diagnostics
    tree.attrs |= {"verdict": found.verdict, "status": found.status, "khat": found.khat}
    return tree, notes


def named_draws(tree: "xr.DataTree") -> dict[str, np.ndarray]:
    """Return the draws, (num, *shape) each, by names that are valid in CmdStan's CSV files."""
    draws: dict[str, np.ndarray] = {}
    for name, values in variables(tree):
        plain = plain_name(name)
        while plain in draws or plain in STAT_COLUMNS:
            plain += "_"
        draws[plain] = np.asarray(values)[0]
    return draws


def variables(tree: "xr.DataTree") -> Iterator[tuple[str, Any]]:
    """Yield parameters and derived quantities; those of Stan programs may be in the groups of predictions."""
    for group in ("posterior", "posterior_predictive"):
        if group in tree.children:
            yield from ((str(name), values) for name, values in tree[group].data_vars.items())
    if "log_likelihood" in tree.children and LOG_LIKELIHOOD in tree["log_likelihood"].data_vars:
        yield LOG_LIKELIHOOD, tree["log_likelihood"][LOG_LIKELIHOOD]


def row_labels(tree: "xr.DataTree", axes: Axes) -> list[str]:
    """Return the model's labels of the rows of `tabulate`, with its coordinates if it has any, as in `slope[park]`."""
    return [label for name, values in variables(tree) for _, label in axes.labels(name, np.shape(values)[2:])]


def plain_name(name: str) -> str:
    """Replace characters that are invalid in CmdStan's names by underscores; `name:1` is a slot of a tuple."""
    return re.sub(r"[^A-Za-z0-9_:]|:(?!\d)", "_", name)


def write_csv(file: BinaryIO, tree: "xr.DataTree", settings: Mapping[str, Any]) -> None:
    """Write draws in the format of CmdStan's Pathfinder.

    This format has exactly one row per draw, unlike that of ADVI, whose first row is the mean. Numbers are exact.

    Args:
        file: a binary stream.
        tree: draws in the format of `Posterior.to_arviz`.
        settings: the comments before the header, by name; nested ones are indented.
    """
    import pandas as pd

    stats = tree["sample_stats"]
    table = {name: np.asarray(stats[key])[0] for name, key in STAT_COLUMNS.items() if key in stats}
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
