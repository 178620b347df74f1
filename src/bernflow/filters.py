"""Local warning filters."""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LOCK = threading.RLock()


@contextmanager
def local_filters() -> Iterator[None]:
    """Restore the warning filters at the end of a `with` block; thread-safe.

    The filters are global to the process. Threads that enter and leave `warnings.catch_warnings` in turns restore each
    other's filters, and a temporary filter can become permanent. So only one thread at a time may change them.

    Example:
        >>> import warnings
        >>> with local_filters():
        ...     warnings.simplefilter("ignore")
    """
    with _LOCK, warnings.catch_warnings():
        yield
