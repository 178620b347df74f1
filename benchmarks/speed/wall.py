"""Part `wall`: the time from the call to the verdict, beside NUTS and an inverse autoregressive flow."""

import statistics
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist

import bernflow as bf
from benchmarks.accuracy.judge import score
from benchmarks.melanoma.tables import load_m2
from benchmarks.speed import rivals
from benchmarks.speed.clock import median_of, ratios, spread
from benchmarks.speed.part import Case, Part, Scale, Section
from benchmarks.study.plan import Result
from benchmarks.study.records import Record
from benchmarks.study.tables import Table, number
from benchmarks.targets import BENCHMARKS, Benchmark

TOLERANCE = 0.01
OURS, SHORT, IAF = "bernflow", f"bernflow, tolerance={TOLERANCE}", "AutoIAFNormal"
NUTS = {"NUTS, vectorized": "vectorized", "NUTS, parallel": "parallel"}
M2 = "melanoma-m2"
TIMES = ("cold_seconds", "warm_seconds")
EVALUATION_SEED = 10_000


def logistic_m2(age: jax.Array, target: jax.Array) -> None:
    """Logistic regression of melanoma on age: the paper's M2."""
    intercept = numpyro.sample("mu_0", dist.Normal(0.0, 10.0))
    slope = numpyro.sample("beta_1", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Bernoulli(logits=intercept + slope * age), obs=target)


def _load_m2() -> tuple[np.ndarray, np.ndarray]:
    train, _ = load_m2()
    return np.asarray(train.age), np.asarray(train.target)


TARGETS: dict[str, Benchmark] = {
    **{name: BENCHMARKS[name] for name in ("eight-schools-noncentered", "toy-regression", "diamonds")},
    M2: Benchmark(M2, "Melanoma M2, 21,200 rows", logistic_m2, _load_m2),
}


def cases(scale: Scale) -> list[Case]:
    """Return one case per posterior."""
    names = scale.pick(tiny=("toy-regression",), quick=("eight-schools-noncentered", "toy-regression"), normal=TARGETS)
    length = scale.pick(tiny=20, quick=500, normal=1000)
    steps = scale.pick(tiny=40, quick=5_000, normal=20_000)
    guide = {"steps": steps, "block": scale.pick(tiny=20, quick=500, normal=500), "num_particles": 10}
    subjects: dict[str, dict[str, Any]] = {
        OURS: {"fit": scale.pick(tiny={"steps": 20}, quick={"tolerance": 0}, normal={"tolerance": 0})},
        SHORT: {"fit": scale.pick(tiny={"steps": 10}, quick={"tolerance": TOLERANCE}, normal={"tolerance": TOLERANCE})},
        **{name: {"chain_method": how, "warmup": length, "samples": length} for name, how in NUTS.items()},
        IAF: {**guide, "learning_rate": 5e-3, "num_draws": scale.pick(tiny=100, quick=4_000, normal=20_000)},
    }
    num = scale.pick(tiny=100, quick=20_000, normal=50_000)
    subjects[OURS]["num_draws"] = subjects[SHORT]["num_draws"] = num
    return [Case(name, subjects, scale.rounds) for name in names]


def measure(case: str, subject: str, settings: Mapping[str, Any]) -> Result:
    """Fit one posterior by one method, cold and warm."""
    benchmark = TARGETS[case]
    if subject in NUTS:
        return rivals.time_nuts(benchmark, settings)
    if subject == IAF:
        return rivals.time_iaf(benchmark, settings)
    return time_ours(benchmark, settings)


