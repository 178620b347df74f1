"""How our figures stand to those of the paper, one function per kind of claim."""

import json
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.points import finding
from benchmarks.points.finding import NOT_MEASURED, NOT_REPRODUCED, REPRODUCED, Found, claim, numbers, shown, summary
from benchmarks.study.records import load_records
from benchmarks.study.tables import number
from benchmarks.targets import BENCHMARKS

# The paper gives log scores without an interval: the standard error of a mean over 6,626 pictures of which 2 % are
# malignant, with a loss of about 3.5 each.
SCORE_ERROR = 0.006


def khat(name: str, target: str, method: str = "paper") -> Callable[[], Found]:
    """Compare a k-hat with the paper's, which has an interval for its own method."""

    def compare() -> Found:
        by_method = summary(name, target if name in ("eight-schools", "khat-table") else None)
        if method not in by_method:
            return Found(NOT_MEASURED, NOT_MEASURED)
        ours, paper = by_method[method], BENCHMARKS[target].paper
        low, high = float(ours["khat_low"]), float(ours["khat_high"])
        near = low <= paper["khat_interval"][1] and paper["khat_interval"][0] <= high
        text = f"recipe {ours['khat_text']}; KL {shown(ours['kl_median'])}"
        if "bernflow" in by_method:
            text += f". bernflow {by_method['bernflow']['khat_text']}; KL {shown(by_method['bernflow']['kl_median'])}"
        if not near:
            return Found(text, NOT_REPRODUCED)
        return Found(text, f"{REPRODUCED}: the 90 % intervals overlap")

    return compare


def best_of(name: str, target: str, winner: str, losers: Sequence[str]) -> Callable[[], Found]:
    """Say whether one method has a smaller k-hat than others, as the paper claims."""

    def compare() -> Found:
        by_method = summary(name, target if name in ("eight-schools", "khat-table") else None)
        if any(m not in by_method for m in (winner, *losers)):
            return Found(NOT_MEASURED, NOT_MEASURED)
        values = {m: float(by_method[m]["khat"]) for m in (winner, *losers)}
        text = ", ".join(f"{m} {number(v)}" for m, v in values.items())
        return Found(f"k-hat: {text}", REPRODUCED if min(values, key=values.__getitem__) == winner else NOT_REPRODUCED)

    return compare


def bernoulli_over_order() -> Found:
    """Say how the KL falls with the order."""
    found = numbers("bernoulli")
    if not found:
        return Found(NOT_MEASURED, NOT_MEASURED)
    medians = [float(np.median(values)) for values in found["kl"]["paper"]]
    orders, slope = found["orders"], found["slopes"]["paper"]
    ends = f"KL {number(medians[0])} at M = {orders[0]}, {number(medians[-1])} at M = {orders[-1]}"
    text = f"recipe: {ends}, slope {slope:.2f}"
    # "Does not deteriorate": the largest order is not much worse than the best one.
    holds = medians[-1] <= 2.0 * min(medians) and slope <= -1.0
    return Found(text, REPRODUCED if holds else NOT_REPRODUCED)


def gaussian_fails(name: str, limit: float) -> Callable[[], Found]:
    """Say how far the Gaussian is from a posterior that it cannot fit."""

    def compare() -> Found:
        value = numbers(name).get("kl_gaussian")
        if value is None:
            return Found(NOT_MEASURED, NOT_MEASURED)
        return Found(f"KL {number(value)}", REPRODUCED if value > limit else NOT_REPRODUCED)

    return compare


def cauchy_ablation() -> Found:
    """Compare the three transformations over the orders with the paper's own medians."""
    found = numbers("cauchy")
    path = finding.ROOT / "benchmarks" / "data" / "paper_cauchy_kl.json"
    if not found:
        return Found(NOT_MEASURED, NOT_MEASURED)
    paper = json.loads(path.read_text(encoding="utf-8"))
    near = total = 0
    for name in ("f1", "f2", "f3"):
        for order, values in zip(found["orders"], found["kl"][name], strict=True):
            theirs = paper.get(name, {}).get(str(order))
            if theirs:
                total += 1
                near += 0.5 <= float(np.median(values)) / float(np.median(theirs)) <= 2.0
    verdict = REPRODUCED if near == total else f"{near} of {total} points are {REPRODUCED}"
    return Found(f"{near} of {total} medians within a factor of 2", verdict)


