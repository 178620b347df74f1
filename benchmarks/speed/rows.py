"""Part `rows`: what a step costs with many rows, all of them in memory or batches of them streamed from a file."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpyro.distributions as dist

from benchmarks.speed.clock import time_calls
from benchmarks.speed.growth import cost_table, curve, exponents
from benchmarks.speed.part import Case, Part, Scale, Section
from benchmarks.speed.training import JointTraining, Training, regression, resolved
from benchmarks.study.plan import Result
from benchmarks.study.records import Record
from benchmarks.study.tables import Table
from bernflow import Model
from bernflow.fit.batches.stage import DEFAULT_BATCH_SIZE
from bernflow.fit.train.recipe import CHUNK
from bernflow.precision import use_precision

MEMORY, STREAMED = "rows in memory", "rows streamed from a file"
NUM_PREDICTORS = 3
# Rows written at once.
BLOCK = 2**18
# Rows times particles of one call, at most: a call of a million rows must not take minutes.
MAX_WORK = 2e8
EXPECTED = {
    MEMORY: "1: every step sees every row",
    STREAMED: f"0: every step reads {DEFAULT_BATCH_SIZE} rows, wherever they lie",
}


def cases(scale: Scale) -> list[Case]:
    """Return rows in memory, and rows in a file."""
    memory = scale.pick(tiny=(50, 100), quick=(1_000, 10_000, 100_000), normal=tuple(10**k for k in range(3, 7)))
    streamed = scale.pick(
        tiny=(1_000, 2_000),
        quick=(10**5, 10**6),
        normal=tuple(10**k for k in range(4, 8)),
        full=tuple(10**k for k in range(4, 9)),
    )
    return [
        Case(MEMORY, {str(n): {"num_rows": n, "seconds": scale.seconds} for n in memory}, scale.rounds),
        Case(STREAMED, {str(n): {"num_rows": n, "seconds": scale.seconds} for n in streamed}, scale.rounds),
    ]


def measure(case: str, subject: str, settings: Mapping[str, Any]) -> Result:
    """Time the steps with so many rows."""
    if case == MEMORY:
        num = settings["num_rows"]
        chunk = int(np.clip(MAX_WORK / (32 * num), 1, 50))
        training = Training(lambda: regression(num, NUM_PREDICTORS), settings, chunk)
        return {**time_calls(training.run, chunk, settings["seconds"]), **training.described()}
    # Beside the temporary files of the system, which may lie in memory: TMPDIR says where.
    with tempfile.TemporaryDirectory(prefix="bernflow-rows-") as folder:
        return _time_streamed(Path(folder), settings)


def write_rows(folder: Path, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Write rows of a regression to files, block by block; return them mapped into memory."""
    shapes = {"x": (num, NUM_PREDICTORS), "y": (num,)}
    files = {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", "w+", np.float32, shape)
        for name, shape in shapes.items()
    }
    rng = np.random.default_rng(0)
    for start in range(0, num, BLOCK):
        part = slice(start, min(start + BLOCK, num))
        x = rng.normal(size=(part.stop - part.start, NUM_PREDICTORS))
        files["x"][part] = x
        files["y"][part] = x @ np.linspace(-1.0, 1.0, NUM_PREDICTORS) + rng.normal(size=len(x))
    for file in files.values():
        file.flush()
    x, y = (np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in "xy")
    return x, y


def _time_streamed(folder: Path, settings: Mapping[str, Any]) -> Result:
    """Time chunks of steps whose batches are gathered from the file while the last chunk computes."""
    chosen = resolved({})
    with use_precision(chosen.precision):
        x, y = write_rows(folder, settings["num_rows"])
        model = Model(
            prior={"b": dist.Normal(0.0, 1.0).expand([NUM_PREDICTORS]).to_event(1), "s": dist.HalfNormal(1.0)},
            likelihood=lambda theta, x: dist.Normal(x @ theta["b"], theta["s"]),
            y=y,
            x=x,
        )
        training = JointTraining(model, DEFAULT_BATCH_SIZE, chosen, 2 * CHUNK, resident=False)
        taken = time_calls(training.run, training.chunk, settings["seconds"])
        num_bytes = sum(path.stat().st_size for path in folder.iterdir())
    return {**taken, **training.described(), "file_bytes": num_bytes}


def present(records: Sequence[Record]) -> Section:
    """Show both curves with their exponents."""
    here = [case for case in (MEMORY, STREAMED) if curve(records, case)[0]]
    rows = [[case, *exponents(records, case), EXPECTED[case]] for case in here]
    text = (
        "Time of a training step of the default flow by the number of rows N: a linear regression with "
        f"{NUM_PREDICTORS + 1} parameters, S = 32. In memory, every step uses all rows. Streamed, a step reads "
        f"{DEFAULT_BATCH_SIZE} random rows from memory-mapped files, with control variates; reading is included. "
        "Files written shortly before may still be in the system's cache."
    )
    columns = ("rows", "measured exponent", "of the 3 largest", "expected")
    return Section([text, Table(columns, rows), *(cost_table(records, case, case) for case in here)])


PART = Part("rows", "Rows", cases, measure, present)