def time_ours(benchmark: Benchmark, settings: Mapping[str, Any]) -> Result:
    """Fit twice with `bf.fit`, the second time with another key and what the first has compiled."""
    seconds = []
    for key in range(2):
        began = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a poor verdict warns; it is in the record
            post = bf.fit(benchmark.model, *benchmark.args, key=key, progress=False, **settings["fit"])
        seconds.append(time.perf_counter() - began)
        if post.settings["interrupted"]:
            raise KeyboardInterrupt  # half a fit is no result to keep
    found = score(post.log_weights(settings["num_draws"], key=EVALUATION_SEED), benchmark.log_evidence)
    return {
        "cold_seconds": seconds[0],
        "warm_seconds": seconds[1],
        **{name: found[name] for name in ("kl", "elbo", "ess_fraction", "khat")},
        "verdict": post.diagnostics.verdict,
        "steps": int(post.settings["steps"]),
        "device": jax.devices()[0].device_kind,
    }


def present(records: Sequence[Record]) -> Section:
    """Show one table over all posteriors; of the two ways to run chains the faster."""
    rows = [row for name in TARGETS for row in _rows([r for r in records if r["case"] == name])]
    lengths = {(r["settings"]["warmup"], r["settings"]["samples"]) for r in records if r["subject"] in NUTS}
    chains = " or ".join(f"{warmup:,} steps of warmup and {num:,} draws each" for warmup, num in sorted(lengths))
    columns = ("posterior", "method", "cold (s)", "warm (s)", "cold / ours", "warm / ours", "reached")
    text = (
        "Seconds from the call to the verdict, on the default device and in its default precision. Cold: in a new "
        "process, compilation included (imports are not). Warm: a second call in the same process, with another key. "
        "bernflow: `bf.fit` with tolerance=0, which trains until the ELBO stops improving, and with "
        f"tolerance={TOLERANCE}, the default. NUTS: four chains of NumPyro ({chains or 'not run'}), and its "
        "convergence figures; the faster way to run the chains is shown. AutoIAFNormal: Adam with a cosine decay, "
        "until it is within 0.001 nats or 5 % of the best KL that it reaches; the time to evaluate it is not counted."
    )
    return Section([text, Table(columns, rows)])


def _rows(records: Sequence[Record]) -> list[list[str]]:
    """Return the lines of one posterior."""
    times = {which: {s: t for (_, s), t in median_of(records, which).items()} for which in TIMES}
    rows = []
    for label, names in ((OURS, (OURS,)), (SHORT, (SHORT,)), ("NUTS", tuple(NUTS)), (IAF, (IAF,))):
        run = [name for name in names if name in times["warm_seconds"]]
        if not run:
            continue
        # The faster way cold may be the slower one warm: each time is that of the faster.
        best = [min(run, key=lambda s, which=which: times[which][s]) for which in TIMES]
        mine = [r for r in records if r["subject"] == best[1]]
        if label == "NUTS":
            how = [next(r["chain_method"] for r in records if r["subject"] == name) for name in best]
            label = f"NUTS, {how[0]} chains" if how[0] == how[1] else f"NUTS, {how[0]} chains cold, {how[1]} warm"
        shown = [f"{times[which][name]:.3g}" for which, name in zip(TIMES, best, strict=True)]
        compared = [spread(ratios(records, which, name, OURS)) for which, name in zip(TIMES, best, strict=True)]
        rows.append(
            [TARGETS[mine[0]["case"]].title, label, *shown, *(["", ""] if label == OURS else compared), _quality(mine)]
        )
    return rows


def _quality(records: Sequence[Record]) -> str:
    """Say what was reached, median over the rounds."""

    def middle(name: str) -> float | None:
        values = [float(r[name]) for r in records if r.get(name) is not None]
        return statistics.median(values) if values else None

    verdicts = "/".join(dict.fromkeys(r["verdict"] for r in records if r.get("verdict")))
    verdict = f" ({verdicts})" if verdicts else ""
    effective, kl, elbo, ess = (middle(name) for name in ("min_ess", "kl", "elbo", "ess_fraction"))
    if effective is not None:
        return f"{effective:.0f} effective draws{verdict}"
    if kl is not None:
        return f"KL {number(kl)}{verdict}"
    return "" if elbo is None or ess is None else f"ELBO {elbo:.4f}, ESS {ess:.1%}{verdict}"


PART = Part("wall", "From the call to the verdict", cases, measure, present)
