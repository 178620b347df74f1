"""The methods that are compared, one module per library."""

from benchmarks.accuracy.methods import (
    blackjax_pathfinder,
    flowjax_spline,
    numpyro_guides,
    numpyro_nuts,
    our_start,
    ours,
    pymc_advi,
)
from benchmarks.accuracy.methods.base import Drawn, Fitted, Method, RefusedError

_MODULES = (ours, our_start, numpyro_guides, flowjax_spline, blackjax_pathfinder, pymc_advi, numpyro_nuts)

METHODS: dict[str, Method] = {method.name: method for module in _MODULES for method in module.METHODS}

__all__ = ["METHODS", "Drawn", "Fitted", "Method", "RefusedError"]
