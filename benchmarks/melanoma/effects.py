"""The effect of age: its posteriors, and whether it is smaller beside the pictures."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm

from benchmarks.melanoma import plan
from benchmarks.melanoma.predictions import SPLITS
from benchmarks.melanoma.tables import load_m2_draws, load_m3_density
from benchmarks.study.plan import Result, Results
from benchmarks.study.tables import Table


class Slope(NamedTuple):
    """A posterior of beta_1: mean, sd, 90 % interval, and k-hat, share of effective draws and verdict of the fit."""

    name: str
    mean: float
    sd: float
    low: float
    high: float
    khat: float | None = None
    ess_fraction: float | None = None
    verdict: str | None = None


class Effect(NamedTuple):
    """How the effect of age changes beside the pictures.

    Attributes:
        name: of the model and split.
        alone: the effect without pictures, on the same rows.
        beside: beside them, the mean over seeds.
        paired_sd: of the difference, given the networks.
        spread: standard deviation of the difference over seeds.
        sd: of the mean difference, both together.
    """

    name: str
    alone: float
    beside: float
    paired_sd: float
    spread: float
    sd: float

    @property
    def difference(self) -> float:
        """The effect beside the pictures minus that without them."""
        return self.beside - self.alone

    @property
    def probability_smaller(self) -> float:
        """The probability that the effect is smaller beside the pictures, in the normal approximation."""
        return float(norm.sf(self.difference / self.sd))


def slope_of(name: str, draws: np.ndarray, fit: Mapping[str, Any] | None = None) -> Slope:
    """Summarize draws."""
    values = np.asarray(draws, float)
    low, high = np.quantile(values, (0.05, 0.95))
    fit = {} if fit is None else fit
    return Slope(
        name, values.mean(), values.std(), low, high, fit.get("khat"), fit.get("ess_fraction"), fit.get("verdict")
    )


def pooled(fits: list[Result]) -> np.ndarray:
    """Return the draws of all seeds together, whose spread contains that over networks."""
    return np.concatenate([fit["draws/beta_1"] for fit in fits]).astype(float)


def slopes(scale: str, results: Results) -> list[Slope]:
    """Return all posteriors of beta_1."""
    found = []
    if "M2" in plan.chosen_models():
        for method, label in plan.M2_METHODS.items():
            fit = results[plan.m2_run(scale, method)]
            found.append(slope_of(f"M2, {label}", fit["draws/beta_1"], fit))
        found.append(slope_of("M2, the paper's NUTS", load_m2_draws().beta))
    published = _of_density(*load_m3_density())
    found += [published] if "M3" in plan.chosen_models() else []
    for by_patient, where in SPLITS.items():
        for model, network, split in plan.groups(scale):
            if model == "M3" and split == by_patient:
                label = f"M3, {'network' if network == 'paper' else 'better network'}"
                fits = results.of(plan.ensemble(scale, model, network, by_patient))
                found += [slope_of(f"{label} {i + 1}, {where}", f["draws/beta_1"], f) for i, f in enumerate(fits)]
        for networks in (plan.DEFAULT_NETWORKS, plan.MORE_NETWORKS):
            fits = results.of(plan.crossfitted_runs(scale, "M3", by_patient, networks))
            label = f"M3, default posterior{'' if networks == plan.DEFAULT_NETWORKS else f', {networks} networks'}"
            found += [slope_of(f"{label}, seed {i}, {where}", f["draws/beta_1"], f) for i, f in enumerate(fits)]
            if len(fits) > 1:
                found.append(slope_of(f"{label}, {len(fits)} seeds, {where}", pooled(fits)))
    return found


def slopes_table(found: list[Slope]) -> Table:
    """Return the posteriors as a table."""
    columns = ("posterior", "β₁ mean", "β₁ sd", "5 %", "95 %", "k-hat", "ESS / draws", "verdict")
    return Table(columns, [list(slope) for slope in found], digits=3)


def effects(scale: str, results: Results) -> list[Effect]:
    """Return the change of the effect for every split and number of networks."""
    found = []
    for by_patient, where in SPLITS.items():
        for networks in (plan.DEFAULT_NETWORKS, plan.MORE_NETWORKS):
            changes = [f["change"] for f in results.of(plan.crossfitted_runs(scale, "M3", by_patient, networks))]
            if changes:
                found.append(_effect(f"{networks} networks, {where}", changes))
    return found


def _effect(name: str, changes: list[dict[str, float]]) -> Effect:
    beside = np.array([change["beside"] for change in changes])
    paired = float(np.sqrt(np.mean([change["sd"] ** 2 for change in changes])))
    spread = float(beside.std(ddof=1)) if len(beside) > 1 else 0.0
    total = float(np.hypot(paired, spread / len(beside) ** 0.5))
    return Effect(name, changes[0]["alone"], float(beside.mean()), paired, spread, total)


def effects_table(found: list[Effect]) -> Table:
    """Return the changes as a table."""
    columns = (
        "model",
        "β₁ without pictures",
        "β₁ beside them",
        "difference",
        "sd, paired",
        "sd over seeds",
        "sd, both",
        "P(smaller beside them)",
    )
    rows = [
        [e.name, e.alone, e.beside, e.difference, e.paired_sd, e.spread, e.sd, e.probability_smaller] for e in found
    ]
    return Table(columns, rows, digits=3)


def _of_density(x: np.ndarray, density: np.ndarray) -> Slope:
    """Summarize a density on a grid."""
    weight = density / density.sum()
    mean = float(np.sum(weight * x))
    sd = float(np.sqrt(np.sum(weight * (x - mean) ** 2)))
    low, high = np.interp((0.05, 0.95), np.cumsum(weight), x)
    return Slope("M3, the paper", mean, sd, float(low), float(high))
