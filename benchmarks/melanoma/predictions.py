"""What every model predicts for the test part, its scores, and paired comparisons."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.melanoma import metrics, plan, runs
from benchmarks.melanoma.tables import load_m2
from benchmarks.study.plan import Results
from benchmarks.study.tables import Claim, Table

# The paper's figures on the test part: log score, AUC. Its M1 is the mean of three networks, its M3 one network.
PAPER = {"M1": (-0.0764, 0.83), "M2": (-0.0850, 0.66), "M3": (-0.0761, 0.82)}
SPLITS = {False: "paper's split", True: "patients apart"}
# Comparisons: two names each, the first minus the second.
PAIRS = (
    ("M1, mean of 3", "M1, one network"),
    ("M3, mean of 3", "M3, one network"),
    ("M3, one network", "M1, one network"),
    ("M3, mean of 3", "M1, mean of 3"),
    ("M3, mean of 3", "M2"),
    ("M3, default posterior", "M1, default posterior"),
    ("M3, default posterior", "M3, default posterior, one network"),
    ("M3, default posterior", "M3, one network"),
    ("M3, default posterior, 5 networks", "M3, default posterior"),
    ("M3, better network, mean of 3", "M3, mean of 3"),
)
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Prediction:
    """Probabilities of a melanoma for the pictures of the test part.

    Attributes:
        name: of the model.
        by_patient: which split.
        probability: of a melanoma (N,).
        repeats: the same from every seed, this one included.
        paper: log score and AUC of the paper, if it has this model.
    """

    name: str
    by_patient: bool
    probability: np.ndarray
    repeats: Sequence[np.ndarray]
    paper: tuple[float, float] | None = None


@dataclass(frozen=True)
class Part:
    """Outcome and patient of the pictures of the test part."""

    target: np.ndarray
    patient: np.ndarray | None


def load_part(scale: str, by_patient: bool) -> Part:
    """Return the test part of a split."""
    data = runs.load_pictures(by_patient)
    rows = data.rows("test")[: plan.settings(scale)["num_rows"]]
    return Part(np.asarray(data.target[rows]), np.asarray(data.patient_id[rows]))


def collect(scale: str, results: Results) -> list[Prediction]:
    """Return all predictions, single networks before their means."""
    found = []
    if "M2" in plan.chosen_models():
        # Beside a run on fewer pictures, M2 is scored on the same rows.
        num = plan.settings(scale)["num_rows"] if plan.groups(scale) else None
        probability = results[plan.m2_run(scale, "full")]["test"][:num]
        found.append(Prediction("M2", False, probability, [probability], PAPER["M2"]))
    for model, network, by_patient in plan.groups(scale):
        members = [member["test"] for member in results.of(plan.ensemble(scale, model, network, by_patient))]
        name = model if network == "paper" else f"{model}, better network"
        papers = PAPER[model] if network == "paper" and not by_patient else None
        single, mean = (papers, None) if model == "M3" else (None, papers)
        found.append(Prediction(f"{name}, one network", by_patient, members[0], members, single))
        average = np.mean(members, 0)
        found.append(Prediction(f"{name}, mean of {len(members)}", by_patient, average, [average], mean))
    for by_patient in SPLITS:
        for model in ("M1", "M3"):
            for networks in (plan.DEFAULT_NETWORKS, plan.MORE_NETWORKS):
                fits = results.of(plan.crossfitted_runs(scale, model, by_patient, networks))
                if fits:
                    found += _crossfitted(model, by_patient, fits, networks)
    return sorted(found, key=lambda each: each.by_patient)


def _crossfitted(model: str, by_patient: bool, fits: list[dict], networks: int) -> list[Prediction]:
    more = "" if networks == plan.DEFAULT_NETWORKS else f", {networks} networks"
    singles = [fit[f"test/{k}"] for fit in fits for k in range(networks)]
    means = [fit["test"] for fit in fits]
    name = f"{model}, default posterior"
    found = [] if more else [Prediction(f"{name}, one network", by_patient, singles[0], singles)]
    return [*found, Prediction(f"{name}{more}", by_patient, means[0], means)]


def scores_table(predictions: Sequence[Prediction], parts: dict[bool, Part]) -> tuple[Table, list[Claim]]:
    """Return scores with intervals beside the paper's, and the claims that follow from them."""
    rows, claims = [], []
    for each in predictions:
        part = parts[each.by_patient]
        target, probability = part.target, each.probability
        resampled = metrics.bootstrap(target, probability, seed=0, groups=part.patient)
        delong, score = metrics.delong(target, probability), resampled["log_score"]
        spread: list[str] = ["", ""]
        if len(each.repeats) > 1:
            scores = [metrics.log_score(target, repeat) for repeat in each.repeats]
            aucs = [metrics.auc(target, repeat) for repeat in each.repeats]
            spread = [f"{min(scores):.4f} to {max(scores):.4f}", f"{min(aucs):.3f} to {max(aucs):.3f}"]
        rows.append(
            [
                each.name,
                "ages alone" if each.name == "M2" else SPLITS[each.by_patient],
                f"{score.estimate:.4f} ({score.low:.4f}, {score.high:.4f})",
                f"{delong.estimate:.3f} ({delong.low:.3f}, {delong.high:.3f})",
                f"({resampled['auc'].low:.3f}, {resampled['auc'].high:.3f})",
                *spread,
                *(each.paper or (None, None)),
            ]
        )
        if each.paper:
            claims += _claims(each, score, delong)
    columns = (
        "model",
        "data",
        "log score (95 %)",
        "AUC (95 %, DeLong)",
        "AUC (95 %, patients resampled)",
        "all seeds: log score",
        "all seeds: AUC",
        "paper: log score",
        "paper: AUC",
    )
    return Table(columns, rows), claims


