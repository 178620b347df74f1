"""Compare fits with models whose evidence and posterior are known exactly."""

import argparse
import dataclasses
import sys
import time
import warnings
from pathlib import Path

import numpy as np
from scipy import stats

import bernflow as bf
from benchmarks import records as kept
from benchmarks.exactness import MODELS, examine
from bernflow.cli import Command

# Above it the standard error of the evidence cannot be trusted.
MAX_KHAT = 0.7
RESULTS = Path(__file__).parent / "results"
NOTES = (
    "log Z is exact: a closed form, or quadrature. Its error is that of the fit's estimate from 20,000 draws, in nats; "
    "z is the error in units of the standard error that the fit states.",
    "KL(q || p) in nats, from 20,000 draws each: of the fit, as the mean of W - 1 - log W with W = p(theta, y) / "
    "(Z q(theta)); of the exact posterior, as the mean of r log r - r + 1 with r = q / p, where log q goes through the "
    "inverse of the flow. Each with its standard error; z is their difference in units of its standard error.",
    "One row per model, for the first key; the last lines summarize all keys.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--models", nargs="+", choices=list(MODELS), default=list(MODELS), metavar="NAME", help="models (default: all)"
    )
    parser.add_argument("--keys", type=int, default=3, metavar="N", help="number of random keys (default: 3)")
    parser.add_argument(
        "--steps", type=int, metavar="N", help="steps of every fit (default: until the ELBO stops improving)"
    )
    parser.add_argument("--fresh", action="store_true", help="repeat what an earlier run has finished")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="folder (default: beside this suite)")


def identity(record):
    """Return what two records of the same run have in common."""
    return record["model"], record["key"], record["steps_asked"]


def run(name, key, steps):
    """Fit one model and compare it with its answers."""
    exact = MODELS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a poor fit is in the table
        tolerance = 0 if steps is None else None
        post = bf.fit(exact.model, *exact.args, key=key, steps=steps, tolerance=tolerance, progress=False)
    found = examine(post, exact, seed=key)
    d = post.diagnostics
    return {
        "model": name,
        "key": key,
        "steps_asked": steps,
        "steps": post.settings["steps"],
        "source": exact.source,
        "dim": post.layout.dim,
        "log_evidence": exact.log_evidence,
        "verdict": d.verdict,
        "khat": d.khat,
        **dataclasses.asdict(found),
        "evidence_z": found.evidence_z,
        "kl_z": found.kl_z,
    }


def markdown(records):
    """Return the page."""
    lines = ["# Fits of models with exact answers", "", *(f"* {note}" for note in NOTES), ""]
    lines += [
        "| model | dimensions | log Z | by | error of log Z | standard error | z | KL, draws of the fit "
        "| KL, exact draws | z | k-hat | verdict |",
        "|---" * 12 + "|",
    ]
    order = {name: i for i, name in enumerate(MODELS)}
    first = min((r["key"] for r in records), default=0)
    for r in sorted((r for r in records if r["key"] == first), key=lambda r: order[r["model"]]):
        lines.append(
            f"| {r['model']} | {r['dim']} | {r['log_evidence']:.6f} | {r['source']} | {r['evidence_error']:+.1e} | "
            f"{r['evidence_se']:.1e} | {r['evidence_z']:+.2f} | {r['kl']:.2e} ± {r['kl_se']:.0e} | "
            f"{r['kl_other']:.2e} ± {r['kl_other_se']:.0e} | {r['kl_z']:+.2f} | {r['khat']:.2f} | {r['verdict']} |"
        )
    lines += ["", *(f"* {line}" for line in summary(records))]
    return "\n".join(lines) + "\n"


def summary(records):
    """Say how large all errors are together."""
    steady = [r for r in records if r["khat"] <= MAX_KHAT]
    parts = (
        ("log Z", "evidence_z", records),
        (f"log Z where k-hat is at most {MAX_KHAT:g}", "evidence_z", steady),
        ("the two KL", "kl_z", records),
    )
    lines = []
    for what, name, chosen in parts:
        z = np.array([r[name] for r in chosen])
        if z.size:
            lines.append(
                f"{what}: {z.size} fits, root mean square of z {np.sqrt(np.mean(z**2)):.2f}, largest |z| "
                f"{np.abs(z).max():.2f}, chi-square p-value {stats.chi2(z.size).sf(np.sum(z**2)):.2g}."
            )
    largest = max((abs(r["evidence_error"]) for r in records if r["khat"] > MAX_KHAT), default=0.0)
    lines.append(
        "Above that k-hat the variance of the weights is infinite or too large to be estimated, so the standard error "
        f"is too small; the largest error of log Z there is {largest:.1e} nats."
    )
    return lines


def run_suite(options: argparse.Namespace) -> None:
    """Run what is missing, keep the rest, print the table."""
    path = options.out / "exactness.json"
    records = {identity(r): r for r in kept.load(path)}
    plan = [(name, key) for name in options.models for key in range(options.keys)]
    for count, (name, key) in enumerate(plan, start=1):
        if kept.is_current(records.get((name, key, options.steps)), __name__) and not options.fresh:
            continue
        print(f"[{count}/{len(plan)}] {name}, key {key} ...", file=sys.stderr, flush=True)
        began = time.perf_counter()
        record = {**run(name, key, options.steps), **kept.made_by(__name__, began)}
        records[identity(record)] = record
        kept.save(path, list(records.values()), NOTES, markdown(list(records.values())))
    print(markdown(list(records.values())))


COMMAND = Command(
    "exactness",
    "models whose evidence and posterior are known exactly",
    "Fit models whose evidence and posterior are known exactly, and compare the evidence and the KL divergence with "
    "their stated errors. Writes exactness.json and exactness.md. An interrupted run continues where it stopped.",
    add_arguments,
    run_suite,
    """
examples:
  bernflow benchmark exactness
  bernflow benchmark exactness --models beta-binomial --keys 1
""",
)
