"""The C interface of a compiled Stan program, and a script that tests a program in a separate process.

`trial.py` runs this file in isolated mode. It imports only the standard library, so that it starts quickly.
"""

import contextlib
import ctypes
import math
import sys
from collections.abc import Sequence
from typing import Any

GRADIENT = 1  # as in shim.cpp
# The stages of the script, printed before each begins.
LOAD, RAISE, READ_DATA, EVALUATE, DONE = STAGES = ("load", "raise", "read data", "evaluate", "done")
POINT = 0.1  # some densities have no gradient at 0


def declare(c: Any) -> None:
    """Declare the types of the functions of a library loaded by ctypes."""
    c.bernflow_new.argtypes = (ctypes.c_char_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_void_p))
    c.bernflow_new.restype = ctypes.c_int32
    c.bernflow_free.argtypes = (ctypes.c_int32,)
    c.bernflow_free.restype = None
    c.bernflow_release.argtypes = (ctypes.c_void_p,)
    c.bernflow_release.restype = None
    c.bernflow_names.argtypes = (ctypes.c_int32, ctypes.c_int32)
    c.bernflow_names.restype = ctypes.c_void_p
    c.bernflow_message.argtypes = (ctypes.c_int32,)
    c.bernflow_message.restype = ctypes.c_void_p
    c.bernflow_evaluate.argtypes = (ctypes.c_int64, *(ctypes.c_void_p,) * 4, *(ctypes.c_int64,) * 3)
    c.bernflow_evaluate.restype = ctypes.c_void_p


def main(path: str, seed: str, *runtimes: str) -> None:
    """Load a library, make Stan throw exceptions, and evaluate the gradient; data are read from standard input.

    Args:
        path: the library.
        seed: seed of the transformed data block.
        runtimes: C++ runtimes to load first, as in the process of the user.
    """
    _write_no_core()
    _report(LOAD)
    for runtime in runtimes:
        with contextlib.suppress(OSError):  # replaced on disk since it was loaded
            ctypes.CDLL(runtime)
    try:
        c = ctypes.CDLL(path)
    except OSError as error:
        sys.exit(str(error))
    declare(c)
    _report(RAISE)
    _new(c, b"{", 0)  # not JSON: throws in every program
    _report(READ_DATA)
    handle = _new(c, sys.stdin.buffer.read(), int(seed))
    if handle:
        _report(RAISE)
        dim = ctypes.string_at(c.bernflow_names(handle, 3)).count(b"\n")
        _gradient(c, handle, [], dim)  # throws: no parameter can be read
        # A timeout from here on may be due to the program itself.
        _report(EVALUATE)
        _gradient(c, handle, [POINT] * dim, dim)
        _gradient(c, handle, [math.nan] * dim, dim)  # throws in most programs, with a number in the message
    _report(DONE)


def _new(c: Any, data: bytes, seed: int) -> int:
    return c.bernflow_new(data, seed, ctypes.byref(ctypes.c_void_p()))


def _gradient(c: Any, handle: int, x: Sequence[float], dim: int) -> None:
    handles, point, out = (ctypes.c_int32 * 1)(handle), (ctypes.c_double * len(x))(*x), (ctypes.c_double * (dim + 1))()
    c.bernflow_evaluate(GRADIENT, handles, point, None, out, 1, len(x), dim + 1)


def _write_no_core() -> None:
    try:
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        pass


def _report(stage: str) -> None:
    print(stage, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
