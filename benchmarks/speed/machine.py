"""What the figures were measured on."""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from benchmarks.study.plan import Result

PACKAGES = ("bernflow", "jax", "jaxlib", "numpyro", "equinox", "optax", "tensorflow", "tensorflow-cpu", "tf-keras")
CPU_FILE, MEMORY_FILE = Path("/proc/cpuinfo"), Path("/proc/meminfo")


def describe() -> Result:
    """Describe the machine and the software; it is run in a process of its own, because JAX takes hold of devices."""
    devices = jax.devices()
    return {
        "status": "ok",
        "processor": processor(),
        "cores": num_cores(),
        "memory_gb": _memory(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "platform": devices[0].platform,
        "device": f"{len(devices)} x {devices[0].device_kind}",
        "load": load(),
        "packages": {name: version for name in PACKAGES if (version := _version(name)) is not None},
    }


def processor() -> str:
    """Return the name of the processor."""
    return _field(CPU_FILE, "model name") or platform.processor() or platform.machine()


def num_cores() -> int | None:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def load() -> float | None:
    """Return how many processes have been waiting for a processor over the last minute."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def sentence(machine: Result) -> str:
    """Put the description into a paragraph."""
    memory = "" if machine["memory_gb"] is None else f", {machine['memory_gb']:.0f} GB of memory"
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return (
        f"{machine['processor']}, {machine['cores']} cores{memory}; JAX computes on {machine['device']} "
        f"({machine['platform']}). {machine['system']}, Python {machine['python']}, {packages}."
    )


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _field(path: Path, name: str) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(name)), None)


def _memory() -> float | None:
    found: Any = _field(MEMORY_FILE, "MemTotal")
    return None if found is None else int(found.split()[0]) / 2**20
