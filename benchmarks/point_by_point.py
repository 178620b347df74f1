"""The page "The paper, point by point", and the table of what bernflow changes: `python -m benchmarks.point_by_point`.

Every equation, claim, figure and table of the paper stands there with our place in the code, the paper's figure, what
the authors' published files say, and ours. Our figures are read from the records in results/; nothing is typed in.
"""

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.study.records import load_records
from benchmarks.study.tables import number
from benchmarks.study.writing import write_whole
from benchmarks.targets import BENCHMARKS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGE = ROOT / "docs" / "explanation" / "point-by-point.md"
DIFFERENCES = ROOT / "docs" / "explanation" / "differences-from-the-paper.md"
START, END = "<!-- figures:start -->", "<!-- figures:end -->"
SOURCE = "../../src/bernflow"
NOT_MEASURED = "not measured"
REPRODUCED, NOT_REPRODUCED = "reproduced", "not reproduced"
# KL of the five repetitions in the files of draws that the authors published, read from them by their log weights.
FILES = {
    "diamonds": "KL about 226 to 254",
    "eight-schools-centered": "KL 0.3 to 0.7",
    "eight-schools-noncentered": "",
    "toy-regression": "KL 0.12 to 0.28",
}
INTRODUCTION = """\
# The paper, point by point

Where is each equation, claim, figure and table of *Bernstein flows for flexible posteriors in variational Bayes*, what
do the paper and the files that its authors published say, and what do we get? "Recipe" is the paper's own method as
published (`family="bernstein-paper"`), "text" its variant by the text of the paper, and "bernflow" the default.
"Reproduced" means that our runs of the recipe agree with the paper within its own interval, or that the claim holds for
them. Every figure of ours is read from the page that its row links to, which says when and from which commit it was
measured; `make results-check` names those that are older than the code.
"""
# The paper gives log scores without an interval: the standard error of a mean over 6,626 pictures of which 2 % are
# malignant, with a loss of about 3.5 each.
SCORE_ERROR = 0.006


@dataclass(frozen=True)
class Found:
    """What we get: a text, and how it stands to the paper."""

    ours: str
    verdict: str


@dataclass(frozen=True)
class Point:
    """One point of the paper.

    Attributes:
        where: equation, section, figure or table.
        says: what the paper says.
        place: our place in the code, or the page of the experiment.
        found: what we get.
        paper: the paper's figure.
        files: what the authors' files say, where they exist.
    """

    where: str
    says: str
    place: str
    found: Callable[[], Found]
    paper: str = ""
    files: str = ""


def stated(ours: str, verdict: str = REPRODUCED) -> Callable[[], Found]:
    """Return a finding that no record is needed for: a formula is there, or the text and the files differ."""
    return lambda: Found(ours, verdict)


def numbers(name: str) -> dict[str, Any]:
    """Return the numbers of an experiment; nothing where it was not run."""
    path = RESULTS / name / "numbers.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def claim(name: str, quantity: str, column: str = "bernflow") -> float | None:
    """Return a figure of the table in which an experiment puts ours beside the paper's."""
    path = RESULTS / name / "claims.csv"
    if not path.is_file():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        found = [row[column] for row in csv.DictReader(file) if row["quantity"] == quantity]
    return float(found[0]) if found and found[0] else None


def shown(value: Any) -> str:
    """Write a figure, or that there is none."""
    return NOT_MEASURED if value is None else number(float(value))


def summary(name: str, target: str | None = None) -> dict[str, Any]:
    """Return the figures of an experiment by method."""
    found = numbers(name).get("summary", {})
    return found if target is None else found.get(target, {})


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
    path = ROOT / "benchmarks" / "data" / "paper_cauchy_kl.json"
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
    records = [r for r in load_records(RESULTS / "speed" / "speed.json") if r["part"] == "steps" and "seconds" in r]
    subjects = {"bernstein-paper": "bernflow", "TFP, published": "the paper's way in TensorFlow"}
    found = {
        label: [1.0 / r["seconds"] for r in records if r["subject"] == subject] for subject, label in subjects.items()
    }
    if not all(found.values()):
        return Found(NOT_MEASURED, NOT_MEASURED)
    text = ", ".join(f"{label} {np.median(values):,.0f}" for label, values in found.items())
    return Found(f"{text} on two cores", "another machine")


def picture(name: str) -> Callable[[], Found]:
    """Say that a figure is drawn anew on the page of an experiment, where it is for the eye to judge."""
    there = (RESULTS / name / "README.md").is_file()
    return stated("see the page", "drawn anew") if there else stated(NOT_MEASURED, NOT_MEASURED)


