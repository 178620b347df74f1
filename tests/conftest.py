import os

# Compiling is most of a test's time, and the least thorough level at which XLA still vectorizes takes a fifth off it.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=1".strip()

import gc
import io
import tempfile

import jax
import pytest

from bernflow.fit import mappings


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
    """Forget what a module compiled: every compiled function holds mappings of memory, whose number is limited."""
    yield
    jax.clear_caches()
    gc.collect()
