import gc

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def _free_compiled_functions():
    """Forget what a module compiled: every compiled function holds mappings of memory, whose number is limited."""
    yield
    jax.clear_caches()
    gc.collect()
