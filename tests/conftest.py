import os

# Compiling is most of a test's time. Functions without options of their own compile in a third of it without LLVM's
# optimizations and with the older emitters of XLA, as in `bernflow.background`: slower code that computes the same but
# for rounding. Processes that tests start inherit this. A version of XLA that lacks a flag ends the tests and names it.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false".strip()
)

import gc
import io
import tempfile
from pathlib import Path

import jax
import pytest

from bernflow import compiled
from bernflow.fit import mappings

# A worker forgets all that is compiled at the end of a module if it holds more than this; both workers and what they
# start are to fit into 6 GB.
MOST_RESIDENT, MOST_MAPPINGS = 1.6e9, 0.15


def pytest_configure(config):
    """Keep compiled functions on disk as long as the tests run: many files of tests need the same ones.

    In a folder of this worker's own, since JAX does not lock it, and not by the environment, so that processes that
    tests start compile as those of a user do.
    """
    config.compiled = tempfile.TemporaryDirectory(prefix="bernflow-tests-", ignore_cleanup_errors=True)
    jax.config.update("jax_compilation_cache_dir", config.compiled.name)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def pytest_unconfigure(config):
    config.compiled.cleanup()


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def terminal():
    """A terminal, for `contextlib.redirect_stderr`: pytest puts its own stderr in place when a test begins."""
    return Terminal()


@pytest.fixture(autouse=True, scope="session")
def _compile_in_the_foreground():
    """Leave the other core to the other worker: what is compiled ahead is not always needed.

    And forget nothing in the middle of a test that counts compilations; that is done after every module.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bernflow.background.num_cores", lambda: 1)
        patch.setattr(mappings, "MOST_COMPILED", float("inf"))
        yield


@pytest.fixture(autouse=True, scope="module")
def _free_compiled_functions():
    """Forget what bernflow compiled for a module, which may have patched it, and all the rest once it is much.

    Every compiled function holds mappings of memory, whose number is limited. What is left are mostly the operations of
    `jax.numpy`, which all modules need.
    """
    yield
    compiled.clear_compiled()
    if resident_bytes() > MOST_RESIDENT or mappings._share_of_mappings() > MOST_MAPPINGS:
        jax.clear_caches()
    gc.collect()


def resident_bytes():
    """Return the memory that this process holds; inf where that is unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, AttributeError):  # not Linux
        return float("inf")