def _code(path: str, words: str = "") -> str:
    return f"[{words or path}]({SOURCE}/{path})"


def _page(name: str) -> str:
    return f"[{name}](../../results/{name}/README.md)"


SECTIONS: dict[str, tuple[Point, ...]] = {
    "The flow": (
        Point(
            "Eq. 1",
            "f_BP(z) = sum of Be_i(z) ϑ_i / (M + 1), the Bernstein polynomial",
            _code("flows/bernstein.py"),
            stated("the same; a test compares it with binomial probabilities"),
            files="the mean over the coefficients of Beta densities times coefficients: the same",
        ),
        Point(
            "Sec. II-A",
            "increasing coefficients by softplus make it monotone",
            _code("flows/bernstein.py", "increments"),
            stated("the same; strict monotonicity is a contract test of every flow"),
        ),
        Point(
            "Sec. II-A",
            "f = f_BP ∘ σ ∘ l with l(z) = αz + β, α = softplus(α')",
            _code("flows/paper.py"),
            stated("text: trained; recipe: as the files", "both, because text and files differ"),
            files="α' = β' = 0 are not among the trained parameters",
        ),
        Point(
            "Sec. II-A",
            "a polynomial of order M has M + 1 coefficients",
            _code("flows/families.py"),
            stated("text: order 50; recipe: 50 coefficients, order 49", "both, because text and files differ"),
            paper="M = 50",
            files="M = 50 is the number of coefficients, except with one parameter",
        ),
        Point(
            "(not said)",
            "where the coefficients start",
            _code("flows/paper.py", "published_start"),
            stated("as the files", REPRODUCED),
            files="first dimension from 0 to 6.83 (20 Φ(u) - 10 on [0, 1]); the others where the network starts: 0, "
            "softplus(0), ...",
        ),
        Point(
            "(not said)",
            "how positive parameters are mapped to the reals",
            _code("flows/paper.py"),
            stated(
                "softplus; the order of the parameters is ours, scales first", "8 schools differ: softplus, not exp"
            ),
            files="softplus; exp(u / 10) for τ of the 8 schools",
        ),
        Point(
            "Eq. 2",
            "coefficients of dimension j are functions of z_1 to z_(j-1), by a MAF with two hidden layers of 10",
            _code("flows/conditioner.py"),
            stated("text: tanh layers on z within [0, 1]; recipe: as the files", "both, because text and files differ"),
            files="on the normal noise, and without activation: a linear function",
        ),
        Point(
            "Sec. II-A",
            "the error falls as 1/M, and larger orders do no harm",
            _page("bernoulli"),
            bernoulli_over_order,
        ),
        Point(
            "App. C",
            "an affine map behind the polynomial has no beneficial effect",
            _page("additions"),
            outer_affine,
        ),
    ),
    "The inference": (
        Point("Eq. 3", "KL = log evidence - ELBO", _code("objectives.py"), stated("the same")),
        Point("Eqs. 4, 5", "ELBO as a mean over S draws of q", _code("objectives.py"), stated("the same")),
        Point(
            "Eq. 6",
            "log q by the change of variables, a triangular Jacobian",
            _code("flows/base.py"),
            stated("the same; a contract test compares it with automatic differentiation"),
        ),
        Point(
            "Eq. 7",
            "importance ratios r = p(θ, D) / q(θ), and k-hat of their tail",
            _code("diagnostics"),
            stated("the same, with every Jacobian", "differs for positive parameters: the files leave a Jacobian out"),
            files="p at τ and σ without the log-Jacobian of their map: another posterior",
        ),
        Point(
            "Sec. II-C",
            "RMSprop of TensorFlow with its defaults",
            _code("fit/settings.py"),
            stated("rate 0.001, ρ = 0.9, ε = 1e-7"),
            files="the same",
        ),
        Point(
            "Sec. III",
            "10⁵ epochs, S = 10, five repetitions, k-hat of 50,000 draws with Rubin's rules",
            "[repetitions](../../benchmarks/paper/repetitions.py)",
            stated("the same: ten independent draws a step"),
            files="the same",
        ),
        Point(
            "Sec. III-B",
            "about 100 epochs per second on a laptop of 2023",
            _page("speed"),
            steps_per_second,
            paper="100",
        ),
    ),
    "Experiments with one parameter": (
        Point("Fig. 1", "the transformation and both densities", _page("overview"), picture("overview")),
        Point(
            "Fig. 2, left",
            "BF-VI fits a skewed posterior",
            _page("bernoulli"),
            better_than_gaussian("bernoulli", "KL at M = 50, median of 20 runs"),
        ),
        Point("Fig. 2, right", "KL over M, 20 runs", _page("bernoulli"), bernoulli_over_order),
        Point(
            "Sec. III-A", "Gaussian-VI is not flexible enough", _page("bernoulli"), gaussian_fails("bernoulli", 0.01)
        ),
        Point(
            "App. C",
            "the observations are 1 and 2",
            "[targets](../../benchmarks/targets.py)",
            stated("1 and 1", "differs because the posterior that is stated, Beta(3.1, 1.1), needs them"),
        ),
        Point(
            "Fig. 3",
            "BF-VI fits a bimodal posterior",
            _page("cauchy"),
            better_than_gaussian("cauchy", "KL at M = 50"),
        ),
        Point("Sec. III-A", "Gauss-VI fails as expected", _page("cauchy"), gaussian_fails("cauchy", 0.1)),
        Point(
            "App. C",
            "log evidence of the Cauchy example",
            "[targets](../../benchmarks/targets.py)",
            stated(f"{BENCHMARKS['cauchy'].log_evidence}, by quadrature"),
            paper="-21.43069",
        ),
        Point(
            "Fig. S3",
            "f1 needs fewer coefficients than f2 and f3",
            _page("cauchy"),
            cauchy_ablation,
            files="KL by order and seed",
        ),
        Point("Figs. S1, S2", "loss curves", _page("bernoulli") + ", " + _page("cauchy"), picture("cauchy")),
    ),
    "Experiments with several parameters": (
        Point(
            "Fig. 4, Sec. III-B",
            "toy regression: k-hat of BF-VI",
            _page("toy-regression"),
            khat("toy-regression", "toy-regression"),
            paper="0.68 (0.51, 0.86)",
            files=FILES["toy-regression"],
        ),
        Point(
            "Fig. S4",
            "the mean field has a larger k-hat, and no correlation",
            _page("toy-regression"),
            best_of("toy-regression", "toy-regression", "paper", ("gaussian",)),
            paper="0.90 (0.77, 1.01)",
        ),
        Point(
            "Sec. III-B, Fig. S5",
            "diamonds: k-hat of BF-VI",
            _page("diamonds"),
            khat("diamonds", "diamonds"),
            paper="5.34 (-2.52, 13.20)",
            files=FILES["diamonds"],
        ),
        Point(
            "Sec. III-B, Fig. S6",
            "8 schools, centered: k-hat of BF-VI",
            _page("eight-schools"),
            khat("eight-schools", "eight-schools-centered"),
            paper="0.53 (0.11, 0.95), of another posterior",
            files=FILES["eight-schools-centered"],
        ),
        Point(
            "Sec. III-B, Fig. S6",
            "8 schools, non-centered: k-hat of BF-VI",
            _page("eight-schools"),
            khat("eight-schools", "eight-schools-noncentered"),
            paper="0.36 (0.17, 0.55), of another posterior",
        ),
        Point(
            "Table II",
            "on diamonds the mean field has the smallest k-hat of five methods",
            _page("khat-table"),
            best_of("khat-table", "diamonds", "gaussian", ("student-t", "realnvp", "planar", "paper")),
        ),
        Point(
            "Table II",
            "on 8 schools, centered, BF-VI has the smallest k-hat of five methods",
            _page("khat-table"),
            best_of("khat-table", "eight-schools-centered", "paper", ("gaussian", "student-t", "realnvp", "planar")),
        ),
        Point(
            "Table II",
            "on 8 schools, non-centered, BF-VI has the smallest k-hat of five methods",
            _page("khat-table"),
            best_of("khat-table", "eight-schools-noncentered", "paper", ("gaussian", "student-t", "realnvp", "planar")),
        ),
        Point("Table II", "planar flow and RealNVP, figures of Dhaka et al.", _page("khat-table"), table_two),
        Point("Table I", "models, ground truth and best method", _page("overview"), picture("overview")),
        Point(
            "Fig. 5",
            "network regression: BF-VI is slightly better than the mean field",
            _page("nn-regression"),
            network_bands,
            paper="a figure without a number",
            files="quantiles of the MCMC, called 5 and 95 %; they are 2.5 and 97.5 %",
        ),
        Point("Fig. S7", "scaled loss curves", _page("loss-curves"), picture("loss-curves")),
        Point("Fig. 6", "the networks", _page("overview"), picture("overview")),
    ),
    "Melanoma": (
        Point(
            "Sec. III-C", "M1: log score", _page("melanoma"), score_of("M1: log score", -0.076, 0.002), paper="-0.076"
        ),
        Point(
            "Sec. III-C", "M2: log score", _page("melanoma"), score_of("M2: log score", -0.085, 0.002), paper="-0.085"
        ),
        Point(
            "Sec. III-C", "M3: log score", _page("melanoma"), score_of("M3: log score", -0.076, 0.002), paper="-0.076"
        ),
        Point(
            "Sec. III-C",
            "M1: AUC",
            _page("melanoma"),
            score_of("M1: AUC", 0.83, 0.04),
            paper="0.83 (0.79, 0.86)",
        ),
        Point(
            "Sec. III-C",
            "M3: AUC",
            _page("melanoma"),
            score_of("M3: AUC", 0.82, 0.03),
            paper="0.82 (0.79, 0.85)",
        ),
        Point(
            "Fig. 7",
            "the posterior of the age effect, M2 and M3: diminished beside the pictures",
            _page("melanoma"),
            picture("melanoma"),
            files="draws of the posterior of M3, and of the MCMC of M2",
        ),
        Point(
            "Sec. III-C",
            "33,126 patients",
            _page("melanoma"),
            stated("33,126 pictures; patients have several", "differs because the data count pictures"),
        ),
    ),
}


