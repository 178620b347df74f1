"""Execution of cases on an executor, with recovery from lost workers."""

import os
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple

from bernflow.errors import ModelError
from bernflow.models.base import AbstractMappedModel
from bernflow.posterior import Posterior

# Polling interval in seconds for futures without callbacks.
POLL_INTERVAL = 0.5


class Failure(NamedTuple):
    """Why a case has no result."""

    reason: str
    traceback: str = ""


class Pool:
    """Runs a function on an executor.

    A process pool breaks as a whole when one of its processes is killed, and does not report the case that the process
    was running. So a pool gets at most as many cases at a time as it has processes. The cases of a broken pool are
    repeated, each alone in a new pool, and only those that break it again have failed.

    Args:
        executor: the executor; None calls the function in this process.
        function: takes a case.
    """

    def __init__(self, executor: Any, function: Callable[[Any], Any]):
        self._executor, self._function = executor, function

    def run(self, cases: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Yield names with results or failures, as they are completed."""
        if self._executor is None:
            yield from ((name, _work(self._function, case, os.getpid())) for name, case in cases.items())
            return
        waiting, alone = list(cases), list[str]()
        with ExitStack() as stack:
            executor = self._executor
            while waiting or alone:
                # Repeat one suspect at a time; other cases wait.
                batch, quarantined = ([alone.pop()], True) if alone else (waiting, False)
                lost: list[str] = []
                for name, outcome in self._submit(executor, batch, cases):
                    if isinstance(outcome, BrokenExecutor):
                        lost.append(name)
                    else:
                        yield name, outcome
                if not lost:
                    continue
                fresh = _another(self._executor)
                if quarantined or fresh is None:
                    yield from ((name, Failure(LOST)) for name in lost)
                    yield from ((name, Failure(LOST)) for name in (waiting if fresh is None else ()))
                    waiting = [] if fresh is None else waiting
                else:
                    alone += lost
                if fresh is not None:
                    executor = stack.enter_context(fresh)

    def _submit(self, executor: Any, waiting: list[str], cases: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """Submit cases and remove them from the list, until the list is empty or the executor is broken."""
        room = getattr(executor, "_max_workers", None) if isinstance(executor, ProcessPoolExecutor) else None
        ended, pending, broken = threading.Event(), dict[Any, str](), False
        try:
            while (waiting and not broken) or pending:
                while waiting and not broken and (room is None or len(pending) < room):
                    name = waiting.pop(0)
                    try:
                        future = executor.submit(_work, self._function, cases[name], os.getpid())
                    except BrokenExecutor as error:
                        broken = True
                        yield name, error
                        continue
                    pending[future] = name
                    if hasattr(future, "add_done_callback"):
                        future.add_done_callback(lambda _: ended.set())
                for future in [future for future in pending if future.done()] or self._wait(ended):
                    outcome = _outcome(future)
                    broken = broken or isinstance(outcome, BrokenExecutor)
                    yield pending.pop(future), outcome
        finally:
            for future in pending:
                future.cancel()

    def _wait(self, ended: threading.Event) -> list[Any]:
        ended.wait(POLL_INTERVAL)
        ended.clear()
        return []


LOST = "its worker ended early: it was killed, or the machine was out of memory"


def _another(executor: Any) -> ProcessPoolExecutor | None:
    """Return a new process pool like a broken one; None for other executors, which recover by themselves."""
    if type(executor) is not ProcessPoolExecutor:
        return None
    return ProcessPoolExecutor(
        executor._max_workers,  # type: ignore[attr-defined]
        mp_context=executor._mp_context,  # type: ignore[attr-defined]
        initializer=executor._initializer,  # type: ignore[attr-defined]
        initargs=executor._initargs,  # type: ignore[attr-defined]
    )


def _outcome(future: Any) -> Any:
    try:
        return future.result()
    except BrokenExecutor as error:
        return error
    except Exception as error:  # the executor lost a worker, or could not pickle a value
        return Failure(f"{type(error).__name__}: {error}")


def _work(function: Callable[[Any], Any], case: Any, owner: int) -> Any:
    """Call the function in a worker, and convert errors, which may not be picklable, to a `Failure`."""
    try:
        value = function(case)
        if os.getpid() != owner and isinstance(value, Posterior) and isinstance(value.model, AbstractMappedModel):
            raise ModelError(
                f"The posterior of a {type(value.model).__name__} cannot be sent between processes: return a dict of "
                "results, such as {'draws': post.draws()['mu'], 'verdict': post.diagnostics.verdict}."
            )
        return value
    except Exception as error:
        return Failure(f"{type(error).__name__}: {error}", traceback.format_exc())
