"""The dependence structure of a hierarchical posterior: a few globals, and blocks of locals given them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from bernflow.errors import FileFormatError


@dataclass(frozen=True)
class Structure:
    """A partition of the p dimensions of x into globals and blocks of locals.

    Given the globals, blocks are independent, or every block depends only on the one before it (a chain).

    Attributes:
        dim: number of dimensions p.
        leaders: the dimensions of the globals.
        blocks: the dimensions of every block of locals.
        chained: whether every block also depends on the one before it.

    Example:
        >>> structure = Structure(4, leaders=(1,), blocks=((0,), (2, 3)), chained=False)
        >>> structure.members
        array([[ 0, -1],
               [ 2,  3]])
    """

    dim: int
    leaders: tuple[int, ...]
    blocks: tuple[tuple[int, ...], ...]
    chained: bool = False

    @property
    def num_leaders(self) -> int:
        """Number of globals."""
        return len(self.leaders)

    @property
    def num_locals(self) -> int:
        """Number of locals."""
        return self.dim - len(self.leaders)

    @cached_property
    def size(self) -> int:
        """Number of locals in the largest block."""
        return max(map(len, self.blocks))

    @cached_property
    def order(self) -> Int[np.ndarray, " p"]:
        """The dimensions of x, globals first, then the locals block by block."""
        # 32 bits, which JAX does not convert in either precision.
        return np.array([*self.leaders, *(member for block in self.blocks for member in block)], np.int32)

    @cached_property
    def places(self) -> Int[np.ndarray, " p"]:
        """The position of every dimension of x in `order`."""
        return np.argsort(self.order).astype(np.int32)

    @cached_property
    def members(self) -> Int[np.ndarray, "b s"]:
        """The dimensions of x in every block, padded with -1."""
        return np.array([[*block, *(-1,) * (self.size - len(block))] for block in self.blocks])

    @cached_property
    def is_member(self) -> Bool[np.ndarray, "b s"]:
        """Whether an entry of `members` is a dimension of x and not padding."""
        return self.members >= 0

    @cached_property
    def slots(self) -> Int[np.ndarray, "b s"]:
        """The position of every member of a block among the locals; 0 for padding."""
        slots = np.cumsum(self.is_member).reshape(self.members.shape) - 1
        return np.where(self.is_member, slots, 0).astype(np.int32)

    def to_json(self) -> dict[str, Any]:
        """Describe the structure by JSON values."""
        return {
            "dim": self.dim,
            "leaders": list(self.leaders),
            "blocks": [list(block) for block in self.blocks],
            "chained": self.chained,
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Structure":
        """Invert `to_json`, and check that globals and blocks are a partition of the dimensions."""
        blocks = tuple(tuple(map(int, block)) for block in values["blocks"])
        structure = cls(int(values["dim"]), tuple(map(int, values["leaders"])), blocks, bool(values["chained"]))
        if not structure.blocks or sorted(structure.order.tolist()) != list(range(structure.dim)):
            raise FileFormatError(
                f"The file describes a structure whose globals and blocks are not a partition of {structure.dim} "
                "dimensions: expected each dimension once."
            )
        return structure

    def by_block(self, values: Any) -> Any:
        """Arrange values of the locals, (..., n), by block, (..., b, s); for NumPy and JAX arrays."""
        if self.is_member.all():
            return values.reshape(*values.shape[:-1], *self.members.shape)
        return values[..., self.slots] * self.is_member

    def flat(self, values: Any) -> Any:
        """Invert `by_block`."""
        flat = values.reshape(*values.shape[:-2], -1)
        return flat if self.is_member.all() else flat[..., np.flatnonzero(self.is_member).astype(np.int32)]
