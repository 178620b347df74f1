"""Write kept results into the README: `python -m benchmarks.readme` rewrites the text between its markers.

Every figure comes from one record, results/accuracy/accuracy.json; what is not in it is shown as "not measured".
"""

import statistics
from pathlib import Path

from benchmarks.accuracy.cases import all_cases
from benchmarks.accuracy.measure import OK
from benchmarks.accuracy.methods.ours import DEFAULTS, FULL_RANK, PAPER, THOROUGH
from benchmarks.accuracy.page import limits, short_status
from benchmarks.accuracy.summary import best_method, goals, rows
from benchmarks.study.records import load_records
from benchmarks.study.stamp import sentence
from benchmarks.study.writing import write_whole

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "results" / "accuracy" / "accuracy.json"
START, END = "<!-- accuracy:start -->", "<!-- accuracy:end -->"
NOT_MEASURED = "not measured"
COLUMNS = {
    DEFAULTS: "**bernflow**",
    THOROUGH: "**bernflow**, `tolerance=0`",
    PAPER: "the paper's recipe",
    "AutoIAFNormal": "IAF (NumPyro)",
    "AutoBNAFNormal": "BNAF (NumPyro)",
    "flowjax-spline": "spline flow (flowjax)",
    FULL_RANK: "full-rank normal, our start",
    "pymc-fullrank": "full-rank ADVI (PyMC)",
    "pathfinder-psis": "Pathfinder, resampled",
    "nuts": "NUTS",
}
ROWS = {
    "bernoulli": "Bernoulli",
    "cauchy": "Cauchy",
    "toy-regression": "Toy regression",
    "eight-schools-noncentered": "8 schools, non-centered",
    "eight-schools-centered": "8 schools, centered",
    "diamonds": "Diamonds, 26 parameters",
    "nn-regression": "Small neural network",
    "funnel-10": "Neal's funnel, 10 dimensions",
    "modes-8-10": "Eight modes, 10 dimensions",
}
GRADIENTS = "gradients, median"
# A KL of which one draw in tens of thousands makes a larger share is shown with its standard error.
HEAVY = 0.1


def table(records):
    """Return KL and seconds by target and method, the best KL in bold, and the gradients of each method."""
    found = rows(records, all_cases(), matched=False)
    lines = ["| posterior | " + " | ".join(COLUMNS.values()) + " |", "|---|" + "---|" * len(COLUMNS)]
    for target, title in ROWS.items():
        row = found.get(target, {})
        shown = {method: row[method] for method in COLUMNS if method in row}
        best = best_method(shown)
        cells = [_cell(shown[method], method == best) if method in shown else NOT_MEASURED for method in COLUMNS]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    lines.append(f"| {GRADIENTS} | " + " | ".join(_gradients(found, method) for method in COLUMNS) + " |")
    return "\n".join(lines)


def _gradients(found, method):
    """Return the median number of gradients of a method over the targets of the table."""
    taken = [found[t][method].figures["gradients"] for t in ROWS if method in found.get(t, {})]
    known = [number for number in taken if number is not None]
    return f"{statistics.median(known):.2g}" if known else NOT_MEASURED


def _cell(row, best):
    if row.status is not None:
        return short_status(row.status)
    seconds = f"{row.figures['seconds']:.0f} s"
    if row.figures["elbo"] is None:  # draws without a density
        error = row.figures["mean_error"]
        return f"no KL; {seconds}" if error is None else f"means within {error:.2f} sd; {seconds}"
    value = f"ELBO {row.figures['elbo']:.2f}" if row.kl is None else nats(row.kl)
    lost = [record["status"] for record in row.records if record["status"] != OK]
    share = row.figures["largest_share"]
    if share is not None and share > HEAVY:
        seconds = f"± {row.figures['elbo_se']:.2g}, {share:.0%} of it one draw; {seconds}"
    note = f" ({len(lost)} of {len(row.records)} runs: {short_status(lost[0])})" if lost else ""
    return f"{f'**{value}**' if best else value}; {seconds}{note}"


def nats(kl):
    """Format a KL; values below the Monte Carlo error of 50,000 draws are shown as a bound."""
    return "< 0.0001" if kl < 1e-4 else f"{kl:.4f}" if kl < 1 else f"{kl:.1f}" if kl < 100 else f"{kl:.0f}"


def summary(records):
    """Return the limits of the runs, what they were made by, and one sentence per goal, the test set first."""
    told = f"Medians over the keys. {limits(records)} {sentence(records)}"
    return "\n".join([told, "", *(f"- {line}" for line in goals(records, all_cases()))])


def page(text, records):
    """Return the README with the part between the markers written anew."""
    before, rest = text.split(START)
    _, after = rest.split(END)
    return f"{before}{START}\n{table(records)}\n\n{summary(records)}\n{END}{after}"


def main():
    """Rewrite the README."""
    text = page(README.read_text(encoding="utf-8"), load_records(RESULTS))
    write_whole(README, lambda file: file.write(text.encode()))
    print(text.split(START)[1].split(END)[0].strip())


if __name__ == "__main__":
    main()
