"""Warning filters that hold for a few lines only."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.RLock()


@contextmanager
def local_filters() -> Iterator[None]:
    """Restore the warning filters at the end of a `with` block, also where several threads run such blocks.

    The filters belong to the process. Threads that enter and leave `warnings.catch_warnings` in turns restore each
    other's filters, and one of them can stay for good; so one of our threads at a time changes them.

    Example:
        >>> import warnings
        >>> with local_filters():
        ...     warnings.simplefilter("ignore")
    """
    with _LOCK, warnings.catch_warnings():
        yield
