"""Run what the melanoma page is made from, without drawing: `python -m benchmarks.melanoma.train OUT --data DIR`.

For a machine with an accelerator where nothing can be drawn. Every finished run is a file in OUT/.kept/full, and a run
whose file exists is not repeated; `bernflow reproduce melanoma --data DIR --out OUT --all-pictures` then draws the page
from these files on any machine.
"""

import argparse
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.melanoma import plan, runs
from benchmarks.study.plan import SCALES, Result, Task, run_task
from benchmarks.study.stamp import stamp
from benchmarks.study.store import KEPT, Store


def main() -> None:
    """Read the arguments and run what is missing."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.melanoma.train", description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--data", required=True, type=Path, help="folder of the prepared pictures")
    parser.add_argument("--scale", choices=SCALES, default="full", help="settings (default: full)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, which share the device (default: 1)")
    parser.add_argument("--models", help="models to run, such as M1,M3 (default: all)")
    options = parser.parse_args()
    os.environ[runs.DATA_VARIABLE] = str(options.data.resolve())
    # The settings of the page do not depend on the machine.
    os.environ[plan.FULL_VARIABLE] = "1"
    if options.models:
        os.environ[plan.MODELS_VARIABLE] = options.models
    store = Store(options.out / KEPT / options.scale)
    missing = [task for task in plan.tasks(options.scale) if store.load(task) is None]
    print(f"{len(missing)} runs", flush=True)
    runs.load_pictures(False)  # decodes the pictures once, before several processes would
    began = time.perf_counter()
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        pending = {pool.submit(timed, task): task for task in missing}
        for future in as_completed(pending):
            task = pending[future]
            error = future.exception()
            if error is not None:
                print(f"{task.identity}: {type(error).__name__}: {error}", flush=True)
                continue
            result, made = future.result()
            store.save(task, {**result, "jobs": options.jobs}, made)
            print(f"{task.identity}: {made['seconds']} s, {time.perf_counter() - began:.0f} s in all", flush=True)


def timed(task: Task) -> tuple[Result, dict[str, Any]]:
    """Run a task and return its result, and how it was made."""
    began = time.perf_counter()
    result = run_task(task)
    return result, {**stamp(), "seconds": round(time.perf_counter() - began, 1)}


if __name__ == "__main__":
    main()
