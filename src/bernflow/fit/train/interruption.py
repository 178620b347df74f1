"""Ctrl-C during a fit: the first ends the training with what there is, a second one stops at once."""

import signal
import threading
from types import FrameType, TracebackType


class Interruption:
    """Holds the first Ctrl-C back until somebody asks for it.

    Raised where it falls it could do harm: compiled functions that call back to the host, as the density of a Stan
    program does, turn the exception into an error of their own. Where another thread than the main one fits, or where
    the program has a handler of its own, nothing is held back.

    Args:
        holds: hold the first one back at all.
    """

    def __init__(self, holds: bool = True) -> None:
        self._holds = holds
        self._count = 0
        self._installed = False

    @property
    def heard(self) -> bool:
        """Whether there was one."""
        return self._count > 0

    def check(self) -> None:
        """Raise the interruption that was held back, if there is one."""
        if self._count:
            raise KeyboardInterrupt

    def _hear(self, signum: int, frame: FrameType | None) -> None:
        self._count += 1
        if self._count > 1:
            raise KeyboardInterrupt

    def __enter__(self) -> "Interruption":
        in_main_thread = threading.current_thread() is threading.main_thread()
        if self._holds and in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, self._hear)
            self._installed = True
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            self._installed = False
        if self._count > 1 and isinstance(error, Exception):
            # The second one fell into a callback and came out as another error.
            raise KeyboardInterrupt from None