def page() -> str:
    """Return the page as Markdown."""
    parts = [INTRODUCTION.rstrip("\n")]
    for title, points in SECTIONS.items():
        lines = ["| in the paper | what it says | ours | paper | authors' files | what we get | |", "|---" * 7 + "|"]
        for point in points:
            found = point.found()
            cells = (point.where, point.says, point.place, point.paper, point.files, found.ours, f"**{found.verdict}**")
            lines.append("| " + " | ".join(cells) + " |")
        parts.append(f"## {title}\n\n" + "\n".join(lines))
    return "\n\n".join(parts) + "\n"


def differences() -> str:
    """Return the table of what bernflow changes: the paper's figure, its recipe, and bernflow's default."""
    lines = ["| experiment | figure of merit | published | its recipe, run here | bernflow |", "|---|---|---|---|---|"]
    for name, quantity, title in (
        ("bernoulli", "KL at M = 50, median of 20 runs", "Bernoulli, M = 50"),
        ("cauchy", "KL at M = 50", "Cauchy, M = 50"),
    ):
        cells = [shown(claim(name, quantity, c)) for c in ("paper", "paper's recipe, run here", "bernflow")]
        cells[0] = "" if cells[0] == NOT_MEASURED else cells[0]
        lines.append(f"| {title} | KL | {' | '.join(cells)} |")
    for name, target, title in (
        ("toy-regression", "toy-regression", "Toy regression"),
        ("diamonds", "diamonds", "Diamonds"),
        ("eight-schools", "eight-schools-noncentered", "8 schools, non-centered"),
        ("eight-schools", "eight-schools-centered", "8 schools, centered"),
    ):
        by_method = summary(name, target if name == "eight-schools" else None)
        cells = [
            f"{shown(by_method[m]['khat'])}; {shown(by_method[m]['kl_median'])}" if m in by_method else NOT_MEASURED
            for m in ("paper", "bernflow")
        ]
        mark = "" if target == "diamonds" else " ¹"
        lines.append(f"| {title} | k-hat; KL | {BENCHMARKS[target].paper['khat']}{mark} | {' | '.join(cells)} |")
    found = numbers("nn-regression").get("distances", {})
    bands = [f"{np.median(found[m]):.3f}" if m in found else NOT_MEASURED for m in ("paper", "bernflow")]
    lines.append(f"| NN regression | distance of the bands to NUTS | | {' | '.join(bands)} |")
    for model, published in (("M1", "0.83; -0.076"), ("M3", "0.82; -0.076")):
        values = [shown(claim("melanoma", f"{model}: {quantity}")) for quantity in ("AUC", "log score")]
        lines.append(f"| Melanoma, {model} | AUC; log score | {published} | | {'; '.join(values)} |")
    return "\n".join(lines)


def with_differences(text: str) -> str:
    """Return a page with the table between its markers written anew."""
    before, rest = text.split(START)
    return f"{before}{START}\n{differences()}\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Write both."""
    for path, text in ((PAGE, page()), (DIFFERENCES, with_differences(DIFFERENCES.read_text(encoding="utf-8")))):
        write_whole(path, lambda file, text=text: file.write(text.encode()))


if __name__ == "__main__":
    main()
