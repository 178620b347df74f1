"""Coverage of the intervals in 48 cells: `python -m benchmarks.semistructured.coverage OUT`.

All repeats of a cell are trained and solved at once, by the functions of the library mapped over them. Every cell is
one file in OUT, and a cell whose file exists is not run again.
"""

import argparse
import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.semistructured.simulation import COLUMNS, EFFECTS, Setting, Shape, solve_repeat, train_repeat
from benchmarks.study.stamp import stamp
from bernflow.semistructured.fitting import default_batch_size
from bernflow.semistructured.training import middle_epoch
from bernflow.semistructured.verdict import Evidence, attenuation, find

OUTCOMES = ("bernoulli", "gaussian", "poisson")
ROWS = (1_000, 20_000)
# Few and many epochs, by number of rows.
EPOCHS = {1_000: (10, 60), 20_000: (5, 30)}
RATE = 3e-3
# The age as it is written in a table, and centered and scaled.
AGES = {"uncentered": (60.0, 15.0), "centered": (0.0, 1.0)}
PICTURES = {"shared": 1.0, "separate": 0.0}
# Standard normal quantile of a 90 % interval.
WIDTH = 1.6448536
# Data sets that are trained at once, by number of rows.
AT_ONCE = {1_000: 100, 20_000: 50}


class Cell(NamedTuple):
    """One cell of the study."""

    outcome: str
    num_rows: int
    epochs: int
    pictures: str
    age: str

    @property
    def name(self) -> str:
        """Name of its file."""
        return f"{self.outcome}-{self.num_rows}-{self.epochs}-{self.pictures}-{self.age}"


def cells() -> list[Cell]:
    """Return all cells."""
    return [
        Cell(outcome, rows, epochs, pictures, age)
        for outcome, rows in itertools.product(OUTCOMES, ROWS)
        for epochs, pictures, age in itertools.product(EPOCHS[rows], PICTURES, AGES)
    ]


def shape_of(cell: Cell) -> Shape:
    """Return what a compiled function depends on."""
    return Shape(cell.outcome, cell.num_rows, default_batch_size(cell.num_rows, 2), RATE)


def setting_of(cell: Cell) -> Setting:
    """Return its other arguments."""
    middle = min(middle_epoch(cell.epochs), cell.epochs - 1)
    shared, origin, unit = map(jnp.float32, (PICTURES[cell.pictures], *AGES[cell.age]))
    return Setting(shared, origin, unit, jnp.int32(middle), jnp.int32(cell.epochs))


def compiled(shape: Shape, num: int) -> tuple[Any, Any]:
    """Compile training and solving of so many data sets at once."""
    keys, setting = (
        jax.random.split(jax.random.key(0), num),
        setting_of(Cell(shape.outcome, shape.num_rows, 2, "shared", "centered")),
    )
    train = jax.jit(jax.vmap(lambda setting, key: train_repeat(shape, setting, key), (None, 0)))
    trained = jax.eval_shape(train, setting, keys)
    with jax.enable_x64(True):
        double = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float64), trained)
        solve = jax.jit(jax.vmap(lambda repeat: solve_repeat(shape, repeat))).lower(double).compile()
    return train.lower(setting, keys).compile(), solve


