"""Test of a new library in a separate process, so that a crash does not end the user's process."""

import re
import signal
import subprocess
import sys
from pathlib import Path

from bernflow.errors import BernflowError
from bernflow.models.stan import probe
from bernflow.models.stan.toolchain import Toolchain

TIMEOUT = 30
DOING = {
    probe.LOAD: "while it was loaded",
    probe.RAISE: "when Stan raised an error",
    probe.READ_DATA: "while it read the data",
    probe.EVALUATE: "while it evaluated the density",
}
# Other signals, such as SIGKILL when memory is exhausted, are not caused by the library.
CRASHES = {"SIGABRT", "SIGBUS", "SIGFPE", "SIGILL", "SIGSEGV", "SIGSYS", "SIGTRAP"}
REMEDY = (
    "The usual cause is a C++ runtime that was linked statically into the library or does not match the compiler. Set "
    "the environment variable CXX to another compiler (CXX=clang++), without flags such as -static-libstdc++, or "
    "install the shared runtime (apt-get install libstdc++6, conda install libstdcxx-ng). If the library crashes with "
    "every compiler, look for infinite recursion in the functions of the program."
)


def try_library(path: Path, toolchain: Toolchain, data: str, seed: int) -> None:
    """Load a library in a child process, make it throw exceptions, and evaluate its density and gradient once.

    If the child cannot be started, or takes long to process the data or the density, the library is accepted.

    Args:
        path: the library.
        toolchain: the tools that built it, for messages.
        data: the user's data as JSON; the library may reject them.
        seed: seed of the transformed data block.

    Raises:
        BernflowError: if the child crashes, or the library cannot be loaded.
    """
    if not sys.executable:  # Python is embedded in another program
        return
    command = [sys.executable, "-I", "-S", probe.__file__, str(path), str(seed), *_loaded_runtimes()]
    try:
        run = subprocess.run(command, input=data.encode(), capture_output=True, timeout=TIMEOUT, cwd=path.parent)
        status, out, err = run.returncode, run.stdout, run.stderr
    except subprocess.TimeoutExpired as late:
        status, out, err = None, late.stdout or b"", late.stderr or b""
    except OSError:
        return
    stages = [line for line in out.decode(errors="replace").splitlines() if line in probe.STAGES]
    if not stages or stages[-1] == probe.DONE:  # Python did not start, or all is well
        return
    problem = _find_problem(status, stages[-1])
    if problem is None:
        return
    message = err.decode(errors="replace").strip()[-1000:]
    raise BernflowError(
        f"The library of the Stan program, built with {toolchain.version} (CXX={toolchain.command!r}), {problem}"
        f"{': ' + message if message else '.'}\nIt was tested in a separate process and is not cached. {REMEDY}"
    )


def _find_problem(status: int | None, stage: str) -> str | None:
    """Describe how the test failed at a stage; None if the library is not the cause."""
    if status is None:  # timeout
        slow = stage in (probe.READ_DATA, probe.EVALUATE)
        return None if slow else f"did not return within {TIMEOUT} seconds {DOING[stage]}"
    if status < 0:
        name = _signal_name(-status)
        return f"crashed {DOING[stage]} ({name})" if name in CRASHES else None
    return f"failed {DOING[stage]} (exit status {status})"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return ""


def _loaded_runtimes() -> list[str]:
    """Return the C++ runtimes in this process (on Linux): a library uses the one that was loaded first."""
    try:
        maps = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    return list(dict.fromkeys(re.findall(r"/\S*/(?:libstdc\+\+|libgcc_s)\.so\S*", maps)))
