"""All stress targets by name, with what is known exactly of each."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.stress import regressions, shapes
from benchmarks.targets import Benchmark


def _shape(
    name: str, title: str, *sizes: int, log_evidence: float = 0.0, choices: dict[str, Any] | None = None
) -> Benchmark:
    """Describe one of `shapes`: a model without data, whose function for draws is called like it."""
    function = name.split("-")[0].replace("multivariate", "multivariate_student")
    draws = getattr(shapes, f"{function}_draws")
    return Benchmark(
        name,
        title,
        partial(getattr(shapes, function), *sizes),
        tuple,
        log_evidence=log_evidence,
        exact_draws=partial(draws, *sizes),
        choices=choices or {},
    )


def _conjugate(name: str, title: str, load: Callable[[], tuple[Any, ...]]) -> Benchmark:
    """Describe a regression whose posterior is a known Gaussian."""
    mean, factor, log_evidence = regressions.conjugate_posterior(*load())

    def draws(seed: int, num: int) -> dict[str, np.ndarray]:
        return {"b": mean + np.random.default_rng(seed).normal(size=(num, len(mean))) @ factor.T}

    return Benchmark(name, title, regressions.regression, load, log_evidence=log_evidence, exact_draws=draws)


_ALL = (
    _shape("funnel-2", "Funnel, p = 2", 2),
    _shape("funnel-10", "Funnel, p = 10", 10),
    _shape("funnel-50", "Funnel, p = 50", 50),
    _shape("banana", "Banana"),
    _shape("ring", "Ring", log_evidence=shapes.ring_log_evidence(), choices={"components": 4}),
    _shape("correlated-100", "Gaussian, condition 10^6, p = 100", 100),
    _shape("student-10", "Student-t(3), independent, p = 10", 10),
    _shape("multivariate-10", "Student-t(3), multivariate, p = 10", 10),
    _shape("modes-2-2", "Two modes, p = 2", 2, 2, choices={"components": 2}),
    _shape("modes-2-10", "Two modes, p = 10", 2, 10, choices={"components": 2}),
    _shape("modes-8-2", "Eight modes, p = 2", 8, 2, choices={"components": 8}),
    _shape("modes-8-10", "Eight modes, p = 10", 8, 10, choices={"components": 8}),
    _shape("boundary", "Against the boundary"),
    Benchmark("horseshoe", "Horseshoe regression, p = 50", regressions.horseshoe, regressions.horseshoe_data),
    Benchmark("cox-process", "Log-Gaussian Cox process, p = 256", regressions.cox_process, regressions.cox_data),
    Benchmark("item-response", "Item response, p = 201", regressions.item_response, regressions.item_response_data),
    Benchmark(
        "volatility",
        "Stochastic volatility, p = 300",
        regressions.stochastic_volatility,
        regressions.volatility_data,
    ),
    Benchmark("separated", "Logistic, separated classes", regressions.logistic, regressions.separated_data),
    _conjugate("units", "Units of 1e-5 and 1e5", regressions.units_data),
    _conjugate("calendar", "Uncentered calendar year", regressions.calendar_data),
)

STRESS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _ALL}