def run_cell(cell: Cell, functions: tuple[Any, Any], repeats: int, at_once: int, seed: int) -> dict[str, Any]:
    """Run all repeats of a cell; the same data sets meet every age and every number of epochs."""
    train, solve = functions
    keys = jax.random.split(jax.random.key(seed), repeats)
    began, parts = time.perf_counter(), []
    for start in range(0, repeats, at_once):
        repeat = train(setting_of(cell), keys[start : start + at_once])
        with jax.enable_x64(True):
            double = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), repeat)
            parts.append(jax.device_get(solve(double)))
        del repeat, double
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    found["attenuation"] = np.zeros(repeats)
    if cell.outcome == "bernoulli":
        found["attenuation"] = np.array(list(map(attenuation, found["agreement"], found["images"])))
    truth = np.array(EFFECTS[cell.outcome])
    truth[0] /= AGES[cell.age][1]
    inside = np.abs(found["end"] - truth) <= WIDTH * found["end_sd"]
    return {
        **cell._asdict(),
        "columns": COLUMNS,
        "repeats": repeats,
        "seed": seed,
        "coverage": inside.mean(0).tolist(),
        "coverage_of_the_oracle": (np.abs(found["oracle"] - truth) <= WIDTH * found["oracle_sd"]).mean(0).tolist(),
        "truth": truth.tolist(),
        "mean": found["end"].mean(0).tolist(),
        "spread": found["end"].std(0).tolist(),
        "sd": found["end_sd"].mean(0).tolist(),
        "sd_of_the_oracle": found["oracle_sd"].mean(0).tolist(),
        "warned": float(np.mean([bool(find(evidence(found, i, cell.outcome))) for i in range(repeats)])),
        "attenuation": float(np.median(found["attenuation"])),
        "agreement": float(np.median(found["agreement"])),
        "estimates": np.round(found["end"], 6).tolist(),
        "sds": np.round(found["end_sd"], 6).tolist(),
        "seconds": time.perf_counter() - began,
        **stamp(),
    }


def evidence(found: dict[str, np.ndarray], i: int, outcome: str) -> Evidence:
    """Return what the verdict on one repeat is based on."""
    return Evidence(
        names=COLUMNS,
        effect=found["end"][i],
        sd=found["end_sd"][i],
        before=found["middle"][i],
        by_fold=np.stack([found[f"fold{k}"][i] for k in range(2)]),
        by_fold_sd=np.stack([found[f"fold{k}_sd"][i] for k in range(2)]),
        rise=float(found["rise"][i]),
        rise_se=float(found["rise_se"][i]),
        shown=found["shown"][i],
        agreement=float(found["agreement"][i]) if outcome == "bernoulli" else 1.0,
        attenuation=float(found["attenuation"][i]),
        dispersion=(float(found["dispersion"][i, 0]), float(found["dispersion"][i, 1])),
        has_features=True,
        interrupted=False,
    )


def run_study(out: Path, repeats: int, seed: int, only: str, workers: int) -> None:
    """Run the cells that are missing."""
    out.mkdir(parents=True, exist_ok=True)
    missing = [cell for cell in cells() if only in cell.name and not (out / f"{cell.name}.json").exists()]
    shapes = {shape_of(cell): min(repeats, AT_ONCE[cell.num_rows]) for cell in missing}
    with ThreadPoolExecutor(workers) as pool:
        functions = {shape: pool.submit(compiled, shape, num) for shape, num in shapes.items()}
        for cell in missing:
            shape = shape_of(cell)
            result = run_cell(cell, functions[shape].result(), repeats, shapes[shape], seed)
            text = json.dumps(result) + "\n"
            (out / f"{cell.name}.part").write_text(text)
            (out / f"{cell.name}.part").rename(out / f"{cell.name}.json")
            shown = " ".join(f"{value:.2f}" for value in result["coverage"])
            print(
                f"{cell.name}: coverage {shown}, warned {result['warned']:.2f}, {result['seconds']:.0f} s", flush=True
            )


def main() -> None:
    """Read the arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.semistructured.coverage", description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--repeats", type=int, default=400, help="data sets per cell (default: 400)")
    parser.add_argument("--seed", type=int, default=1, help="of the data sets (default: 1)")
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--workers", type=int, default=6, help="compilations at a time (default: 6)")
    options = parser.parse_args()
    for rows, num in AT_ONCE.items():
        if options.repeats > num and options.repeats % num:
            parser.error(f"--repeats {options.repeats}: expected a multiple of {num} ({rows:,} rows)")
    run_study(options.out, options.repeats, options.seed, options.only, options.workers)


if __name__ == "__main__":
    main()
