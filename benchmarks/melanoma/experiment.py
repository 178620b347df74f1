"""Melanoma: pictures by a network, age by a coefficient with a posterior, trained together."""

import os
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from benchmarks.melanoma import metrics, runs
from benchmarks.melanoma.tables import load_m2, load_m2_draws, load_m3_density
from benchmarks.study.figures import new_axes, new_figure
from benchmarks.study.methods import METHODS, TRUTH
from benchmarks.study.page import Heading, Listing, Page, Picture
from benchmarks.study.plan import Experiment, Results, Task
from benchmarks.study.tables import Claim, Table, claims_table
from bernflow.plots.densities import estimate_density

RUNS = runs.__name__
# The paper's figures on the test part: log score, AUC.
PAPER = {"M1": (-0.0764, 0.83), "M2": (-0.0850, 0.66), "M3": (-0.0761, 0.82)}
# What the command line asks for: one model, the network's arithmetic, the settings of an accelerator.
MODELS_VARIABLE = "BERNFLOW_MELANOMA_MODELS"
DTYPE_VARIABLE = "BERNFLOW_MELANOMA_DTYPE"
FULL_VARIABLE = "BERNFLOW_MELANOMA_FULL"
# Small batches: of few pictures, they leave enough steps for the running means of the batch normalization.
SMALL: dict[str, Any] = {
    "seeds": 1,
    "better_epochs": 0,
    "effect_epochs": 2,
    "dtype": "float32",
    "splits": (False,),
    "batch_size": 32,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "full": {
        "seeds": 3,
        "epochs": 50,
        "better_epochs": 30,
        "effect_epochs": 14,
        "dtype": "bfloat16",
        "num_rows": None,
        "splits": (False, True),
    },
    "cpu": SMALL | {"epochs": 5, "num_rows": 4000},
    "quick": SMALL | {"epochs": 3, "num_rows": 2000},
    "tiny": SMALL | {"epochs": 1, "num_rows": 64},
}
M2_METHODS = {"full": "bernflow", "batches": "bernflow, batches of 256", "nuts": "NUTS"}


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
    """Return one run on pictures."""
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
    return Task(f"{RUNS}:run_{model.lower()}", arguments)


def ensemble(scale: str, model: str, network: str, by_patient: bool) -> list[Task]:
    """Return the runs of one model from several seeds."""
    return [picture_run(scale, model, network, seed, by_patient) for seed in range(settings(scale)["seeds"])]


def m2_run(scale: str, method: str) -> Task:
    """Return one fit of M2."""
    more = {"num_warmup": 200, "num_samples": 400} if scale == "tiny" and method == "nuts" else {}
    return Task(f"{RUNS}:run_m2", {"method": method, **more})


def effect_run(scale: str, seed: int, by_patient: bool) -> Task:
    """Return one fit of M3 with cross-fitted networks."""
    arguments = dict(picture_run(scale, "M3", "paper", seed, by_patient).arguments)
    return Task(f"{RUNS}:run_effect", arguments | {"epochs": settings(scale)["effect_epochs"]})


def effect_runs(scale: str, by_patient: bool) -> list[Task]:
    """Return the cross-fitted M3 from several seeds, whose spread its intervals should contain."""
    if "M3" not in chosen_models() or by_patient not in settings(scale)["splits"]:
        return []
    return [effect_run(scale, seed, by_patient) for seed in range(settings(scale)["seeds"])]


def groups(scale: str) -> list[tuple[str, str, bool]]:
    """Return (model, network, split by patient) of all runs on pictures."""
    models = [model for model in ("M1", "M3") if model in chosen_models()]
    found: list[tuple[str, str, bool]] = [
        (model, "paper", split) for split in settings(scale)["splits"] for model in models
    ]
    if settings(scale)["better_epochs"]:
        found += [(model, "better", split) for split in settings(scale)["splits"] for model in models if model == "M3"]
    return found


def tasks(scale: str) -> list[Task]:
    """List the runs."""
    pictures = [task for group in groups(scale) for task in ensemble(scale, *group)]
    tables = [m2_run(scale, method) for method in M2_METHODS] if "M2" in chosen_models() else []
    effects = [task for by_patient in (False, True) for task in effect_runs(scale, by_patient)]
    return [*tables, *pictures, *effects]


