"""Means and standard deviations of every parameter, on the unconstrained and on the constrained scale.

Errors are measured on the unconstrained scale, as NumPyro maps parameters there: a positive parameter by its logarithm,
which has moments where the parameter itself has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from numpyro.distributions.transforms import biject_to

from benchmarks.accuracy.columns import Columns, to_columns
from benchmarks.models.entry import Entry
from bernflow.diagnostics.chains import Convergence, convergence
from bernflow.models import as_model

# Quantities whose effective numbers of draws are computed at once.
AT_ONCE = 100


@dataclass(frozen=True)
class Moments:
    """Moments of d scalar quantities.

    Attributes:
        names: the quantities, such as `alpha[1]`.
        mean: posterior means, (d,).
        sd: posterior standard deviations, (d,).
    """

    names: tuple[str, ...]
    mean: Float[np.ndarray, " d"]
    sd: Float[np.ndarray, " d"]


def unconstrain(entry: Entry, draws: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Map draws of the parameters of a model to the unconstrained scale; other quantities are dropped.

    Args:
        entry: the model.
        draws: arrays with leading axes of draws per site.
    """
    with jax.enable_x64(True):
        sites = as_model(entry.model, entry.args, {}).sites
        return {
            site.name: np.asarray(biject_to(site.support).inv(np.asarray(draws[site.name], np.float64)))
            for site in sites
        }


def moments(values: Mapping[str, np.ndarray], lead: int) -> Moments:
    """Return the moments of named draws with `lead` leading axes; constants are dropped."""
    columns = _varying(values, lead)
    mean = np.array([np.mean(column) for column in columns.values()])
    return Moments(tuple(columns), mean, np.array([np.std(column) for column in columns.values()]))


def convergence_of(values: Mapping[str, np.ndarray]) -> Convergence:
    """Return R-hat and effective numbers of draws of chains, (chains, draws, *shape) per name, without constants."""
    columns = list(_varying(values, lead=2).values())
    parts = [convergence(np.stack(columns[i : i + AT_ONCE])) for i in range(0, len(columns), AT_ONCE)]
    return Convergence(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("rhat", "ess_bulk", "ess_tail"))
    )


def _varying(values: Mapping[str, np.ndarray], lead: int) -> Columns:
    """Split draws into scalar columns without constants, such as the first entry of a factor of a correlation."""
    return {name: column for name, column in to_columns(values, lead).items() if np.ptp(column) > 0.0}


def errors(found: Moments, reference: Moments) -> dict[str, Any]:
    """Compare moments with those of the reference.

    Returns:
        The largest error and the 95 % quantile of the errors of the means, in posterior standard deviations, and of the
        standard deviations, relative, with the names of the worst parameters.
    """
    order = {name: i for i, name in enumerate(found.names)}
    index = [order[name] for name in reference.names]
    mean = (found.mean[index] - reference.mean) / reference.sd
    sd = found.sd[index] / reference.sd - 1.0
    result: dict[str, Any] = {}
    for name, error in (("mean_error", mean), ("sd_error", sd)):
        worst = int(np.argmax(np.abs(error)))
        result |= {
            f"{name}_largest": float(error[worst]),
            f"{name}_q95": float(np.quantile(np.abs(error), 0.95)),
            f"{name}_worst": reference.names[worst],
        }
    return result
