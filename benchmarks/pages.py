"""The pages of the suites as their records make them: `python -m benchmarks.pages` writes them, measuring nothing."""

from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.accuracy import page as accuracy
from benchmarks.accuracy.cases import all_cases
from benchmarks.adversarial import page as adversarial
from benchmarks.exactness import suite as exactness
from benchmarks.models import page as models
from benchmarks.models import references
from benchmarks.models.catalogue import catalogue
from benchmarks.nuts import suite as nuts
from benchmarks.nuts import table as nuts_table
from benchmarks.posteriordb import suite as posteriordb
from benchmarks.posteriordb import table as posteriordb_table
from benchmarks.records import with_origin
from benchmarks.speed import page as speed
from benchmarks.stopping import suite as stopping
from benchmarks.study.records import Record, load_records
from benchmarks.study.writing import write_whole

ROOT = Path(__file__).parents[1]
Write = Callable[[Sequence[Record]], str]


def _models(records: Sequence[Record]) -> str:
    folder = ROOT / "results" / "models" / references.FOLDER
    known = {name: found for name in catalogue() if (found := references.load(name, folder)) is not None}
    return models.markdown(records, known, "bernflow benchmark models")


def _speed(records: Sequence[Record]) -> str:
    return speed.markdown(records, "bernflow benchmark speed", True)


# By page, from the root of the repository: the file of records beside it, and what makes the page of them.
PAGES: dict[str, tuple[str, Write]] = {
    "results/accuracy/README.md": (
        "accuracy.json",
        lambda records: accuracy.markdown(records, all_cases(), "bernflow benchmark accuracy", True),
    ),
    "results/models/README.md": ("models.json", _models),
    "results/adversarial/README.md": (
        "adversarial.json",
        lambda records: adversarial.markdown(records, "bernflow benchmark adversarial"),
    ),
    "results/speed/README.md": ("speed.json", _speed),
    "results/speed-gpu/README.md": ("speed.json", _speed),
    "benchmarks/nuts/results/nuts.md": (
        "nuts.json",
        lambda records: with_origin(nuts_table.markdown(records, nuts.NOTES), records),
    ),
    "benchmarks/exactness/results/exactness.md": (
        "exactness.json",
        lambda records: with_origin(exactness.markdown(records), records),
    ),
    "benchmarks/stopping/results/stopping.md": (
        "stopping.json",
        lambda records: with_origin(stopping.markdown(records), records),
    ),
    "benchmarks/posteriordb/results/posteriordb.md": (
        "posteriordb.json",
        lambda records: with_origin(posteriordb_table.markdown(records, posteriordb.NOTES), records),
    ),
}


def made(page: str) -> str:
    """Return a page as its records make it."""
    file, write = PAGES[page]
    return write(load_records((ROOT / page).with_name(file)))


def main() -> None:
    """Write all pages anew."""
    for page in PAGES:
        text = made(page)
        write_whole(ROOT / page, lambda file, text=text: file.write(text.encode()))


if __name__ == "__main__":
    main()
