"""Raise an error in a process that was forked after JAX was initialized.

A fork copies the memory of a process, but only one of its threads. The threads of XLA do not exist in the child, so the
first computation there would wait for them forever.
"""

import os

from jax._src import xla_bridge

from bernflow.errors import BernflowError


class _Process:
    """State of this process."""

    is_forked_after_start = False


def check_not_forked() -> None:
    """Raise an error in a process that was forked after JAX had started."""
    if _Process.is_forked_after_start:
        raise BernflowError(
            "This process was forked after JAX had started in its parent. JAX's threads do not exist in a forked "
            "process, so every computation would hang. Start new worker processes instead of forking: use "
            'multiprocessing.get_context("spawn"), joblib (its default backend, loky) or Dask.'
        )


def _note_fork() -> None:
    # Not part of JAX's public API; without it there is no check.
    started = getattr(xla_bridge, "backends_are_initialized", lambda: False)
    _Process.is_forked_after_start = started()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_note_fork)
