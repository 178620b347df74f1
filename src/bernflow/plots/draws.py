"""Draws for figures: as many as are cheap, and only of the quantities that are shown."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from bernflow.plots.components import check_names
from bernflow.posterior import Posterior
from bernflow.posterior.drawing import derived_sizes, draw, num_available
from bernflow.posterior.weighting import AUTO, Weighted, is_weighted

# Draws of a flow are cheap; with fewer, densities would show Monte Carlo error. Weights and derived quantities need the
# model at every draw.
NUM_DRAWS, NUM_WITH_MODEL = 40_000, 10_000
# Limit of the number of values of all parameters, for memory.
MAX_VALUES, LEAST = 2e7, 4000


class FigureDraws(NamedTuple):
    """Draws by name, and whether they are importance-resampled."""

    theta: dict[str, np.ndarray]
    weighted: bool


def figure_draws(
    posterior: Posterior, var_names: Sequence[str], num: int | None, key: Any, weighted: Weighted = AUTO
) -> FigureDraws:
    """Draw all parameters, and those derived quantities that are chosen.

    Args:
        posterior: the posterior.
        var_names: names of quantities or of single components.
        num: number of draws; as many as are cheap if None.
        key: integer seed or `jax.random.key`.
        weighted: as in `Posterior.draws`.
    """
    sizes = derived_sizes(posterior)
    check_names(var_names, [*posterior.names, *sizes])
    derived = tuple(name for name in sizes if any(is_part(str(chosen), name) for chosen in var_names))
    use = is_weighted(posterior, weighted)
    if num is None:
        wanted = NUM_WITH_MODEL if use or derived else NUM_DRAWS
        fitting = int(MAX_VALUES / (posterior.layout.dim + sum(sizes[name] for name in derived)))
        num = num_available(posterior, min(wanted, max(fitting, LEAST)), bool(derived))
    return FigureDraws(draw(posterior, num, key, use, derived).theta, use)


def scalar_names(posterior: Posterior) -> list[str]:
    """Return the names of all parameters and of the scalar derived quantities."""
    return [*posterior.names, *(name for name, size in derived_sizes(posterior).items() if size == 1)]


def is_part(chosen: str, name: str) -> bool:
    """Tell whether a string names a quantity or one of its components."""
    return chosen == name or (chosen.startswith(f"{name}[") and chosen.endswith("]"))
