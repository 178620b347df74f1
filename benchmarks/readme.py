"""Put the figures of `bernflow benchmark accuracy` into the README: `python -m benchmarks.readme`."""

from pathlib import Path

from bernflow.experiments.accuracy.cases import PAPER, all_cases
from bernflow.experiments.accuracy.methods.ours import CHOICES, DEFAULTS
from bernflow.experiments.accuracy.summary import best_method, rows
from bernflow.experiments.study.records import load_records

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RESULTS = ROOT / "results" / "accuracy" / "accuracy.json"
START, END = "<!-- accuracy:start -->", "<!-- accuracy:end -->"
COLUMNS = {
    DEFAULTS: "**bernflow**",
    "bernstein-paper": "the paper's flow and recipe",
    "AutoDiagonalNormal": "mean-field normal",
    "AutoMultivariateNormal": "full-rank normal",
    "AutoIAFNormal": "IAF",
    "AutoBNAFNormal": "BNAF",
    "flowjax-spline": "neural spline flow",
    "blackjax-pathfinder": "Pathfinder",
}


def comparison(records):
    """Return the table of the README: KL / k-hat / ESS by target and method, the best KL in bold."""
    cases = {name: case for name, case in all_cases().items() if case.group == PAPER}
    table = rows([r for r in records if r["target"] in cases], cases, matched=False)
    lines = ["| posterior | " + " | ".join(COLUMNS.values()) + " |", "|---|" + "---|" * len(COLUMNS)]
    for target, row in table.items():
        # Where a user would say something about the posterior, ours is the fit that was told it.
        shown = {**row, DEFAULTS: row.get(CHOICES, row.get(DEFAULTS))}
        shown = {method: shown[method] for method in COLUMNS if shown.get(method) is not None}
        best = best_method(shown)
        cells = [_cell(shown.get(method), method == best) for method in COLUMNS]
        lines.append(f"| {cases[target].benchmark.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(row, best):
    if row is None:
        return "not run"
    if row.status is not None:
        return row.status.split(":")[0]
    # Below the Monte Carlo error of 50,000 draws a KL is no number to quote.
    kl = row.kl
    value = f"ELBO {row.figures['elbo']:.2f}" if kl is None else "< 0.0001" if kl < 1e-4 else f"{kl:.4f}"[:7]
    value = f"**{value}**" if best else value
    return f"{value} / {row.figures['khat']:.2f} / {row.figures['ess_fraction']:.3f}; {row.figures['seconds']:.0f} s"


def main():
    """Rewrite the part of the README between the markers."""
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(START)
    _, after = rest.split(END)
    measured = comparison(load_records(RESULTS))
    README.write_text(f"{before}{START}\n{measured}\n{END}{after}", encoding="utf-8")
    print(measured)


if __name__ == "__main__":
    main()
