"""Many models in one process: what was compiled for earlier ones is forgotten before the system runs out of mappings.

Every compiled function holds mappings of memory, about 400 for a whole fit of a new model, and Linux grants a process
65,530 of them. Beyond, XLA cannot compile, and ends the process. JAX keeps what it has compiled as long as the process
lives, so that a user of some hundred models would get there.
"""

import gc
from pathlib import Path

import jax

MAPPINGS = Path("/proc/self/maps")
LIMIT = Path("/proc/sys/vm/max_map_count")
# With this share of the limit in use at the beginning of a fit, all that is compiled is forgotten. What is needed again
# is compiled again.
CROWDED = 0.3


def forget_if_crowded() -> bool:
    """Clear JAX's caches if most mappings may soon be in use; tell whether that was done."""
    try:
        num, limit = MAPPINGS.read_bytes().count(b"\n"), int(LIMIT.read_text())
    except (OSError, ValueError):  # another system, with limits of its own
        return False
    if num < CROWDED * limit:
        return False
    jax.clear_caches()
    gc.collect()
    return True
