"""Melanoma: pictures by a network, age by a coefficient with a posterior, trained together."""

import os
from typing import Any

import numpy as np
from scipy.special import expit

from benchmarks.melanoma import effects, figures, plan, predictions, runs
from benchmarks.melanoma.tables import load_m2_draws
from benchmarks.study.page import Heading, Listing, Page, Picture
from benchmarks.study.plan import Experiment, Result, Results
from benchmarks.study.tables import Table, claims_table

INTRODUCTION = (
    "33,126 pictures of skin lesions (ISIC 2020), 1.8 % of them melanomas. M1: a convolutional network on the "
    "pictures, h = μ(B). M2: logistic regression on age, h = μ₀ + β₁ x. M3: both, h = μ(B) + β₁ x. The priors of M2 "
    "and M3 are N(0, 1), as in the authors' program."
)
POSTERIORS = (
    "M3 has two kinds of posterior. In the paper's, called “network” below, the weights are trained together with a "
    "posterior of β₁, which is conditional on the trained network. The default posterior of `bf.SemiStructured` has "
    "two networks, each trained on half of the patients and used on the other half, with their last layers in the "
    "posterior beside β₁. M1 with the default posterior is the same without the effect of age."
)
COMPARED = (
    "Each difference is between two predictions of the same pictures, with patients as the independent units; the "
    "AUCs by DeLong's method. The p-values are adjusted for their number (Holm). The paper's predictions are not "
    "published, so they cannot be compared in this way."
)
COLLAPSING = (
    "A logit coefficient becomes larger, not smaller, beside a predictor that is independent of it. A smaller one "
    "means that the pictures show part of what the age tells. The paired standard deviation contains the correlation "
    "of the two estimates, from the same rows, with patients as the independent units. What the networks have not "
    "learned makes both effects smaller, that without pictures more, so it cannot be the reason for the difference."
)
# Curves of the figures, if these models were run.
SHOWN = ("M2", "M1, mean of 3", "M3, mean of 3", "M3, default posterior")


def present(scale: str, results: Results) -> Page:
    """Make the page."""
    numbers: dict[str, Any] = {}
    found = predictions.collect(scale, results)
    parts = predictions.parts_of(scale, found)
    scores, claims = predictions.scores_table(found, parts)
    blocks: list[Any] = [INTRODUCTION, *_what_was_run(scale), Heading("Prediction")]
    blocks += [Listing("scores", scores, "On the test part, used once; larger is better.")]
    blocks += _comparisons(found, parts, numbers)
    if "M2" in plan.chosen_models():
        blocks += _m2(scale, results, numbers)
    blocks += _effect(scale, results, numbers)
    for by_patient in predictions.SPLITS:
        fits = results.of(plan.crossfitted_runs(scale, "M3", by_patient))
        if fits:
            blocks += _examples(scale, by_patient, fits[0])
    blocks += _training(scale, results, numbers)
    blocks += [Heading("Beside the paper"), Listing("claims", claims_table(claims), "Figures on the test part.")]
    return Page("Melanoma: pictures and a table in one model", blocks, numbers)


def _what_was_run(scale: str) -> list[str]:
    chosen = plan.settings(scale)
    if not plan.groups(scale):
        return [f"M1 and M3 were not run. {runs.WHERE_THE_PICTURES_ARE}"]
    if chosen["num_rows"] is None:
        return [POSTERIORS]
    return [
        POSTERIORS,
        f"A smaller run: {chosen['num_rows']:,} pictures of each part, {chosen['epochs']} epochs, {chosen['seeds']} "
        f"seed, batches of {chosen['batch_size']}.",
    ]


