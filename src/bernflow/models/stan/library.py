"""A compiled Stan program loaded in this process, called by XLA or by Python."""

import ctypes
import functools
import threading
import warnings
from pathlib import Path

import jax
import numpy as np

from bernflow.errors import BernflowError
from bernflow.models.stan.build import LIBRARY
from bernflow.models.stan.probe import declare

_LOCK = threading.Lock()


class Library:
    """The C interface of one compiled program.

    Attributes:
        name: a name that identifies the program.
        target: name of the XLA target, or None if XLA cannot call it.
    """

    def __init__(self, folder: Path):
        self.name = folder.name
        try:
            self._c = ctypes.CDLL(str(folder / LIBRARY))
        except OSError as error:
            raise BernflowError(f"The compiled Stan program {folder} cannot be loaded ({error}): remove it.") from error
        declare(self._c)
        self.target = self._register()

    def _register(self) -> str | None:
        target = f"bernflow_stan_{self.name}"
        handler = jax.ffi.pycapsule(self._c.bernflow_ffi)
        try:
            jax.ffi.register_ffi_target(target, handler, platform="cpu")
        except Exception as error:  # Python can still call it
            warnings.warn(
                f"bernflow: XLA cannot call Stan programs directly ({error}); they are called through Python, which is "
                "slower.",
                UserWarning,
                stacklevel=2,
            )
            return None
        return target

    def new(self, json: str, seed: int) -> tuple[int, str]:
        """Create an instance with data; return its handle, or 0 on failure, and Stan's messages."""
        message = ctypes.c_void_p()
        handle = self._c.bernflow_new(json.encode(), seed, ctypes.byref(message))
        return handle, self._text(message.value)

    def free(self, handle: int) -> None:
        """Release an instance."""
        self._c.bernflow_free(handle)

    def names(self, handle: int, which: int) -> list[str]:
        """Return names of components: 0 parameters, 1 with transformed ones, 2 with generated quantities, 3 on R^p."""
        return self._text(self._c.bernflow_names(handle, which)).splitlines()

    def message(self, handle: int) -> str:
        """Return the message of the last evaluation that failed."""
        return self._text(self._c.bernflow_message(handle))

    def evaluate(
        self, operation: int, handles: np.ndarray, rows: np.ndarray, keys: np.ndarray, num_out: int
    ) -> np.ndarray:
        """Evaluate an operation on rows, (num, n) -> (num, num_out)."""
        handles, rows, keys = (
            np.ascontiguousarray(handles, np.int32),
            np.ascontiguousarray(rows, np.float64),
            np.ascontiguousarray(keys, np.uint32),
        )
        out = np.empty((len(rows), num_out))
        error = self._c.bernflow_evaluate(
            operation,
            handles.ctypes.data,
            rows.ctypes.data,
            keys.ctypes.data if keys.size else None,
            out.ctypes.data,
            len(rows),
            rows.shape[1],
            num_out,
        )
        if error:
            raise BernflowError(self._text(error))
        return out

    def _text(self, pointer: int | None) -> str:
        if not pointer:
            return ""
        try:
            return ctypes.string_at(pointer).decode(errors="replace")
        finally:
            self._c.bernflow_release(pointer)


def load(folder: Path) -> Library:
    """Load a compiled program, once per process."""
    with _LOCK:
        return _load(folder)


@functools.cache
def _load(folder: Path) -> Library:
    return Library(folder)
