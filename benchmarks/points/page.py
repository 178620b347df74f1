"""The page "The paper, point by point", and the table of what bernflow changes: `python -m benchmarks.points`."""

import numpy as np

from benchmarks.points.finding import NOT_MEASURED, ROOT, claim, numbers, shown, summary
from benchmarks.points.sections import SECTIONS
from benchmarks.study.writing import write_whole
from benchmarks.targets import BENCHMARKS

PAGE = ROOT / "docs" / "explanation" / "point-by-point.md"
DIFFERENCES = ROOT / "docs" / "explanation" / "differences-from-the-paper.md"
START, END = "<!-- figures:start -->", "<!-- figures:end -->"
INTRODUCTION = """\
# The paper, point by point

Where is each equation, claim, figure and table of *Bernstein flows for flexible posteriors in variational Bayes*, what
do the paper and the files that its authors published say, and what do we get? "Recipe" is the paper's own method as
published (`family="bernstein-paper"`), "text" its variant by the text of the paper, and "bernflow" the default.
"Reproduced" means that our runs of the recipe agree with the paper within its own interval, or that the claim holds for
them. Every figure of ours is read from the page that its row links to, which says when and from which commit it was
measured; `make results-check` names those that are older than the code.
"""


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
