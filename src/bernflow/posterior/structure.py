"""The structure that a fit has found in a posterior, by the names of its parameters."""

from collections import Counter
from dataclasses import dataclass

from bernflow.flows.base import AbstractDistribution
from bernflow.flows.structured import StructuredBernsteinFlow
from bernflow.target import AbstractLayout

MAX_SHOWN = 8


@dataclass(frozen=True)
class NamedStructure:
    """Globals, and blocks of locals that are independent of one another given the globals.

    Attributes:
        globals: unconstrained dimensions that others depend on, such as `tau` or `L[0]`.
        blocks: the other dimensions, block by block.
        chained: whether every block also depends on the one before it, as in a random walk.

    Example:
        >>> NamedStructure(("mu", "tau"), (("a[0]",), ("a[1]",)), False)
        2 globals (mu, tau) and 2 blocks of 1 local each, independent given the globals
    """

    globals: tuple[str, ...]
    blocks: tuple[tuple[str, ...], ...]
    chained: bool

    def __repr__(self) -> str:
        shown = ", ".join(self.globals[:MAX_SHOWN]) + (", ..." if len(self.globals) > MAX_SHOWN else "")
        sizes = Counter(map(len, self.blocks))
        first = _count(len(self.globals), "global")
        if len(self.blocks) == 1:
            return f"{first} ({shown}) and one block of {_count(len(self.blocks[0]), 'local')}"
        if len(sizes) == 1:
            size = f"{_count(len(self.blocks[0]), 'local')} each"
        else:
            size = f"{min(sizes)} to {max(sizes)} locals"
        how = "each dependent on the one before it" if self.chained else "independent given the globals"
        return f"{first} ({shown}) and {len(self.blocks)} blocks of {size}, {how}"


def named_structure(distribution: AbstractDistribution, layout: AbstractLayout) -> NamedStructure | None:
    """Return the structure of a fitted distribution; None if all dimensions are globals."""
    if not isinstance(distribution, StructuredBernsteinFlow):
        return None
    labels, structure = layout.labels(), distribution.structure
    blocks = tuple(tuple(labels[i] for i in block) for block in structure.blocks)
    return NamedStructure(tuple(labels[i] for i in structure.leaders), blocks, structure.chained)


def _count(num: int, noun: str) -> str:
    return f"{num} {noun}{'' if num == 1 else 's'}"
