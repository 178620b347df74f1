"""Put the measured figures into the README, between its markers: `python -m benchmarks.accuracy.readme`."""

import statistics
from pathlib import Path

from benchmarks.records import load
from bernflow.experiments.targets import BENCHMARKS

README = Path(__file__).parents[2] / "README.md"
RESULTS = Path(__file__).parent / "results" / "accuracy.json"
START, END = "<!-- accuracy:start -->", "<!-- accuracy:end -->"
COLUMNS = {
    "bernflow": "**bernflow**",
    "bernstein-paper": "the paper's flow and recipe",
    "AutoDiagonalNormal": "mean-field normal",
    "AutoMultivariateNormal": "full-rank normal",
    "AutoIAFNormal": "IAF",
    "AutoBNAFNormal": "BNAF",
}


def comparison(records):
    """Return the table of the README: KL / k-hat / ESS by target and method, the best KL in bold."""
    lines = [
        "| posterior | " + " | ".join(COLUMNS.values()) + " |",
        "|---|" + "---|" * len(COLUMNS),
    ]
    for name, benchmark in BENCHMARKS.items():
        found = {m: _figures([r for r in records if r["target"] == name and r["method"] == m]) for m in COLUMNS}
        measured = [f for f in found.values() if "elbo" in f]
        best = min(measured, key=lambda f: -f["elbo"], default=None)
        cells = [_cell(found[m], found[m] is best, benchmark.log_evidence is None) for m in COLUMNS]
        lines.append(f"| {benchmark.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _figures(records):
    done = [r for r in records if r["status"] == "ok"]
    if not done:
        return {"status": records[0]["status"] if records else "not run"}
    median = {k: statistics.median(float(r[k]) for r in done) for k in ("elbo", "khat", "ess_fraction", "seconds")}
    known = done[0]["kl"] is not None
    return {**median, "kl": statistics.median(float(r["kl"]) for r in done) if known else None}


def _cell(figures, best, unknown_evidence):
    if "elbo" not in figures:
        return figures["status"]
    # Below the Monte Carlo error of 50,000 draws a KL is no number to quote.
    kl = figures["kl"]
    value = f"ELBO {figures['elbo']:.2f}" if unknown_evidence else ("< 0.0001" if kl < 1e-4 else f"{kl:.4f}"[:7])
    value = f"**{value}**" if best else value
    return f"{value} / {figures['khat']:.2f} / {figures['ess_fraction']:.3f}; {figures['seconds']:.0f} s"


def main():
    """Rewrite the part of the README between the markers."""
    text = README.read_text(encoding="utf-8")
    before, rest = text.split(START)
    _, after = rest.split(END)
    measured = comparison(load(RESULTS))
    README.write_text(f"{before}{START}\n{measured}\n{END}{after}", encoding="utf-8")
    print(measured)


if __name__ == "__main__":
    main()
