"""Tasks in processes of their own: memory and caches do not add up, and one that takes too long is ended."""

import multiprocessing
import multiprocessing.connection
import os
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import jax

from benchmarks.study.plan import Result, Task, run_task

OUT_OF_TIME = "exceeded the time limit"
GRACE = 10.0


@dataclass
class Running:
    """A task on its way."""

    task: Task
    process: Any
    results: Connection
    deadline: float


def run_apart(
    tasks: Sequence[Task], jobs: int, seconds: float, platform: str | None = "cpu"
) -> Iterator[tuple[Task, Result]]:
    """Run tasks, each in a fresh process, and yield them with their results as they end.

    A task that fails, dies or exceeds the time has the result {"status": reason}. Every result says how many seconds it
    took, from the start of the process.

    Args:
        tasks: what to do.
        jobs: number of processes at once.
        seconds: time limit of one task.
        platform: what JAX computes on, so that all methods are compared on the same kind of processor; None leaves it
            to JAX.
    """
    waiting = list(tasks)
    running: list[Running] = []
    # Threads of one compiled step would only take the cores of the other processes.
    if jobs > 1:
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_start(waiting.pop(0), seconds, platform))
            left = min(r.deadline for r in running) - time.monotonic()
            multiprocessing.connection.wait([r.results for r in running], timeout=max(0.0, left))
            for one in [r for r in running if r.results.poll() or time.monotonic() >= r.deadline]:
                running.remove(one)
                took = round(time.monotonic() - one.deadline + seconds, 1)
                yield one.task, {**_result(one, seconds), "took": took}
    finally:
        for one in running:
            _end(one)


def _start(task: Task, seconds: float, platform: str | None) -> Running:
    # A forked process would inherit the threads of JAX in an undefined state.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(task, theirs, platform), daemon=True)
    process.start()
    theirs.close()  # so that the end of the process closes the pipe
    return Running(task, process, ours, time.monotonic() + seconds)


def _work(task: Task, results: Connection, platform: str | None) -> None:
    """Do a task in this process, which has nothing else to do."""
    if platform is not None:
        jax.config.update("jax_platforms", platform)
    try:
        result = run_task(task)
    except Exception as error:
        traceback.print_exc()
        result = {"status": f"failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}
    results.send(result)


def _result(one: Running, seconds: float) -> Result:
    """Receive a result, or say why there is none."""
    grace = 0.0
    try:
        if one.results.poll():
            result = one.results.recv()
            grace = GRACE  # it has nothing left to do but to clean up
            return result
        return {"status": f"{OUT_OF_TIME} of {seconds:g} s"}
    except EOFError:
        one.process.join()
        return {"status": f"failed: its process ended with code {one.process.exitcode} (-9: perhaps out of memory)"}
    finally:
        _end(one, grace)


def _end(one: Running, grace: float = 0.0) -> None:
    """Let a process leave by itself within some seconds, else end it."""
    one.results.close()
    one.process.join(grace)
    one.process.kill()
    one.process.join()
