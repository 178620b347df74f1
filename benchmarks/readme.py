"""Write kept results into the README: `python -m benchmarks.readme` rewrites the text between its markers.

Every number comes from a file in results/. A result that is missing is shown as "not measured".
"""

import csv
from pathlib import Path

from benchmarks.accuracy.cases import all_cases
from benchmarks.accuracy.methods.ours import DEFAULTS
from benchmarks.accuracy.page import short_status
from benchmarks.accuracy.summary import best_method, goals, rows
from benchmarks.study.records import load_records
from benchmarks.study.writing import write_whole

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "results" / "accuracy" / "accuracy.json"
START, END = "<!-- accuracy:start -->", "<!-- accuracy:end -->"
NOT_MEASURED = "not measured"
PAPER = "bernstein-paper"
COLUMNS = {
    DEFAULTS: "**bernflow**",
    PAPER: "the paper's recipe",
    "AutoIAFNormal": "NumPyro, IAF",
    "AutoMultivariateNormal": "NumPyro, normal",
    "pymc-fullrank": "PyMC, full-rank ADVI",
    "blackjax-pathfinder": "Pathfinder",
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
# The experiments that repeat the paper run its recipe with many keys: folder, file, row and column.
_MEDIAN = {"method": "BF-VI (paper's recipe)"}
REPEATED = {
    "bernoulli": ("bernoulli", "claims.csv", {"quantity": "KL at M = 50, median of 20 runs"}),
    "cauchy": ("cauchy", "claims.csv", {"quantity": "KL at M = 50"}),
    "toy-regression": ("toy-regression", "methods.csv", _MEDIAN),
    "eight-schools-noncentered": ("eight-schools", "methods.csv", {**_MEDIAN, "form": "NCP"}),
    "eight-schools-centered": ("eight-schools", "methods.csv", {**_MEDIAN, "form": "CP"}),
    "diamonds": ("diamonds", "methods.csv", _MEDIAN),
    "nn-regression": ("nn-regression", "methods.csv", _MEDIAN),
}
VALUES = {"KL, median": "", "paper's recipe, run here": "", "ELBO": "ELBO "}


def table(records, results=ROOT / "results"):
    """Return KL and seconds by target and method, the best KL in bold."""
    cases = all_cases()
    found = rows(records, cases, matched=False)
    lines = ["| posterior | " + " | ".join(COLUMNS.values()) + " |", "|---|" + "---|" * len(COLUMNS)]
    for target, title in ROWS.items():
        row = found.get(target, {})
        shown = {method: row[method] for method in COLUMNS if method in row}
        best = best_method(shown)
        cells = [_cell(shown[method], method == best) if method in shown else NOT_MEASURED for method in COLUMNS]
        place = list(COLUMNS).index(PAPER)
        # The paper's recipe ends in several optima: the median over many runs says more than one run of this benchmark.
        cells[place] = repeated(target, results) or cells[place]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row, best):
    if row.status is not None:
        return short_status(row.status)
    seconds = f"{row.figures['seconds']:.0f} s"
    if row.figures["elbo"] is None:  # draws without a density
        error = row.figures["mean_error"]
        return f"no KL; {seconds}" if error is None else f"means within {error:.2f} sd; {seconds}"
    value = f"ELBO {row.figures['elbo']:.2f}" if row.kl is None else nats(row.kl)
    return f"{f'**{value}**' if best else value}; {seconds}"


def nats(kl):
    """Format a KL; values below the Monte Carlo error of 50,000 draws are shown as a bound."""
    return "< 0.0001" if kl < 1e-4 else f"{kl:.4f}" if kl < 1 else f"{kl:.1f}" if kl < 100 else f"{kl:.0f}"


def repeated(target, results):
    """Return the result of the experiment that repeats the paper, linked to its page, or None."""
    if target not in REPEATED:
        return None
    folder, name, wanted = REPEATED[target]
    path = results / folder / name
    if not path.exists():
        return None
    with path.open(encoding="utf-8", newline="") as file:
        found = [line for line in csv.DictReader(file) if all(line.get(k) == v for k, v in wanted.items())]
    if len(found) != 1:
        raise LookupError(f"{path} has {len(found)} rows with {wanted}: expected one. Say which here.")
    column = next(column for column in VALUES if column in found[0])
    value = float(found[0][column])
    text = f"ELBO {value:.2f}" if column == "ELBO" else nats(value)
    return f"[{text}](results/{folder}/README.md)"


def summary(records):
    """Return the number of keys and one sentence per goal over all targets."""
    keys: dict[str, set[int]] = {}
    for record in records:
        if record["target"] in ROWS:
            keys.setdefault(record["method"], set()).add(record["key"])
    # The paper's recipe is left out: most of its numbers come from other pages.
    counts = {method: len(keys[method]) for method in COLUMNS if method in keys and method != PAPER}
    others = {method: count for method, count in counts.items() if method != DEFAULTS}
    runs = f"Medians over up to {counts.get(DEFAULTS, 0)} keys for bernflow"
    if others:
        fewest, most = min(others.values()), max(others.values())
        count = f"{fewest if fewest == most else f'{fewest} to {most}'} key{'' if most == 1 else 's'}"
        runs += f" and {count} for the other methods"
    runs += "; numbers with a link come from the linked page"
    return "\n".join([f"{runs}. Over all measured targets:", "", *(f"- {s}" for s in goals(records, all_cases()))])


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
