"""Draws as scalar columns, named as posteriordb names them."""

from collections.abc import Mapping

import numpy as np

from benchmarks.posteriordb.catalogue import column

Columns = dict[str, np.ndarray]


def to_columns(sites: Mapping[str, np.ndarray], lead: int = 1) -> Columns:
    """Split named draws into scalar columns, indices counted from 1.

    Args:
        sites: one array per name, (num, *shape) or (chains, draws, *shape).
        lead: number of axes before those of one draw.
    """
    return {
        column(name, index): np.asarray(values)[(..., *index)]
        for name, values in sites.items()
        for index in np.ndindex(np.shape(values)[lead:])
    }
