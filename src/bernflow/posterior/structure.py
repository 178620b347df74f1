"""The dependence structure of a posterior, by the names of its parameters."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from bernflow.flows.base import AbstractDistribution
from bernflow.flows.structure import Structure
from bernflow.flows.structured import StructuredBernsteinFlow
from bernflow.posterior.tables import Axes
from bernflow.target import AbstractLayout
from bernflow.text import printable

MAX_SHOWN = 8


class Group(NamedTuple):
    """A description of globals or blocks: kind, number, names and dependence."""

    what: str
    how_many: str
    names: str
    dependence: str


@dataclass(frozen=True)
class NamedStructure:
    """Globals, and blocks of locals that are independent of one another given the globals.

    Attributes:
        globals: dimensions on which others depend, such as `tau` or `L[0]`; all of them if there are no blocks.
        blocks: the other dimensions, by block.
        chained: whether every block also depends on the one before it, as in a random walk.

    Example:
        >>> NamedStructure(("mu", "tau"), (("a[0]",), ("a[1]",)), False)
        2 globals (mu, tau) and 2 blocks of 1 local each, independent given the globals
    """

    globals: tuple[str, ...]
    blocks: tuple[tuple[str, ...], ...] = ()
    chained: bool = False

    @property
    def dependence(self) -> str:
        """How the blocks depend on one another, in words."""
        if len(self.blocks) < 2:
            return ""
        return "each dependent on the one before it" if self.chained else "independent given the globals"

    @property
    def sizes(self) -> str:
        """Number and sizes of the blocks, in words."""
        sizes = Counter(map(len, self.blocks))
        if len(self.blocks) == 1:
            return f"one block of {count(min(sizes), 'local')}"
        if len(sizes) == 1:
            return f"{len(self.blocks):,} blocks of {count(min(sizes), 'local')} each"
        return f"{len(self.blocks):,} blocks of {min(sizes)} to {max(sizes)} locals"

    def groups(self) -> list[Group]:
        """Describe globals and locals."""
        if not self.blocks:
            number = f"{len(self.globals):,}"
            return [Group("Globals", number, _some(self.globals), "fitted together, without blocks of locals")]
        local = (", ".join(block[:MAX_SHOWN]) + (", ..." if len(block) > MAX_SHOWN else "") for block in self.blocks)
        return [
            Group(
                "Globals", f"{len(self.globals):,}", _some(self.globals), "which influence one another and all locals"
            ),
            Group("Locals", self.sizes, "; ".join(_first(local, len(self.blocks))), self.dependence),
        ]

    def __repr__(self) -> str:
        if not self.blocks:
            return printable(f"{count(len(self.globals), 'global')} ({_some(self.globals)}), no locals")
        how = f", {self.dependence}" if self.dependence else ""
        return printable(f"{count(len(self.globals), 'global')} ({_some(self.globals)}) and {self.sizes}{how}")

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th scope='row' style='text-align:left'>{escape(group.what)}</th>"
            + "".join(f"<td style='text-align:left'>{escape(text)}</td>" for text in group[1:])
            + "</tr>"
            for group in self.groups()
        )
        return f"<div style='overflow-x:auto'><table><tbody>{rows}</tbody></table></div>"


def named_structure(distribution: AbstractDistribution, layout: AbstractLayout, axes: Axes) -> NamedStructure:
    """Return the structure of a fitted distribution; without blocks if all parameters are fitted together."""
    found = distribution.structure if isinstance(distribution, StructuredBernsteinFlow) else None
    return by_name(found, labels(layout, axes))


def by_name(structure: Structure | None, names: Sequence[str]) -> NamedStructure:
    """Name the dimensions of a structure."""
    if structure is None:
        return NamedStructure(tuple(names))
    blocks = tuple(tuple(names[i] for i in block) for block in structure.blocks)
    return NamedStructure(tuple(names[i] for i in structure.leaders), blocks, structure.chained)


def labels(layout: AbstractLayout, axes: Axes) -> list[str]:
    """Name every dimension in the order of x, by the labels of the model if there is one component per dimension."""
    found, plain = [], iter(layout.labels())
    for i in layout.order:
        site, size = layout.sites[i], layout.sizes[i]
        own = [next(plain) for _ in range(size)]
        is_named = math.prod(site.shape) == size
        found += [label for _, label in axes.labels(site.name, site.shape)] if is_named else own
    return found


def count(num: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{num:,} {noun}{'' if num == 1 else 's'}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(_first(iter(names), len(names)))


def _first(texts: Iterator[str], num: int) -> list[str]:
    return [next(texts) for _ in range(min(num, MAX_SHOWN))] + (["..."] if num > MAX_SHOWN else [])
