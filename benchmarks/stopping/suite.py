"""See whether a fit with its defaults ends too early or too late."""

import argparse
import statistics
import sys
import time
import warnings
from pathlib import Path
from unittest import mock

import numpy as np

import bernflow as bf
from benchmarks import records as kept
from benchmarks.accuracy.cases import all_cases
from bernflow.cli import Command
from bernflow.fit import engine
from bernflow.fit.evaluation import log_weights_of, pick
from bernflow.fit.train.loop import Loop, Trained
from bernflow.fit.train.recipe import CYCLES, Recipe
from bernflow.fit.train.stopping import CLOSE_ENOUGH
from bernflow.keys import as_key
from bernflow.precision import use_precision

TARGETS = (
    "bernoulli",
    "cauchy",
    "toy-regression",
    "eight-schools-noncentered",
    "eight-schools-centered",
    "diamonds",
    "funnel-2",
    "funnel-10",
    "banana",
    "student-10",
    "multivariate-10",
    "boundary",
)
NUM_DRAWS = 50_000
LONGER = 4
ALLOWED_SHARE = 1.1
# Less than this, in nats, is no improvement.
NOTICEABLE = 1e-4
# The cycles of a fit, and more of the same kind: four times as many steps as the longest fit takes.
MORE_CYCLES = (*CYCLES, *(cycle._replace(length=k * cycle.length) for k in (2, 4) for cycle in CYCLES[-2:]))
RESULTS = Path(__file__).parent / "results"
NOTES = (
    f"KL is that to the exact posterior, of {NUM_DRAWS:,} draws, in nats; medians over the keys.",
    f"early: the KL is above {ALLOWED_SHARE} times that of the same training, continued for {LONGER} times the steps, "
    f"by more than {CLOSE_ENOUGH:g} nats, which shift no mean by more than 0.03 standard deviations.",
    "late: the number of steps taken, divided by the number after which nothing improved: after which the same "
    f"training was, at the end of a cycle, within {NOTICEABLE:g} nats or a tenth of the KL that it ended with. "
    "Whether a cycle helps is known only after it, so a ratio of 1.3 to 1.5 is the cost of one that did not.",
    f"The last column is a separate fit that was given {LONGER} times the steps, which has two long cycles.",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--targets", nargs="+", choices=TARGETS, default=TARGETS, metavar="NAME", help="targets (default: all)"
    )
    parser.add_argument("--keys", type=int, default=3, metavar="N", help="number of random keys (default: 3)")
    parser.add_argument("--fresh", action="store_true", help="repeat what an earlier run has finished")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="DIR", help="folder (default: beside this suite)")


def divergence(log_weights, log_evidence):
    """Return KL(q || posterior): the mean of -log r, with the mean of r, which is 1, as a control variate."""
    log_ratio = log_weights - log_evidence
    excess = np.expm1(log_ratio)
    slope = np.cov(log_ratio, excess)[0, 1] / max(np.var(excess), 1e-30)
    return float(slope * np.mean(excess) - np.mean(log_ratio))