def present(scale: str, results: Results) -> Page:
    """Make the page."""
    rows, curves, claims = [], {}, []
    numbers: dict[str, Any] = {}
    blocks: list[Any] = [
        "33,126 pictures of skin lesions (ISIC 2020), 1.8 % of them melanomas. M1: a convolutional network on the "
        "pictures, h = μ(B). M2: logistic regression on age, h = μ₀ + β₁ x. M3: both, h = μ(B) + β₁ x, where the "
        "weights of the network are trained and β₁ has a posterior. That posterior is conditional on the trained "
        "network."
    ]
    if not groups(scale):
        blocks.append(f"M1 and M3 were not run. {runs.WHERE_THE_PICTURES_ARE}")
    elif settings(scale)["num_rows"] is not None:
        blocks.append(
            f"A smaller run: {settings(scale)['num_rows']:,} pictures of each part, {settings(scale)['epochs']} "
            f"epochs, {settings(scale)['seeds']} seed, batches of {settings(scale)['batch_size']}."
        )
    if "M2" in chosen_models():
        found = {method: results[m2_run(scale, method)] for method in M2_METHODS}
        target = load_m2()[1].target
        rows.append(_row("M2", "age alone", target, found["full"]["test"], PAPER["M2"]))
        curves["M2"] = (target, found["full"]["test"])
        table, m2_claims = _m2_comparison(found)
        claims += m2_claims
        blocks += [
            Heading("M2 against NUTS"),
            Listing("m2", table, "Posterior of β₁ and μ₀ in M2; the paper's draws come from its own NUTS run."),
        ]
        numbers["m2"] = {m: {k: v for k, v in r.items() if not isinstance(v, np.ndarray)} for m, r in found.items()}
    slopes = {}
    for model, network, by_patient in groups(scale):
        members = results.of(ensemble(scale, model, network, by_patient))
        target = _test_target(scale, by_patient)
        label = f"{model}{'' if network == 'paper' else ', better network'}"
        where = "patients apart" if by_patient else "paper's split"
        single = [float(metrics.log_score(target, m["test"])) for m in members]
        aucs = [float(metrics.auc(target, m["test"])) for m in members]
        average = np.mean([m["test"] for m in members], 0)
        paper = PAPER[model] if network == "paper" and not by_patient else None
        rows.append(_row(label, f"{where}, mean of {len(members)}", target, average, paper))
        key = f"{label}, {where}"
        numbers[key] = {
            "log_scores": single,
            "aucs": aucs,
            "best_epochs": [m["best_epoch"] for m in members],
            "seconds_per_epoch": [m["seconds_per_epoch"] for m in members],
            "device": members[0]["device"],
        }
        if not by_patient:
            curves[label] = (target, average)
            if paper is not None:
                claims += _claims(label, rows[-1], paper)
        if model == "M3":
            slopes[key] = [m["draws/beta_1"] for m in members]
            numbers[key] |= {
                "beta_1": [[float(d.mean()), float(d.std())] for d in slopes[key]],
                "khat": [m["khat"] for m in members],
            }
    columns = (
        "model",
        "data",
        "log score (95 %)",
        "AUC (95 %, DeLong)",
        "AUC (95 %, bootstrap)",
        "paper: log score",
        "paper: AUC",
    )
    blocks += [
        Heading("Prediction"),
        Listing("scores", Table(columns, [row[:7] for row in rows]), "On the test part, used once; larger is better."),
        Picture("roc", _roc(curves), "ROC curves on the test part."),
        Picture(
            "calibration",
            _calibration(curves),
            "Calibration on the test part: observed against predicted share, bins of equal size.",
        ),
    ]
    if "M2" in chosen_models():
        shown = {label: draws for label, draws in slopes.items() if "patients" not in label}
        figure = _slopes(results[m2_run(scale, "nuts")], results[m2_run(scale, "full")], shown)
        blocks += [
            Heading("The effect of age"),
            Picture(
                "beta_1",
                figure,
                "Posterior of β₁ in M2 (NUTS and bernflow) and in M3, with the paper's M3 (the paper's Fig. 7).",
            ),
        ]
    for by_patient in (False, True):
        if runs_of := effect_runs(scale, by_patient):
            blocks += _effect(scale, by_patient, results.of(runs_of), numbers, results)
    if groups(scale):
        clocks = {key: found for key, found in numbers.items() if "seconds_per_epoch" in found}
        text = "; ".join(f"{key}: {np.median(found['seconds_per_epoch']):.2f} s" for key, found in clocks.items())
        blocks.append(f"An epoch of training on {next(iter(clocks.values()))['device']}, validation aside: {text}.")
        blocks.append(
            Picture("losses", _losses(scale, results), "Training loss and validation log score over the epochs.")
        )
    blocks += [Heading("Beside the paper"), Listing("claims", claims_table(claims), "Figures on the test part.")]
    return Page("Melanoma: pictures and a table in one model", blocks, numbers)


