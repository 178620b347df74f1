"""The page of the results: times and gradients, then verdicts and errors, then the references."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.models.catalogue import catalogue
from benchmarks.models.measure import OK
from benchmarks.models.methods import EXACT, GAUSSIAN, METHODS, NUTS, OURS
from benchmarks.models.references import Reference, load
from benchmarks.models.suite import FILE
from benchmarks.study.records import Record
from benchmarks.study.stamp import sentence
from benchmarks.study.tables import Table, number
from benchmarks.study.writing import write_whole

INTRODUCTION = (
    "Each method fits each model in a new process; the processes run one at a time on the same machine. Cold: the "
    "first call, with compilation but without imports. Warm: a second call in the same process with another key, made "
    "only if the first took at most two minutes. NUTS is NumPyro's with its defaults: four chains with 1,000 warmup "
    "steps and 1,000 draws each; the faster cold run of vectorized and parallel chains is shown. The gradients of "
    "NUTS are the leapfrog steps of all chains, including warmup; those of bernflow are the gradients of its training "
    "and of its search for a structured start, in which a Hessian-vector product counts as two. Every measurement is "
    f"in [{FILE}]({FILE})."
)
ERRORS = (
    "Errors relative to a long run of NUTS, on the unconstrained scale: errors of means in posterior standard "
    "deviations, and errors of standard deviations relative to the reference. The first number is the largest over "
    "all parameters, the one in parentheses the 95 % quantile. The errors of NUTS show its Monte Carlo error."
)
EXACT_DRAWS = (
    "`post.to_nuts()` with its defaults (300 steps of warmup, 1,000 draws, four chains) after the default fit, "
    "compared with NUTS without a fit. All times are cold, and those of `to_nuts` include the fit."
)
REFERENCES = (
    "The references are runs of NumPyro's NUTS in double precision, with four chains and a parametrization that mixes "
    "well. Only means, standard deviations and effective sample sizes are stored."
)


def write(out: Path, records: Sequence[Record], references: Path, command: str) -> Path:
    """Write README.md and return its path."""
    known = {name: reference for name in catalogue() if (reference := load(name, references)) is not None}
    text = markdown(records, known, command)
    return write_whole(out / "README.md", lambda file: file.write(text.encode()))


def markdown(records: Sequence[Record], references: Mapping[str, Reference], command: str) -> str:
    """Return the page as Markdown."""
    good = [record for record in records if record["status"] == OK]
    by_model: dict[str, dict[str, Record]] = {}
    for record in good:
        by_model.setdefault(record["model"], {})[record["method"]] = record
    parts = ["# Hierarchical models", INTRODUCTION, "## Time and gradients", _times(by_model).to_markdown()]
    parts += ["## Verdicts and errors", ERRORS, _accuracy(by_model).to_markdown()]
    exact = exact_draws(by_model)
    if exact is not None:
        parts += ["## Exact draws", EXACT_DRAWS, exact.to_markdown()]
    failures = [f"- {r['model']}, {METHODS[r['method']].label}: {r['status']}" for r in records if r["status"] != OK]
    if failures:
        parts += ["## Not measured", "\n".join(failures)]
    if references:
        parts += ["## References", REFERENCES, _references(references).to_markdown()]
    made = f"Made by `{command}`. {sentence(good)}"
    return "\n\n".join(part.rstrip("\n") for part in [*parts, made]) + "\n"


def fastest_nuts(found: Mapping[str, Record]) -> Record | None:
    """Return the record of the faster way to run the chains, None where NUTS was not run."""
    run = [found[name] for name in NUTS if name in found]
    return min(run, key=lambda record: record["cold_seconds"]) if run else None


def _times(by_model: Mapping[str, Mapping[str, Record]]) -> Table:
    columns = (
        "model",
        "p",
        "bernflow cold (s)",
        "warm (s)",
        "gradients",
        "gaussian-fullrank cold (s)",
        "warm (s)",
        "gradients",
        "NUTS cold (s)",
        "warm (s)",
        "gradients",
        "chains",
        "NUTS / bernflow, cold",
        "gradients",
    )
    rows = []
    for model, found in by_model.items():
        nuts = fastest_nuts(found)
        ours, gaussian = found.get(OURS), found.get(GAUSSIAN)
        any_record = next(iter(found.values()))
        rows.append(
            [
                model,
                any_record["dim"],
                *(cell for record in (ours, gaussian, nuts) for cell in _cost(record)),
                NUTS[nuts["method"]] if nuts else None,
                _ratio(nuts, ours, "cold_seconds"),
                _ratio(nuts, ours, "gradients"),
            ]
        )
    return Table(columns, rows)


def _cost(record: Record | None) -> list[float | int | str | None]:
    if record is None:
        return [None, None, None]
    return [record["cold_seconds"], record["warm_seconds"], f"{record['gradients']:,}"]


def _ratio(above: Record | None, below: Record | None, name: str) -> float | None:
    return above[name] / below[name] if above and below and below[name] else None


def _accuracy(by_model: Mapping[str, Mapping[str, Record]]) -> Table:
    columns = ("model", "method", "verdict", "k-hat", "ESS", "ELBO", "log evidence", "means (sd)", "sds (relative)")
    rows = []
    for model, found in by_model.items():
        nuts = fastest_nuts(found)
        for record in (found.get(OURS), found.get(GAUSSIAN), nuts):
            if record is None:
                continue
            rows.append(
                [
                    model,
                    METHODS[record["method"]].label,
                    record["verdict"],
                    record.get("khat"),
                    f"{record['min_ess_bulk']:.0f}" if record is nuts else f"{record['ess_fraction']:.1%}",
                    f"{record['elbo']:.3f}" if "elbo" in record else None,
                    f"{float(record['log_evidence']):.3f}" if "log_evidence" in record else None,
                    _error(record, "mean_error"),
                    _error(record, "sd_error"),
                ]
            )
    return Table(columns, rows)


def _error(record: Record, name: str) -> str | None:
    if f"{name}_largest" not in record:
        return None
    return f"{number(abs(record[f'{name}_largest']), 2)} ({number(record[f'{name}_q95'], 2)})"


def exact_draws(by_model: Mapping[str, Mapping[str, Record]]) -> Table | None:
    """Compare exact draws by a fit and `to_nuts` with plain NUTS; None where they were not measured."""
    columns = (
        "model",
        "verdict of the fit",
        "fit (s)",
        "fit and to_nuts (s)",
        "CPU (s)",
        "smallest ESS",
        "divergences",
        "NUTS (s)",
        "CPU (s)",
        "smallest ESS",
        "divergences",
        "CPU ms per effective draw",
        "NUTS",
    )
    rows = []
    for model, found in by_model.items():
        ours, nuts = found.get(EXACT), fastest_nuts(found)
        if ours is None:
            continue
        rows.append(
            [
                model,
                ours["fit_verdict"],
                ours["fit_seconds"],
                *_chains(ours),
                *_chains(nuts),
                _per_draw(ours),
                _per_draw(nuts),
            ]
        )
    return Table(columns, rows) if rows else None


def _chains(record: Record | None) -> list[float | int | str | None]:
    if record is None:
        return [None] * 4
    return [record["cold_seconds"], record.get("cpu_seconds"), f"{record['min_ess_bulk']:.0f}", record["divergences"]]


def _per_draw(record: Record | None) -> float | None:
    if record is None or "cpu_seconds" not in record:
        return None
    return 1e3 * record["cpu_seconds"] / record["min_ess_bulk"]


def _references(references: Mapping[str, Reference]) -> Table:
    columns = (
        "model",
        "draws of each chain",
        "smallest ESS",
        "largest R-hat",
        "divergences",
        "seconds",
        "commit, date",
    )
    rows = [
        [
            name,
            reference.header["settings"]["samples"],
            float(reference.header["ess_bulk"]),
            f"{reference.header['rhat']:.3f}",
            reference.header["divergences"],
            reference.header["seconds"],
            f"{reference.header['commit']}, {reference.header['date']}",
        ]
        for name, reference in references.items()
    ]
    return Table(columns, rows)
