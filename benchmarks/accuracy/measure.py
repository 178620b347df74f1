"""One measurement: a target fitted by a method with a key, judged, as one record of plain values.

These are the functions that run in processes of their own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.accuracy import reference
from benchmarks.accuracy.cases import Case, all_cases
from benchmarks.accuracy.columns import Columns, to_columns
from benchmarks.accuracy.judge import errors, region_error, score
from benchmarks.accuracy.methods import METHODS, Drawn, Fitted, RefusedError
from benchmarks.study.plan import Result, Task
from benchmarks.study.stamp import stamp
from bernflow import BernflowError

# Draws for the evaluation must be none of those that the fit has seen: its keys are small integers.
EVALUATION_SEED = 10_000
# Draws behind the errors against the reference and the distance from it.
NUM_COMPARED = 20_000
OK = "ok"


def fit_task(
    target: str,
    method: str,
    key: int,
    settings: Mapping[str, Any],
    *,
    num_draws: int,
    out: Path,
    data: Path | None,
    matched: bool = False,
) -> Task:
    """Describe a measurement; what `measure` takes."""
    arguments = {"target": target, "method": method, "key": key, "settings": dict(settings), "matched": matched}
    places = {"out": str(out), "data": None if data is None else str(data)}
    return Task(f"{__name__}:measure", {**arguments, "num_draws": num_draws, **places})


def reference_task(target: str, settings: Mapping[str, Any], out: Path) -> Task:
    """Describe the run of NUTS that is the reference of a target; what `make_reference` takes."""
    return Task(f"{__name__}:make_reference", {"target": target, "settings": dict(settings), "out": str(out)})


def make_reference(target: str, settings: dict[str, Any], out: str) -> Result:
    """Make the reference of a target and keep it."""
    return {"status": reference.make(all_cases()[target].benchmark, Path(out), settings)}


def measure(
    target: str,
    method: str,
    key: int,
    settings: dict[str, Any],
    matched: bool,
    num_draws: int,
    out: str,
    data: str | None,
) -> Result:
    """Fit and judge once; what goes wrong becomes a status, so that one bad run does not stop the others.

    Args:
        target: name of a case.
        method: name of a method.
        key: seed of the fit.
        settings: what the method is told.
        matched: whether the method was given the gradient evaluations of ours, for the second table.
        num_draws: draws behind ELBO, KL, k-hat and ESS.
        out: folder of the results, where references are kept.
        data: folder of posteriordb.
    """
    record = {"target": target, "method": method, "key": key, "matched": matched, "settings": settings}
    record |= {"num_draws": num_draws, **stamp()}
    case = all_cases(data)[target]
    missing = METHODS[method].missing()
    if missing is not None:
        return {**record, "status": missing}
    try:
        fitted = METHODS[method].fit(case.benchmark, key, settings)
        return {**record, "status": OK, **judged(case, fitted, key, num_draws, Path(out), data)}
    except RefusedError as refusal:
        return {**record, "status": str(refusal)}
    # Other libraries raise what they like; the record says what.
    except (ArithmeticError, BernflowError, RuntimeError, TypeError, ValueError) as error:
        return {**record, "status": f"failed: {type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}


def judged(case: Case, fitted: Fitted, key: int, num_draws: int, out: Path, data: str | None) -> dict[str, Any]:
    """Return the figures of a fit."""
    drawn = fitted.draw(num_draws, EVALUATION_SEED + key)
    found: dict[str, Any] = {} if drawn.log_weights is None else score(drawn.log_weights, case.benchmark.log_evidence)
    found |= {"seconds": fitted.seconds, "gradients": fitted.gradients, "verdict": fitted.verdict}
    truth, described = reference.load(case, out, data)
    found["reference"] = described
    if truth is not None:
        columns = compared(drawn, truth)
        found |= errors(columns, truth, fitted.verdict, _worth(drawn))
        if "components" in case.benchmark.choices:
            found |= region_error(columns, truth, case.benchmark.choices["components"])
    return {**found, "details": dict(fitted.details)}


def compared(drawn: Drawn, truth: Columns) -> Columns:
    """Return the columns of draws that the reference has, no more than `NUM_COMPARED` of independent ones."""
    columns = to_columns(drawn.sites, lead=2 if drawn.chains else 1)
    return {name: columns[name] if drawn.chains else columns[name][:NUM_COMPARED] for name in truth}


def _worth(drawn: Drawn) -> float | None:
    """Return the number of independent draws that the compared ones are worth."""
    if drawn.num_effective is None:
        return None
    num = len(next(iter(drawn.sites.values())))
    # Resampled draws are worth no more than their pool, and no more than their own number.
    return min(drawn.num_effective, float(min(num, NUM_COMPARED)))
