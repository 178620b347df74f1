"""What a method is, and what it returns: a sampler, its cost and its own verdict."""

import functools
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from benchmarks.targets import Benchmark
from bernflow import BernflowError

Settings = Mapping[str, Any]
# What a table says of a training that ended in nothing.
DIVERGED = "training gave NaN"


class RefusedError(BernflowError):
    """The method does not fit such a model, or its training ended in nothing; the message is what the table says."""


@dataclass(frozen=True)
class Drawn:
    """Fresh draws of a fit.

    Attributes:
        sites: what a user of the method gets, on the constrained scale with derived quantities: {name: (num, *shape)},
            or (chains, draws, *shape) of Markov chains, however many were asked for.
        log_weights: log p(x, data) - log q(x) on R^p at draws x of q; None for a method without a density.
        num_effective: number of independent draws that `sites` are worth, where they repeat each other.
        chains: whether `sites` are Markov chains.
    """

    sites: dict[str, np.ndarray]
    log_weights: Float[np.ndarray, " num"] | None = None
    num_effective: float | None = None
    chains: bool = False


@dataclass(frozen=True)
class Fitted:
    """A fit.

    Attributes:
        draw: makes draws from a number and a seed.
        seconds: wall time of the fit, compilation included.
        gradients: evaluations of the gradient of the log density.
        verdict: "good", "usable" or "poor", where the method says so itself.
        details: what else is worth keeping, JSON-able.
    """

    draw: Callable[[int, int], Drawn]
    seconds: float
    gradients: int | None
    verdict: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """One way to approximate a posterior.

    Attributes:
        name: how the command line calls it.
        label: how tables call it.
        fit: does it, given a target, a seed and the settings.
        described: what was chosen, for the notes under the tables.
        settings: its defaults; with a number of `steps`, it can be given a budget of gradient evaluations.
        quick: what the quick tier chooses instead.
        needs: the package that must be installed, and the extra of bernflow that brings it.
        applies: whether the method has anything to do with a target.
        told: settings that come from the target.
    """

    name: str
    label: str
    fit: Callable[[Benchmark, int, Settings], Fitted]
    described: str
    settings: Settings = field(default_factory=dict)
    quick: Settings = field(default_factory=dict)
    needs: tuple[str, str] | None = None
    applies: Callable[[Benchmark], bool] = lambda benchmark: True
    told: Callable[[Benchmark], Settings] = lambda benchmark: {}

    @property
    def module(self) -> str:
        """The module whose function fits: what the figures of the method depend on."""
        function: Any = self.fit
        while isinstance(function, functools.partial):
            function = function.func
        return function.__module__

    def chosen(self, benchmark: Benchmark, quick: bool, budget: int | None = None) -> dict[str, Any] | None:
        """Return the settings of a fit, or None where a budget cannot be kept.

        Args:
            benchmark: the target.
            quick: whether this is the quick tier.
            budget: number of gradient evaluations, or None for the method's own defaults.
        """
        settings = {**self.settings, **(self.quick if quick else {}), **self.told(benchmark)}
        if budget is None:
            return settings
        if "steps" not in settings:
            return None
        return {**settings, "steps": max(1, budget // settings.get("num_particles", 1))}

    def missing(self) -> str | None:
        """Say what has to be installed, or None."""
        if self.needs is None or importlib.util.find_spec(self.needs[0]) is not None:
            return None
        return f"{self.needs[0]} is not installed: pip install 'bernflow[{self.needs[1]}]'"