def _comparisons(
    found: list[predictions.Prediction], parts: dict[bool, predictions.Part], numbers: dict[str, Any]
) -> list[Any]:
    """Return ROC curves, calibration and paired comparisons."""
    curves = {
        each.name: (parts[False].target, each.probability)
        for name in SHOWN
        for each in found
        if each.name == name and not each.by_patient
    }
    blocks: list[Any] = [
        Picture("roc", figures.draw_roc(curves), "ROC curves on the test part, paper's split."),
        Picture(
            "calibration",
            figures.draw_calibration(curves),
            "Calibration on the test part, paper's split: observed share in ten bins of equal size with 95 % "
            "intervals; an open triangle is the upper end for a bin without a melanoma.",
        ),
    ]
    paired, compared = predictions.comparisons(found, parts)
    if compared:
        numbers["comparisons"] = compared
        blocks += [Heading("Which differences are real"), COMPARED, Listing("paired", paired, "Paired differences.")]
    return blocks


def _m2(scale: str, results: Results, numbers: dict[str, Any]) -> list[Any]:
    """Return M2 against NUTS."""
    found = {method: results[plan.m2_run(scale, method)] for method in plan.M2_METHODS}
    numbers["m2"] = {m: {k: v for k, v in r.items() if not isinstance(v, np.ndarray)} for m, r in found.items()}
    return [
        Heading("M2 against NUTS"),
        Listing("m2", _m2_table(found), "Posterior of β₁ and μ₀ in M2; the paper's draws come from its own NUTS run."),
    ]


def _m2_table(found: dict[str, Result]) -> Table:
    published, nuts = load_m2_draws(), found["nuts"]
    rows = []
    for method, label in plan.M2_METHODS.items():
        cells: list[Any] = [label]
        for name in ("beta_1", "mu_0"):
            draws, reference = (each[f"draws/{name}"].astype(float) for each in (found[method], nuts))
            cells += [draws.mean(), draws.std(), draws.mean() / reference.mean() - 1, draws.std() / reference.std() - 1]
        rows.append([*cells, float(found[method]["log_score"]), found[method].get("khat")])
    paper: list[Any] = ["NUTS of the paper"]
    for draws, name in ((published.beta, "beta_1"), (published.beta0, "mu_0")):
        reference = nuts[f"draws/{name}"].astype(float)
        paper += [draws.mean(), draws.std(), draws.mean() / reference.mean() - 1, draws.std() / reference.std() - 1]
    rows.append([*paper, predictions.PAPER["M2"][0], None])
    columns = ["method"]
    for name in ("β₁", "μ₀"):
        columns += [f"{name} mean", f"{name} sd", f"{name} mean against NUTS", f"{name} sd against NUTS"]
    return Table([*columns, "test log score", "k-hat"], rows, digits=4)


def _effect(scale: str, results: Results, numbers: dict[str, Any]) -> list[Any]:
    """Return the posteriors of the effect of age, and its change beside the pictures."""
    slopes = effects.slopes(scale, results)
    if not slopes:
        return []
    numbers["beta_1"] = {slope.name: slope._asdict() for slope in slopes}
    blocks: list[Any] = [
        Heading("The effect of age"),
        Picture(
            "beta_1",
            figures.draw_slopes(slopes),
            "Mean and 90 % interval of β₁ in M2 and M3 (the paper's Fig. 7). Thick lines pool the seeds, so that they "
            "contain the spread over networks.",
        ),
        Listing(
            "beta_1",
            effects.slopes_table(slopes),
            "Posteriors of β₁; intervals of 90 %. Where nearly all draws are "
            "effective, the weights are nearly equal and k-hat is not informative.",
        ),
    ]
    changes = effects.effects(scale, results)
    if changes:
        numbers["change"] = {change.name: change._asdict() for change in changes}
        blocks += [
            Heading("Is the effect of age smaller beside the pictures?"),
            COLLAPSING,
            Listing("change", effects.effects_table(changes), "The effect of age with and without the pictures."),
        ]
    for by_patient, where in predictions.SPLITS.items():
        fits = results.of(plan.crossfitted_runs(scale, "M3", by_patient))
        if not fits:
            continue
        findings = list(dict.fromkeys(finding for fit in fits for finding in fit["findings"]))
        numbers[f"M3, default posterior, {where}"] = {
            "beta_1": [[float(np.mean(f["draws/beta_1"])), float(np.std(f["draws/beta_1"]))] for f in fits],
            "khat": [fit["khat"] for fit in fits],
            "best_epochs": [fit["best_epochs"] for fit in fits],
            "seconds": [fit["seconds"] for fit in fits],
            "findings": findings,
        }
        if findings:
            blocks.append(f"Findings of the default posterior, {where}: {' '.join(findings)}")
    return blocks