def network_bands() -> Found:
    """Say whether BF-VI predicts better than the mean field on the network regression."""
    found = numbers("nn-regression").get("distances", {})
    if "paper" not in found or "gaussian" not in found:
        return Found(NOT_MEASURED, NOT_MEASURED)
    recipe, gaussian, ours = (float(np.median(found[m])) for m in ("paper", "gaussian", "bernflow"))
    text = f"distance of the bands to NUTS: recipe {recipe:.3f}, mean field {gaussian:.3f}; bernflow {ours:.3f}"
    return Found(text, REPRODUCED if recipe < gaussian else NOT_REPRODUCED)


def outer_affine() -> Found:
    """Say what a full-rank map behind the polynomial is worth."""
    found = numbers("additions").get("diamonds", {})
    if not found:
        return Found(NOT_MEASURED, NOT_MEASURED)
    with_it, without = found["bernstein"]["loss"], found["bernstein:no-outer"]["loss"]
    return Found(
        f"diamonds: KL {number(with_it)} with it, {number(without)} without",
        "differs because in several dimensions it carries the correlations",
    )


def table_two() -> Found:
    """Compare the flows of the literature with Table II."""
    parts, near, total = [], 0, 0
    for target in ("diamonds", "eight-schools-centered", "eight-schools-noncentered"):
        by_method = summary("khat-table", target)
        for method, name in (("realnvp", "khat_nvp"), ("planar", "khat_planar")):
            if method in by_method:
                ours, paper = float(by_method[method]["khat"]), float(BENCHMARKS[target].paper[name])
                total += 1
                near += abs(ours - paper) <= 0.15 or ours == paper
                parts.append(f"{method}, {target}: {number(ours)} (published {number(paper)})")
    if not parts:
        return Found(NOT_MEASURED, NOT_MEASURED)
    verdict = f"{near} of {total} agree; the others differ because implementation, start and training are other ones"
    return Found("; ".join(parts), verdict)


def score_of(quantity: str, paper: float, tolerance: float = SCORE_ERROR) -> Callable[[], Found]:
    """Compare a score of the melanoma models; a difference within its error is none."""

    def compare() -> Found:
        ours = claim("melanoma", quantity)
        if ours is None:
            return Found(NOT_MEASURED, NOT_MEASURED)
        side = "higher" if ours > paper else "lower"
        return Found(shown(ours), REPRODUCED if abs(ours - paper) <= tolerance else f"differs: {side}")

    return compare


def better_than_gaussian(name: str, quantity: str) -> Callable[[], Found]:
    """Say whether the recipe is far better than a Gaussian on a posterior that is none."""

    def compare() -> Found:
        recipe, gaussian = claim(name, quantity, "paper's recipe, run here"), numbers(name).get("kl_gaussian")
        if recipe is None or gaussian is None:
            return Found(NOT_MEASURED, NOT_MEASURED)
        text = f"{quantity}: recipe {number(recipe)}, Gaussian {number(gaussian)}"
        return Found(text, REPRODUCED if recipe < 0.1 * gaussian else NOT_REPRODUCED)

    return compare


def steps_per_second() -> Found:
    """Compare steps per second at the paper's setting, on the CPU of the page."""
    records = [
        r for r in load_records(finding.RESULTS / "speed" / "speed.json") if r["part"] == "steps" and "seconds" in r
    ]
    subjects = {"bernstein-paper": "bernflow", "TFP, published": "the paper's way in TensorFlow"}
    found = {
        label: [1.0 / r["seconds"] for r in records if r["subject"] == subject] for subject, label in subjects.items()
    }
    if not all(found.values()):
        return Found(NOT_MEASURED, NOT_MEASURED)
    text = ", ".join(f"{label} {np.median(values):,.0f}" for label, values in found.items())
    return Found(f"{text} on two cores", "another machine")
