"""The description of one model of the suite."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

REAL, SIMULATED = "real", "simulated"
GROUPS = (REAL, SIMULATED)


@dataclass(frozen=True)
class Sampling:
    """How the reference run of NUTS samples a model.

    Attributes:
        model: another parameterization of the same posterior, with the same arguments, whose sample or deterministic
            sites include all parameters of the model; None for the model itself.
        noncentered: normal sites that are sampled in non-centered form.
        target_accept: target acceptance probability.
        dense: whether the mass matrix is dense.
        collapsed: where `model` integrates some sites out, draws them given the others, {site: (num, *shape)}, and
            tells which of the joint draws lie in the support; its arguments are a NumPy generator, draws of the other
            sites and the arguments of the model.
    """

    model: Callable[..., None] | None = None
    noncentered: tuple[str, ...] = ()
    target_accept: float = 0.9
    dense: bool = False
    collapsed: Callable[..., Any] | None = None


@dataclass(frozen=True)
class Entry:
    """One model of the suite.

    Attributes:
        name: how the command line calls it.
        group: "real" or "simulated" data.
        dim: number of unconstrained dimensions p.
        model: a NumPyro model function.
        load: returns the arguments of the model; nothing is read or simulated before it is called.
        sampling: how the reference is sampled.

    Example:
        >>> from benchmarks.models.catalogue import catalogue
        >>> catalogue()["poisson-lkj"].dim
        125
    """

    name: str
    group: str
    dim: int
    model: Callable[..., None]
    load: Callable[[], tuple[Any, ...]]
    sampling: Sampling = field(default_factory=Sampling)

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments of the model: data and known constants."""
        return self.load()
