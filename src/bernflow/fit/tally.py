"""How many gradients of the log density a search for a start has taken."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass
class Tally:
    """A count that grows."""

    num: int = 0


_CURRENT: ContextVar[Tally | None] = ContextVar("bernflow_tally", default=None)


@contextmanager
def counting() -> Iterator[Tally]:
    """Count the gradients that are evaluated on the host within this context.

    Example:
        >>> with counting() as tally:
        ...     count(32)
        >>> tally.num
        32
    """
    tally = Tally()
    token = _CURRENT.set(tally)
    try:
        yield tally
    finally:
        _CURRENT.reset(token)


def count(num: int) -> None:
    """Add gradients; a product with the Hessian counts as two of them."""
    tally = _CURRENT.get()
    if tally is not None:
        tally.num += num
