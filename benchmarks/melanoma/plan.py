"""Which runs the melanoma experiment consists of, at every scale; nothing here draws."""

import os
from typing import Any

import jax

from benchmarks.melanoma import crossfitted, runs
from benchmarks.study.plan import Task

# What the command line asks for: one model, the network's arithmetic, the settings of an accelerator.
MODELS_VARIABLE = "BERNFLOW_MELANOMA_MODELS"
DTYPE_VARIABLE = "BERNFLOW_MELANOMA_DTYPE"
FULL_VARIABLE = "BERNFLOW_MELANOMA_FULL"
# Pictures appear on the page only if this is set: their license (CC BY-NC 4.0) is not that of this repository.
PHOTOS_VARIABLE = "BERNFLOW_MELANOMA_PHOTOS"
# Small batches: of few pictures, they leave enough steps for the running means of the batch normalization.
SMALL: dict[str, Any] = {
    "seeds": 1,
    "better_epochs": 0,
    "joint_epochs": 2,
    "dtype": "float32",
    "splits": (False,),
    "batch_size": 32,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "full": {
        "seeds": 3,
        "epochs": 50,
        "better_epochs": 30,
        # The paper trains M3 for 14 epochs; cross-fitted networks take as many steps on their share of the rows.
        "joint_epochs": 14,
        "dtype": "bfloat16",
        "num_rows": None,
        "splits": (False, True),
    },
    "cpu": SMALL | {"epochs": 5, "num_rows": 4000},
    "quick": SMALL | {"epochs": 3, "num_rows": 2000},
    "tiny": SMALL | {"epochs": 1, "num_rows": 64},
}
M2_METHODS = {"full": "bernflow", "batches": "bernflow, batches of 256", "nuts": "NUTS"}
# Networks of a cross-fitted model: the default, and one whose networks see four fifths of the rows instead of a half.
DEFAULT_NETWORKS, MORE_NETWORKS = 2, 5


def chosen_models() -> tuple[str, ...]:
    """Return the models to run: those asked for, else all, or M2 alone where there are no pictures."""
    asked = os.environ.get(MODELS_VARIABLE)
    if asked:
        return tuple(asked.upper().split(","))
    return ("M1", "M2", "M3") if os.environ.get(runs.DATA_VARIABLE) else ("M2",)


def settings(scale: str) -> dict[str, Any]:
    """Return the settings of the runs on pictures; without an accelerator the full ones must be asked for."""
    forced = os.environ.get(FULL_VARIABLE)
    small = scale == "full" and not forced and jax.default_backend() == "cpu"
    chosen = SETTINGS["cpu" if small else scale]
    dtype = os.environ.get(DTYPE_VARIABLE)
    return chosen | {"dtype": dtype} if dtype else chosen


def picture_run(scale: str, model: str, network: str, seed: int, by_patient: bool) -> Task:
    """Return one run of a network on pictures."""
    chosen = settings(scale)
    arguments = {
        "network": network,
        "seed": seed,
        "epochs": chosen["epochs"] if network == "paper" else chosen["better_epochs"],
        "dtype": chosen["dtype"],
        "by_patient": by_patient,
        "num_rows": chosen["num_rows"],
    }
    # Left out where it is the default: kept results are known by the arguments of their run.
    if "batch_size" in chosen:
        arguments["batch_size"] = chosen["batch_size"]
    return Task(f"{runs.__name__}:run_{model.lower()}", arguments)


def ensemble(scale: str, model: str, network: str, by_patient: bool) -> list[Task]:
    """Return the runs of one model from several seeds."""
    return [picture_run(scale, model, network, seed, by_patient) for seed in range(settings(scale)["seeds"])]


def m2_run(scale: str, method: str) -> Task:
    """Return one fit of M2."""
    more = {"num_warmup": 200, "num_samples": 400} if scale == "tiny" and method == "nuts" else {}
    return Task(f"{runs.__name__}:run_m2", {"method": method, **more})


def crossfitted_runs(scale: str, model: str, by_patient: bool, networks: int = DEFAULT_NETWORKS) -> list[Task]:
    """Return M1 or M3 with the default posterior, from several seeds; empty if it is not asked for."""
    chosen = settings(scale)
    if model not in chosen_models() or by_patient not in chosen["splits"]:
        return []
    if networks != DEFAULT_NETWORKS and (by_patient or model == "M1" or not chosen["better_epochs"]):
        return []
    arguments = {
        "model": model,
        "networks": networks,
        "epochs": round(chosen["joint_epochs"] * networks / (networks - 1)),
        "dtype": chosen["dtype"],
        "by_patient": by_patient,
        "num_rows": chosen["num_rows"],
    }
    if "batch_size" in chosen:
        arguments["batch_size"] = chosen["batch_size"]
    function = f"{crossfitted.__name__}:run_crossfitted"
    return [Task(function, {**arguments, "seed": seed}) for seed in range(chosen["seeds"])]


def groups(scale: str) -> list[tuple[str, str, bool]]:
    """Return (model, network, split by patient) of the runs of networks without cross-fitting."""
    models = [model for model in ("M1", "M3") if model in chosen_models()]
    found: list[tuple[str, str, bool]] = [
        (model, "paper", split) for split in settings(scale)["splits"] for model in models
    ]
    if settings(scale)["better_epochs"]:
        found += [("M3", "better", split) for split in settings(scale)["splits"] if "M3" in models]
    return found


def tasks(scale: str) -> list[Task]:
    """List the runs, those with the default posterior first."""
    tables = [m2_run(scale, method) for method in M2_METHODS] if "M2" in chosen_models() else []
    joint = [
        task
        for networks in (DEFAULT_NETWORKS, MORE_NETWORKS)
        for by_patient in (False, True)
        for model in ("M3", "M1")
        for task in crossfitted_runs(scale, model, by_patient, networks)
    ]
    pictures = [task for group in groups(scale) for task in ensemble(scale, *group)]
    return [*tables, *joint, *pictures]