def _claims(each: Prediction, score: metrics.Interval, auc: metrics.Interval) -> list[Claim]:
    """Return claims: only a difference beyond the half width of our interval counts as one."""
    assert each.paper is not None
    note = "within our 95 % interval; a paired test would need the paper's predictions"
    claims = []
    for what, published, ours in zip(("log score", "AUC"), each.paper, (score, auc), strict=True):
        inside = ours.low <= published <= ours.high
        half = max(ours.high - ours.estimate, ours.estimate - ours.low)
        claims.append(
            Claim(
                f"{each.name}: {what}",
                published,
                ours.estimate,
                unit_better="larger",
                tolerance=half,
                note=note if inside else "",
            )
        )
    return claims


def comparisons(predictions: Sequence[Prediction], parts: dict[bool, Part]) -> tuple[Table, list[dict]]:
    """Return paired differences of log score and AUC, adjusted for the number of tests, and the same as numbers."""
    by_name = {(each.name, each.by_patient): each.probability for each in predictions}
    found = []
    for by_patient, where in SPLITS.items():
        for one, other in PAIRS:
            if (one, by_patient) not in by_name or (other, by_patient) not in by_name:
                continue
            first, second = by_name[one, by_patient], by_name[other, by_patient]
            part = parts[by_patient]
            tests = {
                "log score": metrics.paired_difference(part.target, first, second, part.patient),
                "AUC": metrics.auc_difference(part.target, first, second, part.patient),
            }
            found += [(where, one, other, what, test) for what, test in tests.items()]
    adjusted = metrics.adjust([test.p_value for *_, test in found])
    rows: list[list] = []
    numbers = []
    for (where, one, other, what, test), p_value in zip(found, adjusted, strict=True):
        conclusion = "no difference shown"
        if p_value < SIGNIFICANT:
            conclusion = f"{one if test.estimate > 0 else other} is better"
        interval = f"{test.estimate:+.4f} ({test.low:+.4f}, {test.high:+.4f})"
        rows.append([where, f"{one} minus {other}", what, interval, test.p_value, p_value, conclusion])
        numbers.append({"split": where, "one": one, "other": other, "measure": what, **test._asdict()})
    columns = ("data", "comparison", "measure", "difference (95 %)", "p", "p, adjusted", "conclusion")
    return Table(columns, rows, digits=2), numbers


def parts_of(scale: str, predictions: Sequence[Prediction]) -> dict[bool, Part]:
    """Return the test parts behind predictions; without pictures, that of the table of ages."""
    if not plan.groups(scale):
        return {False: Part(load_m2()[1].target, None)}
    return {by_patient: load_part(scale, by_patient) for by_patient in {each.by_patient for each in predictions}}
