"""Many models in one process: what was compiled for earlier ones is dropped before it takes too much.

JAX keeps what it has compiled as long as the process lives, some 16 MB for the fit of a small model. Every compiled
function also holds mappings of memory, of which Linux grants a process 65,530: beyond, XLA cannot compile, and ends the
process. A user of some hundred models would get there.

Only bernflow's own functions are cleared: what the user has compiled stays, unless the process is about to end.
"""

import gc
import warnings
from pathlib import Path

import jax

from bernflow.compiled import clear_compiled, num_compiled

MAPPINGS = Path("/proc/self/maps")
LIMIT = Path("/proc/sys/vm/max_map_count")
# Bernflow's functions are cleared at the beginning of a fit if they have more compiled variants than this, or if this
# share of the mappings is in use.
MOST_COMPILED, CROWDED = 400, 0.3
# If others hold so many mappings that clearing does not get below CROWDED, clear again only after this share was added:
# every fit would compile anew otherwise.
STEP = 0.1
# With this share in use after that, everything that the process has compiled is cleared.
FULL = 0.8


class _Clearing:
    """Remembers from which share on clearing is worth it again."""

    next_share = 0.0


def forget_if_crowded() -> bool:
    """Clear bernflow's compiled functions if they or the mappings in use are many; return whether that was done."""
    share = _share_of_mappings()
    if num_compiled() <= MOST_COMPILED and share < min(FULL, max(CROWDED, _Clearing.next_share)):
        return False
    clear_compiled()
    gc.collect()
    share = _share_of_mappings()
    if share > FULL:
        warnings.warn(
            f"bernflow: this process uses {share:.0%} of the memory mappings that Linux grants it, and XLA ends a "
            "process that has none left. Clearing bernflow's compiled functions was not enough, so jax.clear_caches() "
            "was called: your own jitted functions will be compiled again when they are next called. To avoid this, "
            "raise the limit (sysctl vm.max_map_count) or split the work into several processes.",
            UserWarning,
            stacklevel=3,
        )
        jax.clear_caches()
        gc.collect()
        share = _share_of_mappings()
    _Clearing.next_share = share + STEP if share >= CROWDED else 0.0
    return True


def _share_of_mappings() -> float:
    try:
        return MAPPINGS.read_bytes().count(b"\n") / int(LIMIT.read_text())
    except (OSError, ValueError):  # another system, with limits of its own
        return 0.0
