"""What every result is stamped with: date, commit, machine and versions, and the sentence that pages make of it."""

import datetime
import functools
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.study.writing import version_of

PACKAGES = ("bernflow", "jax", "jaxlib", "numpyro", "equinox", "optax", "flowjax", "blackjax", "pymc")
FIELDS = ("date", "commit", "machine", "versions")
# A commit to which something was added that is in no commit.
CHANGED = "+"

Stamp = dict[str, Any]


def stamp(device: bool = True) -> Stamp:
    """Return the date (UTC), the commit of the source, the machine and the versions of packages.

    A copy of the source without its Git repository takes the commit from the variable SOURCE_COMMIT; None without it.

    Args:
        device: whether to name the device of JAX. A process that only starts others must not: it would take hold of it.
    """
    today = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
    found = commit() or os.environ.get("SOURCE_COMMIT") or None
    return {"date": today, "commit": found, "machine": machine(device), "versions": versions()}


def commit(folder: Path | None = None) -> str | None:
    """Return the abbreviated commit of a folder, by default that of this package, with "+" where its code differs."""
    place = Path(__file__).resolve().parents[2] if folder is None else folder
    found = _git(place, "rev-parse", "--short", "HEAD")
    if found is None:
        return None
    changed = _git(place, "status", "--porcelain", "--untracked-files=no", "--", "*.py")
    return f"{found}{CHANGED if changed else ''}"


def _git(place: Path, *arguments: str) -> str | None:
    try:
        found = subprocess.run(["git", "-C", str(place), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()


@functools.cache
def machine(device: bool = True) -> str:
    """Describe the machine in a phrase."""
    from benchmarks.speed.machine import describe, num_cores, processor

    told = f"{processor()}, {num_cores()} cores"
    return f"{told}, JAX on {describe()['device']}" if device else told


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of the packages that results depend on, those that are installed."""
    found = {name: version_of(name) for name in PACKAGES}
    return {name: version for name, version in found.items() if version != "unknown"}


def sentence(records: Iterable[Mapping[str, Any]]) -> str:
    """Say when, from which commit, where and with what some results were made, and how many do not tell.

    Example:
        >>> stamped = {"date": "2026-11-19", "commit": "abc", "machine": "a laptop", "versions": {"jax": "0.9"}}
        >>> sentence([stamped, stamped])
        'Measured on 2026-11-19 from commit abc on a laptop, with jax 0.9.'
        >>> sentence([{}])
        'For 1 of 1 results, no date, commit, machine and versions are known.'
    """
    records = list(records)
    parts = []
    dates = sorted({r["date"] for r in records if r.get("date")})
    if dates:
        parts.append(f"on {dates[0]}" if len(dates) == 1 else f"from {dates[0]} to {dates[-1]}")
    commits = dict.fromkeys(r["commit"] for r in records if r.get("commit"))
    if commits:
        parts.append(f"from commit{'s' if len(commits) > 1 else ''} {', '.join(commits)}")
    machines = dict.fromkeys(r["machine"] for r in records if isinstance(r.get("machine"), str))
    if machines:
        parts.append(f"on {' and on '.join(machines)}")
    pairs = [pair for r in records for pair in (r.get("versions") or {}).items()]
    if pairs:
        parts.append(f"with {', '.join(f'{name} {version}' for name, version in dict.fromkeys(pairs))}")
    told = _joined(parts)
    silent = [r for r in records if any(not r.get(name) for name in FIELDS)]
    missing = [name for name in FIELDS if any(not r.get(name) for r in records)]
    if silent:
        unknown = f"{', '.join(missing[:-1])} and {missing[-1]}" if len(missing) > 1 else missing[0]
        verb = "are" if len(missing) > 1 else "is"
        told += f" For {len(silent)} of {len(records)} results, no {unknown} {verb} known."
    return told.strip()


def _joined(parts: list[str]) -> str:
    if not parts:
        return ""
    *others, last = parts
    text = " ".join(others)
    return f"Measured {text}{',' if last.startswith('with') and text else ''} {last}.".replace("  ", " ")