def _effect(
    scale: str, by_patient: bool, members: list[dict[str, Any]], numbers: dict[str, Any], results: Results
) -> list[Any]:
    """Return the effect of age beside cross-fitted networks, its spread over seeds, and pictures with predictions."""
    where, target = "patients apart" if by_patient else "paper's split", _test_target(scale, by_patient)
    draws = [member["draws/beta_1"].astype(float) for member in members]
    rows: list[list[Any]] = [
        [f"M3, cross-fitted, seed {i}", d.mean(), d.std(), *np.quantile(d, (0.05, 0.95)), m["verdict"]]
        for i, (d, m) in enumerate(zip(draws, members, strict=True))
    ]
    text = ""
    if "M2" in chosen_models():
        alone = results[m2_run(scale, "full")]["draws/beta_1"].astype(float)
        rows.append(["M2, without pictures", alone.mean(), alone.std(), *np.quantile(alone, (0.05, 0.95)), "good"])
        change = float(draws[0].mean() - alone.mean())
        # Both posteriors come from the same rows: taken as independent, the sd is rather too large than too small.
        error = float(np.hypot(draws[0].std(), alone.std()))
        text = f" Beside the pictures, the effect differs by {change:+.2f} ± {error:.2f} from that of M2."
    singles = [m[f"test/{k}"] for m in members for k in range(sum(name.startswith("test/") for name in m))]
    average = np.mean([member["test"] for member in members], 0)
    paired = metrics.paired_difference(target, average, singles[0])
    numbers[f"M3, cross-fitted, {where}"] = {
        "beta_1": [[float(d.mean()), float(d.std())] for d in draws],
        "spread_over_seeds": float(np.std([d.mean() for d in draws])),
        "findings": [m["findings"] for m in members],
        "log_scores_of_single_networks": [float(metrics.log_score(target, p)) for p in singles],
        "log_score_of_the_mean": float(metrics.log_score(target, average)),
        "mean_against_the_first": [paired.estimate, paired.low, paired.high],
        "seconds": [m["seconds"] for m in members],
    }
    columns = ("model", "β₁ mean", "β₁ sd", "5 %", "95 %", "verdict")
    name = "patients" if by_patient else "split"
    data = runs.load_pictures(by_patient)
    shown = data.rows("test")[: settings(scale)["num_rows"]]
    return [
        Heading(f"The effect of age beside cross-fitted networks, {where}"),
        Listing(f"effect_{name}", Table(columns, rows, digits=3), f"Intervals contain the last layers.{text}"),
        f"The mean of all networks minus the first one: {paired} in log score per picture (paired, 95 %).",
        Picture(
            f"pictures_{name}",
            _pictures(
                np.asarray(data.images[shown[_examples(average, target)]]), data.age[shown], members[0], average, target
            ),
            "Test pictures from low to high risk: age, outcome, probability, and its 90 % interval.",
        ),
    ]


