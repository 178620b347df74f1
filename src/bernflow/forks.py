"""Refuse to work in a process that was forked after JAX had started.

A fork copies the memory of a process, but only one of its threads. XLA's threads do not exist in the child, and the
first computation there waits for them forever.
"""

import os

from jax._src import xla_bridge

from bernflow.errors import BernflowError


class _Process:
    """What is known of this process."""

    is_forked_after_start = False


def check_not_forked() -> None:
    """Raise an error in a process that was forked after JAX had started."""
    if _Process.is_forked_after_start:
        raise BernflowError(
            "This process was forked after JAX had started in its parent. JAX's threads do not exist in a forked "
            "process, so that every computation would hang. Start worker processes afresh: use "
            'multiprocessing.get_context("spawn"), joblib (its default backend, loky) or Dask.'
        )


def _note_fork() -> None:
    # Not part of JAX's public interface; a version without it is not checked.
    started = getattr(xla_bridge, "backends_are_initialized", lambda: False)
    _Process.is_forked_after_start = started()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_note_fork)
