"""Check the free memory before compiling.

LLVM, the compiler behind XLA, aborts the whole process if it cannot allocate memory. The check raises an error before
that happens, which can be caught and says what to do.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from bernflow.errors import BernflowError

MIB = 2**20
# A first fit of eight schools needs 141 MiB of memory and 165 MiB of address space to compile (JAX 0.10 on a CPU). In
# 100 dimensions a process with 140 MiB left crashes, and one with 180 MiB does not. The rest is a margin.
NEEDED_TO_FIT = 256 * MIB
# Compiling the training steps alone takes 37 MiB for eight schools and 60 MiB in 100 dimensions.
NEEDED_TO_COMPILE = 128 * MIB
PROC, CGROUPS = Path("/proc"), Path("/sys/fs/cgroup")


class NotEnoughMemoryError(BernflowError, MemoryError):
    """Too little memory is left to compile anything."""


def check_memory(needed: int = NEEDED_TO_FIT) -> None:
    """Raise an error if fewer than `needed` bytes are free; do nothing on systems that do not report it.

    Example:
        >>> check_memory(needed=1)
    """
    found = [(read(), what, advice) for read, what, advice in READERS]
    known = [(free, what, advice) for free, what, advice in found if free is not None]
    if not known:
        return
    free, what, advice = min(known)
    if free < needed:
        raise NotEnoughMemoryError(
            f"{max(free, 0) // MIB} MiB {what} are free, and compiling takes up to {needed // MIB} MiB; with less, the "
            f"compiler would abort the process. {advice}"
        )


def free_in_system() -> int | None:
    """Return the free memory of this machine in bytes, or None if unknown."""
    try:
        lines = (PROC / "meminfo").read_text().splitlines()
        fields = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
        return fields["MemAvailable"] + fields.get("SwapFree", 0)
    except (OSError, ValueError, LookupError):
        return None


def free_in_cgroup() -> int | None:
    """Return the free memory of the control group of this process (container, batch job), the least if nested."""
    left = [free for folder in _cgroups() if (free := _left_in(folder)) is not None]
    return min(left, default=None)


def free_address_space() -> int | None:
    """Return the bytes left below the limit on the address space of this process, or None without a limit."""
    try:
        import resource  # not on Windows

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        pages = int((PROC / "self" / "statm").read_text().split()[0])
    except (ImportError, OSError, ValueError, IndexError):
        return None
    return None if limit == resource.RLIM_INFINITY else limit - pages * resource.getpagesize()


READERS: tuple[tuple[Callable[[], int | None], str, str], ...] = (
    (free_in_system, "of the memory of this machine", "End other programs, or use a machine with more memory."),
    (free_in_cgroup, "of the container or job", "Give the container or job more memory, or run fewer processes in it."),
    (free_address_space, "of the address space", "Raise the limit of the process (ulimit -v, resource.RLIMIT_AS)."),
)


def _cgroups() -> Iterator[Path]:
    """Yield the folders of the memory controller, from the group of this process up to the root."""
    try:
        lines = (PROC / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        root = CGROUPS / "memory" if controllers else CGROUPS
        inside = root / path.lstrip("/")
        # Inside a container the path may be that of the host, but the root is visible.
        yield from (folder for folder in (inside, *inside.parents) if folder.is_relative_to(root))


def _left_in(folder: Path) -> int | None:
    for limit, usage, cache in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    ):
        try:
            most = int((folder / limit).read_text())  # "max" without a limit
            used = int((folder / usage).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except (OSError, ValueError):
            continue
        # The page cache counts as used, but is reclaimed when memory is needed.
        return most - used + int(stat.get(cache, 0))
    return None