def _examples(probability: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return three pictures without and three with a melanoma, at spread-out ranks of risk."""
    chosen = []
    for outcome in (0, 1):
        own = np.flatnonzero(target == outcome)
        own = own[np.argsort(probability[own])]
        chosen += [own[int(share * (len(own) - 1))] for share in (0.1, 0.5, 0.95)] if len(own) else []
    return np.array(sorted(chosen, key=lambda row: probability[row]), int)


def _pictures(
    images: np.ndarray, ages: np.ndarray, member: dict[str, Any], average: np.ndarray, target: np.ndarray
) -> Figure:
    rows = _examples(average, target)
    figure = new_figure(1.6 * len(rows), 2.3)
    for axes, row, image in zip(new_axes(figure, 1, len(rows))[0], rows, images, strict=True):
        axes.imshow(image)
        axes.set_axis_off()
        low, high = 1 / (1 + np.exp(-member["linear"][row, 1:]))
        outcome = "melanoma" if target[row] else "benign"
        axes.set_title(
            f"{ages[row]:.0f} years, {outcome}\n{member['test'][row]:.1%} ({low:.1%}, {high:.1%})", fontsize=7
        )
    return figure


def _row(
    model: str, data: str, target: np.ndarray, probability: np.ndarray, paper: tuple[float, float] | None
) -> tuple:
    resampled = metrics.bootstrap(target, probability, seed=0)
    delong = metrics.delong(target, probability)
    log_score = metrics.log_score(target, probability)
    published = (None, None) if paper is None else paper
    return (
        model,
        data,
        f"{log_score:.4f} ({resampled['log_score'].low:.4f}, {resampled['log_score'].high:.4f})",
        f"{delong.estimate:.3f} ({delong.low:.3f}, {delong.high:.3f})",
        f"({resampled['auc'].low:.3f}, {resampled['auc'].high:.3f})",
        *published,
        log_score,
        delong.estimate,
    )


def _claims(label: str, row: tuple, paper: tuple[float, float]) -> list[Claim]:
    return [
        Claim(f"{label}: log score", paper[0], row[7], unit_better="larger", tolerance=0.0002),
        Claim(f"{label}: AUC", paper[1], row[8], unit_better="larger", tolerance=0.005),
    ]


def _m2_comparison(found: dict[str, Any]) -> tuple[Table, list[Claim]]:
    published = load_m2_draws()
    nuts = found["nuts"]
    sources = {label: found[method] for method, label in M2_METHODS.items()}
    rows = []
    for label, result in sources.items():
        cells: list[Any] = [label]
        for name in ("beta_1", "mu_0"):
            draws, reference = result[f"draws/{name}"].astype(float), nuts[f"draws/{name}"].astype(float)
            cells += [
                float(draws.mean()),
                float(draws.std()),
                float(draws.mean() / reference.mean() - 1),
                float(draws.std() / reference.std() - 1),
            ]
        rows.append([*cells, float(result["log_score"])])
    beta, mu = np.asarray(published.beta, float), np.asarray(published.beta0, float)
    rows.append(
        [
            "NUTS of the paper",
            float(beta.mean()),
            float(beta.std()),
            None,
            None,
            float(mu.mean()),
            float(mu.std()),
            None,
            None,
            PAPER["M2"][0],
        ]
    )
    columns = (
        "method",
        "β₁ mean",
        "β₁ sd",
        "mean against NUTS",
        "sd against NUTS",
        "μ₀ mean",
        "μ₀ sd",
        "mean against NUTS ",
        "sd against NUTS ",
        "test log score",
    )
    claims = [
        Claim(
            "M2: log score", PAPER["M2"][0], float(found["full"]["log_score"]), unit_better="larger", tolerance=0.0002
        )
    ]
    return Table(columns, rows, digits=4), claims


def _test_target(scale: str, by_patient: bool) -> np.ndarray:
    data = runs.load_pictures(by_patient)
    return np.asarray(data.target[data.rows("test")[: settings(scale)["num_rows"]]])


def _colors(names: list[str]) -> dict[str, str]:
    return dict(zip(names, ("#009E73", "#D55E00", "#0072B2", "#CC79A7", "#E69F00", "#56B4E9"), strict=False))


def _roc(curves: dict[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    figure = new_figure(4.2, 4.0)
    axes = new_axes(figure, 1, 1)[0, 0]
    colors = _colors(list(curves))
    for label, (target, probability) in curves.items():
        curve = metrics.roc_curve(target, probability)
        text = f"{label}: AUC {metrics.auc(target, probability):.3f}"
        axes.plot(curve.false_positive, curve.true_positive, color=colors[label], linewidth=1.4, label=text)
    axes.plot([0, 1], [0, 1], color="#9A9A9A", linewidth=0.8, linestyle=":")
    axes.set(xlabel="false positive rate", ylabel="true positive rate", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.legend(fontsize=8, loc="lower right")
    return figure


def _calibration(curves: dict[str, tuple[np.ndarray, np.ndarray]]) -> Figure:
    figure = new_figure(4.2, 3.8)
    axes = new_axes(figure, 1, 1)[0, 0]
    colors = _colors(list(curves))
    smallest = 1.0
    for label, (target, probability) in curves.items():
        curve = metrics.calibration_curve(target, probability)
        # A bin without a melanoma has no place on a log scale.
        shown = curve.observed > 0
        axes.plot(
            curve.predicted[shown],
            curve.observed[shown],
            "o-",
            color=colors[label],
            markersize=4,
            linewidth=1.0,
            label=label,
        )
        if shown.any():
            smallest = min(smallest, float(curve.predicted[shown].min()), float(curve.observed[shown].min()))
    line = np.array([smallest / 2, 0.5])
    axes.plot(line, line, color="#9A9A9A", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", yscale="log", xlabel="predicted probability", ylabel="observed share")
    axes.legend(fontsize=8)
    return figure


def _slopes(nuts: dict, fitted: dict, slopes: dict[str, list[np.ndarray]]) -> Figure:
    figure = new_figure(6.4, 3.2)
    axes = new_axes(figure, 1, 1)[0, 0]
    grid, density, *_ = estimate_density(nuts["draws/beta_1"].astype(float))
    axes.fill_between(grid, density, color="#D8D8D8", linewidth=0, label="M2, NUTS")
    grid, density, *_ = estimate_density(fitted["draws/beta_1"].astype(float))
    axes.plot(grid, density, color=METHODS["bernflow"].color, linewidth=1.5, label="M2, bernflow")
    published = load_m3_density()
    axes.plot(published.x, published.density, color=TRUTH, linewidth=1.2, linestyle=(0, (4, 2)), label="M3, the paper")
    for (label, members), color in zip(slopes.items(), ("#D55E00", "#CC79A7"), strict=False):
        for draws in members:
            axes.plot(*estimate_density(draws.astype(float))[:2], color=color, linewidth=0.7, alpha=0.7)
        pooled = estimate_density(np.concatenate(members).astype(float))
        axes.plot(*pooled[:2], color=color, linewidth=2.0, label=f"{label}: {len(members)} runs, pooled")
    axes.set(xlabel="β₁ (standardized age)", ylabel="density")
    axes.set_ylim(bottom=0.0)
    axes.legend(fontsize=8)
    return figure


def _losses(scale: str, results: Results) -> Figure:
    figure = new_figure(7.0, 2.9)
    left, right = new_axes(figure, 1, 2)[0]
    names = [group for group in groups(scale) if not group[2]]
    colors = _colors([f"{m} {n}" for m, n, _ in names])
    for model, network, by_patient in names:
        for number, run in enumerate(results.of(ensemble(scale, model, network, by_patient))):
            epochs = np.arange(1, len(run["valid_scores"]) + 1)
            steps = run["loss_steps"] / run["loss_steps"][-1] * epochs[-1] if "loss_steps" in run else epochs
            look = {"color": colors[f"{model} {network}"], "linewidth": 1.0}
            left.plot(steps, run["losses"], **look)
            right.plot(
                epochs, run["valid_scores"], label=f"{model}, {network} network" if number == 0 else None, **look
            )
    left.set(xlabel="epoch", ylabel="training loss per picture", ylim=(0.0, 0.15))
    right.set(xlabel="epoch", ylabel="validation log score", ylim=(-0.15, -0.06))
    right.legend(fontsize=8)
    return figure


EXPERIMENT = Experiment(
    "melanoma",
    "Melanoma",
    "pictures and age in one model (M1, M2, M3): scores, posterior of the effect of age",
    tasks,
    present,
    command="melanoma --data DIR",
)
