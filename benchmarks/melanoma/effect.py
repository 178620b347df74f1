"""The effect of age beside cross-fitted networks, without matplotlib: `python -m benchmarks.melanoma.effect OUT`.

Every seed is one file in OUT, and a seed whose file exists is not run again.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.melanoma import metrics, runs


def main() -> None:
    """Read the arguments, run what is missing, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.melanoma.effect", description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the results")
    parser.add_argument("--data", required=True, help="folder of the prepared pictures")
    parser.add_argument("--seeds", type=int, default=3, help="number of fits (default: 3)")
    parser.add_argument("--networks", type=int, default=2, help="networks and folds of a fit (default: 2)")
    parser.add_argument("--epochs", type=int, default=14, help="epochs of every network (default: 14)")
    parser.add_argument("--rows", type=int, help="use the first rows of every part only")
    parser.add_argument("--by-patient", action="store_true", help="split by patient")
    options = parser.parse_args()
    os.environ[runs.DATA_VARIABLE] = options.data
    options.out.mkdir(parents=True, exist_ok=True)
    data = runs.load_pictures(options.by_patient)
    target = np.asarray(data.target[data.rows("test")[: options.rows]])
    slopes = []
    for seed in range(options.seeds):
        path = options.out / f"effect-{'patients' if options.by_patient else 'split'}-{options.networks}-{seed}.npz"
        if not path.exists():
            found = runs.run_effect(
                "paper",
                seed,
                options.epochs,
                "bfloat16",
                options.by_patient,
                options.rows,
                networks=options.networks,
            )
            arrays: dict[str, Any] = {name: values for name, values in found.items() if isinstance(values, np.ndarray)}
            facts = {name: value for name, value in found.items() if name not in arrays}
            np.savez(path, facts=json.dumps(facts), **arrays)
        with np.load(path) as stored:
            slopes.append(stored["draws/beta_1"].astype(float))
            facts, probability = json.loads(str(stored["facts"])), stored["test"]
            singles = [metrics.log_score(target, stored[f"test/{k}"]) for k in range(options.networks)]
        print(
            f"seed {seed}: beta_1 {slopes[-1].mean():.3f} ± {slopes[-1].std():.3f}, {facts['verdict']}, log score "
            f"{metrics.log_score(target, probability):.4f} (single: {', '.join(f'{s:.4f}' for s in singles)}), "
            f"AUC {metrics.auc(target, probability):.3f}, {facts['seconds']:.0f} s. {' '.join(facts['findings'])}",
            flush=True,
        )
    means = [draws.mean() for draws in slopes]
    print(
        f"spread of beta_1 over seeds: {np.std(means):.3f}; sd within a fit: {np.mean([d.std() for d in slopes]):.3f}"
    )


if __name__ == "__main__":
    main()
