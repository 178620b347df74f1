"""Run experiments: what is missing is done, what is kept is used, each page appears as soon as it can."""

import importlib.util
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
from tqdm.auto import tqdm

from benchmarks.study import record
from benchmarks.study.page import write_page
from benchmarks.study.plan import Experiment, Result, Results, Task, run_task
from benchmarks.study.stamp import stamp
from benchmarks.study.store import KEPT, Store
from bernflow import BernflowError
from bernflow.plots.style import house_style


@dataclass(frozen=True)
class Outcome:
    """How an experiment ended: its folder, or the sentence that says what went wrong."""

    experiment: Experiment
    folder: Path
    error: str | None = None


def run_experiments(
    experiments: Sequence[Experiment],
    scale: str,
    out: Path,
    *,
    jobs: int = 1,
    fresh: bool = False,
    progress: bool = True,
) -> Iterator[Outcome]:
    """Run experiments one after the other and yield how each ended.

    Args:
        experiments: what to run.
        scale: "full", "quick" or "tiny".
        out: folder for the results; every experiment gets one inside of it.
        jobs: number of tasks at once, each in a process of its own where there is more than one.
        fresh: repeat tasks that are kept already.
        progress: show a progress bar over the tasks.
    """
    store = Store(out / KEPT / scale)
    done: set[str] = set()
    for experiment in experiments:
        try:
            _check_needs(experiment)
            tasks = list(dict.fromkeys(experiment.tasks(scale)))
            missing = [t for t in tasks if t.identity not in done and (fresh or store.load(t) is None)]
            _run_tasks(experiment.name, missing, len(tasks), store, jobs, progress)
            done |= {task.identity for task in tasks}
            results = Results({task.identity: _kept(store, task) for task in tasks})
            with house_style():
                made = [store.made(task) or {} for task in tasks]
                page = record.with_origin(experiment.present(scale, results), experiment, scale, tasks, made)
                write_page(page, out / experiment.name)
            # Every compiled function holds mappings of memory, whose number the system limits.
            jax.clear_caches()
        except BernflowError as error:
            yield Outcome(experiment, out / experiment.name, str(error))
        else:
            yield Outcome(experiment, out / experiment.name)


def _timed(task: Task) -> tuple[Result, dict[str, Any]]:
    """Do a task, and return with its result how it was made."""
    began = time.perf_counter()
    result = run_task(task)
    return result, {**stamp(), "seconds": round(time.perf_counter() - began, 1)}


def _run_tasks(name: str, missing: list[Task], total: int, store: Store, jobs: int, progress: bool) -> None:
    bar = tqdm(
        desc=name, total=total, initial=total - len(missing), unit="task", disable=not progress, dynamic_ncols=True
    )
    with bar:
        if jobs == 1 or len(missing) < 2:
            for task in missing:
                bar.set_postfix_str(task.identity.rpartition("-")[0])
                store.save(task, *_timed(task))
                bar.update()
            return
        # Threads of one compiled step would only take the cores of the other processes.
        os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false")
        with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
            pending = {pool.submit(_timed, task): task for task in missing}
            try:
                for future in as_completed(pending):
                    store.save(pending[future], *future.result())
                    bar.update()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise


def _kept(store: Store, task: Task) -> Result:
    result = store.load(task)
    if result is None:
        raise BernflowError(f"The result of {task.identity} cannot be read back: is the disk full? Run it again.")
    return result


def _check_needs(experiment: Experiment) -> None:
    for package, extra in experiment.needs.items():
        if importlib.util.find_spec(package) is None:
            raise BernflowError(
                f"{experiment.name} needs the package {package}: install it with pip install 'bernflow[{extra}]'."
            )
