"""All kept results: how each is made, on what, how long it takes, and whether it is that of the present code.

`python -m benchmarks.results check` names what is older than the code behind it, `make` makes what is old or missing,
`index` writes the page that leads to all of it. Every result is made by a command that continues where it stopped.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks import overview_page
from benchmarks.catalogue import EXPERIMENTS
from benchmarks.study.digest import closure, code_digest, path_of
from benchmarks.study.record import duration, read_origin, why_old
from benchmarks.study.records import Record, load_records, save_records

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
# Experiments whose networks take days without a GPU.
ON_GPU = ("melanoma",)
# Pages and pictures that are made of results, or of fits that take minutes; words after the interpreter.
MADE_OF_RESULTS = (
    ("-m", "benchmarks.results", "index"),
    ("-m", "benchmarks.readme"),
    ("-m", "benchmarks.points"),
    ("docs/drawings.py",),
    ("docs/figures.py",),
    ("docs/gallery.py",),
    ("docs/outputs.py",),
)
MAX_NAMED = 4
UNKNOWN = "duration not known"


@dataclass(frozen=True)
class Kept:
    """One kept result.

    Attributes:
        name: how the index and messages call it.
        title: what it is.
        page: its page, from the root of the repository.
        command: what makes it, words after the interpreter's `-m`.
        old: returns why it is not that of the present code, one sentence each; nothing where it is.
        seconds: returns how long it took, None where that is not known.
        gpu: whether it needs a GPU.
        prepare: what to do before the command, where that does not look at the code by itself.
    """

    name: str
    title: str
    page: str
    command: tuple[str, ...]
    old: Callable[[], list[str]]
    seconds: Callable[[], float | None] = lambda: None
    gpu: bool = False
    prepare: Callable[[], None] = lambda: None

    @property
    def shown_command(self) -> str:
        """Write the command as a user types it."""
        return " ".join(self.command) if self.command[0] == "bernflow" else f"python -m {' '.join(self.command)}"


def _experiment(name: str, results: Path = RESULTS) -> Kept:
    experiment, folder = EXPERIMENTS[name], results / name

    def old() -> list[str]:
        why = why_old(experiment, folder)
        return [] if why is None else [why]

    def seconds() -> float | None:
        origin = read_origin(folder)
        return None if origin is None else origin["seconds"]

    command = ("bernflow", "reproduce", name)
    return Kept(name, experiment.summary, f"results/{name}/README.md", command, old, seconds, name in ON_GPU)


def _suite(name: str, title: str, page: str, file: str, module: Callable[[Record], Iterable[str]], **more: Any) -> Kept:
    """Describe a suite with one file of records; `module` names the modules behind one of them."""
    path = ROOT / Path(page).parent / file

    def seconds() -> float | None:
        took = [r.get("took") for r in load_records(path)]
        known = [seconds for seconds in took if seconds is not None]
        return sum(known) if known and len(known) == len(took) else None

    options = {"command": ("bernflow", "benchmark", name), **more}
    return Kept(name, title, page, old=lambda: old_records(path, module), seconds=seconds, **options)


def old_records(path: Path, modules: Callable[[Record], Iterable[str]]) -> list[str]:
    """Say how many records of a file are not those of the present code, and why."""
    if not path.is_file():
        return ["was never made"]
    reasons: dict[str, list[str]] = {}
    records = [r for r in load_records(path) if r.get("part") != "machine"]
    for record in records:
        why = why_record_is_old(record, modules(record))
        if why is not None:
            name = next((str(record[n]) for n in ("target", "model", "case", "name") if n in record), "")
            reasons.setdefault(why, []).append(name)
    return [f"{len(names)} of {len(records)} records {why}{_some(names)}" for why, names in reasons.items()]


def drop_old(path: Path, modules: Callable[[Record], Iterable[str]]) -> None:
    """Remove the records of other code from a file, so that its suite makes them anew."""
    if path.is_file():
        notes = json.loads(path.read_text(encoding="utf-8"))["notes"]
        save_records(path, [r for r in load_records(path) if why_record_is_old(r, modules(r)) is None], notes)


def why_record_is_old(record: Record, modules: Iterable[str]) -> str | None:
    """Say why a record is not that of the present code: by its digest, or else by what changed since its commit."""
    if record.get("code"):
        return None if record["code"] == code_digest(*modules) else "were made by other code"
    if not record.get("commit"):
        return "do not say by what code they were made"
    paths = [str(path_of(name)) for name in sorted(closure(modules))]
    command = ["git", "-C", str(ROOT), "diff", "--quiet", record["commit"].rstrip("+"), "--", *paths]
    code = subprocess.run(command, capture_output=True, check=False).returncode
    return {0: None, 1: f"are of commit {record['commit']}, whose code has changed"}.get(
        code, f"are of commit {record['commit']}, which is not in this repository"
    )


def _some(names: list[str]) -> str:
    found = list(dict.fromkeys(filter(None, names)))
    return f" ({', '.join(found[:MAX_NAMED])}{', ...' if len(found) > MAX_NAMED else ''})" if found else ""


def _accuracy_modules(record: Record) -> tuple[str, ...]:
    from benchmarks.accuracy.methods import METHODS
    from benchmarks.accuracy.suite import COMMON

    method = METHODS.get(record["method"])
    return COMMON if method is None else (*COMMON, method.module)


def _beside(name: str, title: str) -> Kept:
    """Describe a suite whose results lie beside it."""
    page = f"benchmarks/{name}/results/{name}.md"
    return _suite(name, title, page, f"{name}.json", lambda record: (f"benchmarks.{name}.suite",))


def _files(name: str, title: str, pattern: str, module: str, command: tuple[str, ...], gpu: bool = False) -> Kept:
    """Describe figures that are one JSON file per run."""

    def old() -> list[str]:
        files = sorted((ROOT / "benchmarks").glob(pattern))
        reasons = {path.name: why_record_is_old(json.loads(path.read_text()), (module,)) for path in files}
        return [f"{file} {_of_one(why)}" for file, why in reasons.items() if why] if files else ["was never made"]

    page = f"benchmarks/{Path(pattern).parent}/README.md"
    return Kept(name, title, page, ("bernflow", "benchmark", *command), old, gpu=gpu)


def _of_one(reason: str) -> str:
    """Put a sentence about several records into the singular."""
    singular = {"they were": "it was", "were made": "was made", "do not say": "does not say", "are of": "is of"}
    for many, one in singular.items():
        reason = reason.replace(many, one)
    return reason


def _adversarial(record: Record) -> Iterable[str]:
    return ("benchmarks.adversarial.suite",)


def _speed(record: Record) -> Iterable[str]:
    return ("benchmarks.speed.measure",)


def _cost(dtype: str) -> Kept:
    """Describe the cost of a posterior beside a network in one arithmetic."""
    file = f"semistructured/results/h200_{dtype}.json"
    words = ("semistructured", "--dtype", dtype, "--out", f"benchmarks/{file}")
    title = f"cost of a posterior beside a network, {dtype}"
    return _files(f"semistructured-{dtype}", title, file, "benchmarks.semistructured.suite", words, gpu=True)


def _suites() -> list[Kept]:
    """Return the suites whose pages lie in results/."""
    adversarial = RESULTS / "adversarial" / "adversarial.json"
    return [
        _suite(
            "accuracy",
            "every method on every posterior, against the truth",
            "results/accuracy/README.md",
            "accuracy.json",
            _accuracy_modules,
            command=("bernflow", "benchmark", "accuracy", "--jobs", "2"),
        ),
        _suite(
            "models",
            "hierarchical models beside NUTS",
            "results/models/README.md",
            "models.json",
            lambda record: ("benchmarks.models.measure",),
            command=("bernflow", "benchmark", "models", "--references"),
        ),
        _suite(
            "adversarial",
            "how often the verdict is wrong",
            "results/adversarial/README.md",
            adversarial.name,
            _adversarial,
            command=("bernflow", "benchmark", "adversarial", "--jobs", "2"),
            prepare=lambda: drop_old(adversarial, _adversarial),
        ),
        _suite("speed", "steps, wall time, growth, on one CPU", "results/speed/README.md", "speed.json", _speed),
        _suite(
            "speed-gpu",
            "the same on one GPU",
            "results/speed-gpu/README.md",
            "speed.json",
            _speed,
            command=("bernflow", "benchmark", "speed", "--out", "results/speed-gpu"),
            gpu=True,
        ),
    ]


def all_results() -> list[Kept]:
    """Return all kept results in the order in which they are made."""
    return [
        *map(_experiment, EXPERIMENTS),
        *_suites(),
        _beside("posteriordb", "posteriors of posteriordb by three front ends"),
        _beside("nuts", "NUTS with and without the flow"),
        _beside("exactness", "models with known evidence"),
        _beside("stopping", "whether fits end early or late"),
        _files("stan", "Stan programs beside NumPyro", "stan/results/stan.json", "benchmarks.stan.suite", ("stan",)),
        *map(_cost, ("float32", "bfloat16")),
    ]


def check() -> int:
    """Print what is older than the code behind it; return how many results are."""
    found = {kept.name: kept.old() for kept in all_results()}
    for name, reasons in found.items():
        for reason in reasons:
            print(f"{name}: {reason}")
    num = sum(map(bool, found.values()))
    print(f"{num} of {len(found)} results are older than the code behind them." if num else "All results are current.")
    return num


def make(gpu: bool, names: list[str]) -> int:
    """Make what is old or missing, and then the pages that are made of it; return how many commands failed."""
    failed = []
    for kept in all_results():
        if (names and kept.name not in names) or not kept.old():
            continue
        if kept.gpu and not gpu:
            print(
                f"{kept.name}: needs a GPU; on a machine with one: python -m benchmarks.results make --gpu {kept.name}"
            )
            continue
        print(f"{kept.name}: {kept.shown_command}", flush=True)
        kept.prepare()
        if _run(("-m", *kept.command)):
            failed.append(kept.name)
    follow = () if names else MADE_OF_RESULTS
    failed += [" ".join(words) for words in follow if _run(words, stdout=subprocess.DEVNULL)]
    if failed:
        print(f"Not finished: {', '.join(failed)}. The same command goes on from there.")
    return len(failed)


def _run(words: Sequence[str], **options: Any) -> int:
    return subprocess.run([sys.executable, *words], cwd=ROOT, check=False, **options).returncode


def durations() -> dict[str, str]:
    """Return how long every result took when it was last made."""
    found = {kept.name: kept.seconds() for kept in all_results()}
    return {name: UNKNOWN if seconds is None else duration(seconds) for name, seconds in found.items()}


def index(out: Path = RESULTS) -> None:
    """Write the page that leads to all results, or, in another folder, to the experiments that are there."""
    kept = all_results()
    if out.resolve() != RESULTS:
        kept = [replace(_experiment(name, out), page=f"{name}/README.md") for name in EXPERIMENTS]
    root = ROOT if out.resolve() == RESULTS else out
    entries = [
        overview_page.Entry(k.name, k.title, root / k.page, k.shown_command, k.seconds(), k.gpu)
        for k in kept
        if (root / k.page).is_file()
    ]
    if entries:
        overview_page.write(out, entries)


def main(words: list[str] | None = None) -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.results", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="name the results that are older than the code behind them")
    commands.add_parser("index", help="write the page that leads to all results")
    making = commands.add_parser("make", help="make what is old or missing")
    making.add_argument("names", nargs="*", metavar="NAME", help="some of the results (default: all)")
    making.add_argument("--gpu", action="store_true", help="also what needs a GPU")
    options = parser.parse_args(words)
    if options.command == "check":
        return min(check(), 1)
    if options.command == "make":
        return min(make(options.gpu, options.names), 1)
    index()
    return 0


if __name__ == "__main__":
    sys.exit(main())
