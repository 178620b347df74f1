"""The fits of the multi-parameter experiments: made once, used by every page that needs them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.study.fits import fit_task
from benchmarks.study.nuts import nuts_task
from benchmarks.study.plan import Result, Results, Task
from benchmarks.study.rubin import Pooled, pool
from benchmarks.study.tables import number

# What pages say of the rows of the paper.
RECIPE = (
    "The paper's recipe is shown twice. As published: the start, the conditioner and the training of the authors' "
    "scripts; the log-Jacobian of positive parameters, which those leave out, is ours. By the text: what the paper "
    "says, where the scripts differ from it."
)
# The heading of `kl_text`.
KL_HEADING = "KL, median ± standard error (largest share of one draw)"

# The paper's settings: 5 repetitions, 100,000 epochs, 50,000 draws for k-hat.
SETTINGS: dict[str, dict[str, Any]] = {
    "full": {"keys": 5, "num_draws": 50_000, "recipe_steps": 100_000, "steps": None, "num_kept": 4000},
    "quick": {"keys": 2, "num_draws": 20_000, "recipe_steps": 5_000, "steps": None, "num_kept": 2000},
    "tiny": {"keys": 2, "num_draws": 500, "recipe_steps": 10, "steps": 10, "num_kept": 200},
}
NUTS: dict[str, dict[str, Any]] = {
    "full": {"num_warmup": 2000, "num_samples": 5000, "num_kept": 10_000},
    "quick": {"num_warmup": 1000, "num_samples": 2000, "num_kept": 4000},
    "tiny": {"num_warmup": 100, "num_samples": 100, "num_kept": 400, "strict": False},
}
# Methods that train as in the paper: a given number of steps of ten samples.
RECIPES = ("paper", "paper-text", "realnvp", "planar")
# Targets whose repetitions are compared by their draws.
KEEP_ALL = ("nn-regression",)


def fit(scale: str, target: str, method: str, key: int = 0) -> Task:
    """Return one fit; the first keeps draws for the figures."""
    chosen = SETTINGS[scale]
    steps = chosen["recipe_steps"] if method in RECIPES else chosen["steps"]
    more = {} if steps is None else {"steps": steps}
    if scale == "tiny" and method == "mixture":
        more |= {"components": 2, "restarts": 2}
    kept = chosen["num_kept"] if key == 0 or target in KEEP_ALL else 0
    return fit_task(target, method, key, num_draws=chosen["num_draws"], num_kept=kept, **more)


def repetitions(scale: str, target: str, method: str) -> list[Task]:
    """Return all repetitions of one method on one target."""
    return [fit(scale, target, method, key) for key in range(SETTINGS[scale]["keys"])]


def truth(scale: str, target: str) -> Task:
    """Return the ground truth by NUTS."""
    return nuts_task(target, **NUTS[scale])


def describe_truth(result: Result) -> str:
    """Say how far the ground truth can be trusted."""
    return (
        f"NUTS: worst R-hat {result['rhat']:.4f}, at least {result['ess']:,.0f} effective of {result['num_draws']:,} "
        f"draws, {result['num_divergent']} divergent."
    )


def pooled_khat(results: Sequence[Result]) -> Pooled:
    """Pool the k-hat of repetitions by Rubin's rules."""
    return pool(np.array([r["khat"] for r in results]), np.array([r["khat_variance"] for r in results]))


def median(results: Sequence[Result], name: str) -> float | None:
    """Return the median of a figure over repetitions, None where it is unknown."""
    values = [r[name] for r in results]
    return None if None in values else float(np.median(values))


def kl_text(results: Sequence[Result]) -> str | None:
    """Write the median KL with its standard error, and the largest share that one draw has in a run."""
    if any(r["kl"] is None for r in results):
        return None
    middle = sorted(results, key=lambda r: r["kl"])[(len(results) - 1) // 2]
    share = max((r["largest_share"] for r in results), default=float("nan"))
    return f"{number(float(np.median([r['kl'] for r in results])))} ± {number(middle['elbo_se'], 1)} ({share:.1%})"


def summarize(scale: str, results: Results, target: str, methods: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Collect the figures of several methods on one target, for tables and for the JSON file."""
    summary = {}
    for method in methods:
        runs = results.of(repetitions(scale, target, method))
        khat = pooled_khat(runs)
        summary[method] = {
            "khat": khat.estimate,
            "khat_low": khat.low,
            "khat_high": khat.high,
            "khat_text": str(khat),
            "kl_text": kl_text(runs),
            **{f"{name}_median": median(runs, name) for name in ("kl", "elbo", "ess_fraction", "gradients")},
            **{
                f"{name}_runs": [run[name] for run in runs]
                for name in ("khat", "kl", "elbo", "elbo_se", "largest_share", "ess_fraction", "verdict")
            },
        }
    return summary