def fit(benchmark, key, steps=None):
    """Fit one flow."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a poor fit is in the table
        tolerance = 0 if steps is None else None
        return bf.fit(
            benchmark.model, *benchmark.args, key=key, steps=steps, tolerance=tolerance, components=1, progress=False
        )


def follow(benchmark, key):
    """Train with the defaults and go on; return the number of steps that a fit takes, and all ends of cycles."""
    ends: list[dict] = []
    taken: list[int] = []

    class Longer(Loop):
        def run(self, begun, resumed=None):
            assert self.rule is not None
            draws, most = self.rule.draws, sum(cycle.length for cycle in self.recipe.cycles(begun.flow, 1))

            def ends_here(at, is_over):
                with use_precision("float64"):
                    flow, target = pick(at.kept.flow, 0), draws.target
                    log_weights = log_weights_of(flow, target, as_key(1), NUM_DRAWS)
                ends.append({"steps": at.done, "kl": divergence(np.asarray(log_weights), benchmark.log_evidence)})
                if (is_over or at.done >= most) and not taken:
                    taken.append(at.done)
                return bool(taken) and at.done >= LONGER * taken[0]

            self.watch.ends = ends_here
            with mock.patch.object(Recipe, "cycles", return_value=MORE_CYCLES):
                trained = yield from super().run(begun, resumed)
            return Trained(trained.state, taken[0])

    with mock.patch.object(engine, "Loop", Longer):
        fit(benchmark, key)
    return taken[0], ends


def run(name, key):
    """Follow a training beyond its end, and compare it with a fit that was given as many steps."""
    benchmark = all_cases()[name].benchmark
    taken, ends = follow(benchmark, key)
    record = {"target": name, "key": key, "steps": taken, "ends": ends}
    if taken:
        given = fit(benchmark, key, LONGER * taken).log_weights(NUM_DRAWS, key=1)
        record["given"] = divergence(given, benchmark.log_evidence)
    return record


def is_as_good(kl, other, noticeable):
    """Tell whether a KL is as good as another one."""
    return kl <= max(ALLOWED_SHARE * other, other + noticeable)


def kl_after(record, steps):
    """Return the KL at the last end of a cycle within so many steps."""
    return [end["kl"] for end in record["ends"] if end["steps"] <= steps][-1]


def lateness(record):
    """Return the steps taken per steps after which nothing improved."""
    reached = kl_after(record, record["steps"])
    least = next(end["steps"] for end in record["ends"] if is_as_good(end["kl"], reached, NOTICEABLE))
    return record["steps"] / least if least else 1.0


def is_early(record):
    """Tell whether going on would have been better."""
    steps = record["steps"]
    return not is_as_good(kl_after(record, steps), kl_after(record, LONGER * steps), CLOSE_ENOUGH)


def markdown(records):
    """Return one row per target, and what all of them say."""
    lines = ["# When training ends", "", *(f"* {note}" for note in NOTES), ""]
    columns = (
        *("target", "steps", "KL", f"KL after {LONGER} times the steps", "early", "late, median and most", "keys"),
        f"KL of a fit given {LONGER} times the steps",
    )
    lines += [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name in dict.fromkeys(record["target"] for record in records):
        runs = [record for record in records if record["target"] == name]
        late = [lateness(record) for record in runs]
        given = [record["given"] for record in runs if "given" in record]
        cells = (
            name,
            ", ".join(f"{steps:,}" for steps in sorted({record["steps"] for record in runs})),
            f"{statistics.median(kl_after(record, record['steps']) for record in runs):.5f}",
            f"{statistics.median(kl_after(record, LONGER * record['steps']) for record in runs):.5f}",
            f"{sum(map(is_early, runs))} of {len(runs)}",
            f"{statistics.median(late):.1f}, {max(late):.1f}",
            str(len(runs)),
            f"{statistics.median(given):.5f}" if given else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    late = [lateness(record) for record in records]
    lines += [
        "",
        f"* Early: {sum(map(is_early, records))} of {len(records)} fits.",
        f"* Late by more than 1.5: {sum(ratio > 1.5 for ratio in late)} of {len(records)} fits; median ratio "
        f"{statistics.median(late):.2f}.",
    ]
    return "\n".join(lines) + "\n"


def run_suite(options: argparse.Namespace) -> None:
    """Run what is missing, keep the rest, print the table."""
    path = options.out / "stopping.json"
    records = {(r["target"], r["key"]): r for r in kept.load(path)}
    plan = [(target, key) for target in options.targets for key in range(options.keys)]
    for count, (target, key) in enumerate(plan, start=1):
        if kept.is_current(records.get((target, key)), __name__) and not options.fresh:
            continue
        print(f"[{count}/{len(plan)}] {target}, key {key} ...", file=sys.stderr, flush=True)
        began = time.perf_counter()
        records[target, key] = {**run(target, key), **kept.made_by(__name__, began)}
        kept.save(path, list(records.values()), NOTES, markdown(list(records.values())))
    print(markdown(list(records.values())))


COMMAND = Command(
    "stopping",
    "whether fits end too early or too late",
    "Continue the training of a default fit for four times its steps, and see whether it stopped too early or too "
    "late. Writes stopping.json and stopping.md. An interrupted run continues where it stopped.",
    add_arguments,
    run_suite,
    """
examples:
  bernflow benchmark stopping
  bernflow benchmark stopping --targets bernoulli funnel-2 --keys 1
""",
)