def _examples(scale: str, by_patient: bool, fit: Result) -> list[Any]:
    """Return test pictures with their predictions."""
    data, where = runs.load_pictures(by_patient), predictions.SPLITS[by_patient]
    rows = data.rows("test")[: plan.settings(scale)["num_rows"]]
    target, probability = data.target[rows], fit["test"]
    chosen = figures.choose_pictures(probability, target)
    linear, images = fit["linear"].astype(float), fit["images"].astype(float)
    # The part of the age, beside the average contribution of a picture.
    by_age = linear[:, 0] - images[:, 0] + images[:, 0].mean()
    parts = {
        "probability": probability[chosen],
        "low": expit(linear[chosen, 1]),
        "high": expit(linear[chosen, 2]),
        "by_age": expit(by_age[chosen]),
    }
    share = images[chosen, 0] - images[:, 0].mean()
    name = "patients" if by_patient else "split"
    columns = ("picture", "age", "outcome", "by age", "with the picture", "90 %", "picture's share of the logit")
    table = [
        [
            str(data.image_name[rows[row]]),
            f"{data.age[rows[row]]:.0f}",
            "melanoma" if target[row] else "benign",
            *(f"{parts[part][i]:.2%}" for part in ("by_age", "probability")),
            f"{parts['low'][i]:.2%} to {parts['high'][i]:.2%}",
            f"{share[i]:+.2f}",
        ]
        for i, row in enumerate(chosen)
    ]
    caption = (
        "Test pictures from low to high risk: the 10th, 50th and 95th percentile of risk among benign lesions and "
        "among melanomas. By age: the probability at this age with an average picture."
    )
    blocks: list[Any] = [
        Heading(f"What the pictures add, {where}"),
        Listing(f"examples_{name}", Table(columns, table), caption),
    ]
    if os.environ.get(plan.PHOTOS_VARIABLE):
        shown = np.asarray(data.images[rows[chosen]])
        figure = figures.draw_pictures(shown, data.age[rows[chosen]], target[chosen], parts)
        blocks.append(Picture(f"pictures_{name}", figure, f"{caption} ISIC 2020, CC BY-NC 4.0."))
    return blocks


def _training(scale: str, results: Results, numbers: dict[str, Any]) -> list[Any]:
    """Return how long training takes, and its curves."""
    groups = plan.groups(scale)
    if not groups:
        return []
    clocks, curves = [], {}
    members: list[Result] = []
    for model, network, by_patient in groups:
        members = results.of(plan.ensemble(scale, model, network, by_patient))
        where = predictions.SPLITS[by_patient]
        name = f"{model}{'' if network == 'paper' else ', better network'}"
        numbers[f"{name}, {where}"] = {
            "best_epochs": [member["best_epoch"] for member in members],
            "seconds_per_epoch": [member["seconds_per_epoch"] for member in members],
            "device": members[0]["device"],
        }
        clocks.append(f"{name}, {where}: {np.median([m['seconds_per_epoch'] for m in members]):.2f} s")
        if not by_patient:
            curves[name] = members
    jobs = max(member.get("jobs", 1) for member in members)
    together = f", {jobs} runs at once" if jobs > 1 else ""
    return [
        Heading("Training"),
        f"An epoch of training on {members[0]['device']}{together}, validation aside: {'; '.join(clocks)}.",
        Picture("losses", figures.draw_losses(curves), "Training loss and validation log score over the epochs."),
    ]


EXPERIMENT = Experiment(
    "melanoma",
    "Melanoma",
    "pictures and age in one model (M1, M2, M3): scores, posterior of the effect of age",
    plan.tasks,
    present,
    command="melanoma --data DIR",
)
