"""Many models in one process: what was compiled for earlier ones is forgotten before it takes too much.

JAX keeps what it has compiled as long as the process lives, some 16 MB for the fit of a small model. Every compiled
function also holds mappings of memory, of which Linux grants a process 65,530: beyond, XLA cannot compile, and ends the
process. A user of some hundred models would get there.
"""

import gc
from pathlib import Path
from typing import Any

import jax

MAPPINGS = Path("/proc/self/maps")
LIMIT = Path("/proc/sys/vm/max_map_count")
# With this share of the limit in use at the beginning of a fit, or so many functions compiled since the last time, all
# that is compiled is forgotten. What is needed again is compiled again.
CROWDED, MOST_COMPILED = 0.3, 400


class _Compilations:
    """Counts what JAX compiles."""

    def __init__(self) -> None:
        self.num = 0
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, *_: Any, **__: Any) -> None:
        self.num += "backend_compile" in event


_compilations = _Compilations()


def forget_if_crowded() -> bool:
    """Clear JAX's caches if they hold much, or if most mappings may soon be in use; tell whether that was done."""
    if _compilations.num < MOST_COMPILED and _share_of_mappings() < CROWDED:
        return False
    jax.clear_caches()
    gc.collect()
    _compilations.num = 0
    return True


def _share_of_mappings() -> float:
    try:
        return MAPPINGS.read_bytes().count(b"\n") / int(LIMIT.read_text())
    except (OSError, ValueError):  # another system, with limits of its own
        return 0.0
