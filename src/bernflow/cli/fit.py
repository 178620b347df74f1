"""`bernflow fit`: fit a model and data from files, and write the posterior to a folder."""

import argparse
import sys
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path

import bernflow as bf
from bernflow.cli.command import INTERRUPTED, OK, POOR, Command
from bernflow.cli.printing import COLUMNS, figure_lines, table_lines, wrapped
from bernflow.errors import ArgumentError, ModelError
from bernflow.files import ensure_writable, json_text
from bernflow.fit.checks.effort import CHECKS
from bernflow.fit.deadline import Deadline
from bernflow.fit.settings import resolve_settings
from bernflow.posterior.tables import written
from bernflow.posterior.weighting import AUTO
from bernflow.runs.folder import CSV, FORMATS, NETCDF, Run, check_formats, check_free, fingerprint, write_run
from bernflow.runs.source import load_model, split_name
from bernflow.text import printable

MAX_ROWS = 30
# Options that are passed to `bernflow.fit` unchanged.
FIT_OPTIONS = ("family", "steps", "tolerance", "restarts", "components", "checks")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a Stan program MODEL.stan, or MODEL.py:NAME: a NumPyro model function, a bernflow, PyMC or Bambi model, "
        "or a function that returns one, in a Python file (default NAME: model). A Python file is executed: run only "
        "files that you trust",
    )
    parser.add_argument(
        "data",
        nargs="?",
        type=Path,
        metavar="DATA",
        help="the data: JSON in CmdStan's format, or a table as CSV or Parquet, whose columns are arrays and whose "
        "number of rows is N; a Python function gets them as keyword arguments. Omit it if the model takes no data",
    )
    parser.add_argument("--data", type=Path, dest="data_option", metavar="DATA", help="the same as DATA")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the results (default: the model's name and -fit). An earlier run in it is replaced; a folder "
        "with other files is an error",
    )
    parser.add_argument(
        "--force", action="store_true", help="write to DIR even if it holds other files, which are kept"
    )
    fit = parser.add_argument_group("the fit")
    fit.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default: 0)")
    fit.add_argument("--family", default="bernstein", metavar="NAME", help="family of flows (default: bernstein)")
    fit.add_argument("--order", type=_count, metavar="N", help="order of the polynomials (default: 20)")
    fit.add_argument("--steps", type=_count, metavar="N", help="training steps (default: until --tolerance is met)")
    fit.add_argument(
        "--tolerance",
        type=float,
        metavar="NATS",
        help="stop when the estimated KL divergence is below this (default: 0.01, more above 30 dimensions); 0 trains "
        "until the ELBO stops improving",
    )
    fit.add_argument(
        "--time-limit",
        type=float,
        metavar="SECONDS",
        help="return the best fit so far after this time, compilation included (default: no limit)",
    )
    fit.add_argument(
        "--restarts",
        type=_count,
        metavar="N",
        help="number of fits from different starts, to find several modes (default: 1)",
    )
    fit.add_argument(
        "--components",
        type=_count,
        metavar="N",
        help="largest number of components of a mixture (default: one; more if other starts find missing mass)",
    )
    fit.add_argument(
        "--checks",
        choices=tuple(CHECKS),
        default="default",
        help="effort of the search for posterior mass that the fit misses; thorough may take longer than the fit",
    )
    fit.add_argument(
        "--resume",
        type=Path,
        metavar="DIR",
        help="write checkpoints to DIR; the same command continues from the last one after an interruption",
    )
    draws = parser.add_argument_group("the draws")
    draws.add_argument("--draws", type=_count, default=4000, metavar="N", help="how many (default: 4000)")
    draws.add_argument(
        "--resample",
        action=argparse.BooleanOptionalAction,
        help="resample by Pareto-smoothed importance weights, which corrects the remaining error of the fit (default: "
        "where the verdict says that it does)",
    )
    draws.add_argument(
        "--format",
        type=_formats,
        default=(CSV, NETCDF),
        metavar="LIST",
        help=f"their file formats: some of {', '.join(FORMATS)}, separated by commas (default: {CSV},{NETCDF})",
    )
    output = parser.add_argument_group("output")
    output.add_argument("--quiet", action="store_true", help="print only the verdict and the folder, no progress bar")
    output.add_argument("--json", action="store_true", help="print the result as JSON, and nothing else, on stdout")
    parser.set_defaults(refuse=parser.error)


def run(options: argparse.Namespace) -> int:
    """Fit, write the folder, and print the results."""
    settings = {name: getattr(options, name) for name in FIT_OPTIONS}
    try:
        if options.data is not None and options.data_option is not None:
            raise ArgumentError(f"DATA was given twice, {options.data} and --data {options.data_option}: expected one.")
        data = options.data or options.data_option
        path, _ = split_name(options.model)
        training = bf.Training(order=options.order)
        resolve_settings(training=training, **settings)
        Deadline.start(options.time_limit)
    except ArgumentError as error:
        options.refuse(str(error))
    out = options.out or Path(f"{path.stem}-fit")
    # Fail before the fit if the results cannot be written.
    check_formats(options.format)
    check_free(out, options.force)
    ensure_writable(out.parent)
    with redirect_stdout(sys.stderr) if options.json else nullcontext(), _spoken_warnings(), _shown_causes():
        source = load_model(options.model, data, progress=not options.quiet)
        posterior = bf.fit(
            source.model,
            model_kwargs=source.model_kwargs,
            key=options.seed,
            time_limit=options.time_limit,
            resume=options.resume,
            progress=not options.quiet,
            training=training,
            **settings,
        )
        origin = {
            "model": {**(fingerprint(path) or {}), "given": options.model},
            "data": fingerprint(data),
            "options": {"seed": options.seed, "time_limit": options.time_limit, "order": options.order, **settings},
        }
        found = write_run(
            posterior,
            out,
            num=options.draws,
            weighted=AUTO if options.resample is None else options.resample,
            formats=options.format,
            origin=origin,
        )
    code = INTERRUPTED if found.manifest["interrupted"] else POOR if found.manifest["verdict"] == "poor" else OK
    print(_as_json(found, code) if options.json else "\n".join(_report(posterior, found, options.quiet)))
    return code


def _report(posterior: bf.Posterior, found: Run, quiet: bool) -> Iterator[str]:
    if not quiet:
        figures = found.summary[list(COLUMNS)].itertuples(index=False)
        rows = [(label, written(list(row))) for label, row in zip(found.labels, figures, strict=True)]
        # Scalars first, as in every table: a long array would hide them.
        rows.sort(key=lambda row: row[0].endswith("]"))
        yield ""
        yield from table_lines(rows, "", MAX_ROWS, f": {found.folder / 'summary.csv'}")
        yield ""
        yield from figure_lines(posterior)
        yield ""
    yield from wrapped(posterior.diagnostics.status)
    if found.manifest["weighted"] and not quiet:
        yield from wrapped("The draws are resampled by their importance weights; use --no-resample to disable this.")
    if posterior.diagnostics.verdict != "good" and not quiet:
        yield ""
        yield "What to do next (in Python, with post = bernflow.load(...)):"
        for sentence in posterior.advice:
            yield from wrapped(f"- {sentence.replace('`', '')}")
    for note in found.manifest["notes"]:
        yield from wrapped(f"Note: {note}")
    if not quiet:
        yield ""
    yield f"Results: {found.folder}   ({', '.join(found.manifest['files'])})" if not quiet else f"{found.folder}"


def _as_json(found: Run, code: int) -> str:
    result = {
        **found.diagnostics,
        "interrupted": found.manifest["interrupted"],
        "exit_code": code,
        "out": str(found.folder),
        "files": found.manifest["files"],
        "draws": found.manifest["draws"],
        "weighted": found.manifest["weighted"],
        "notes": found.manifest["notes"],
        "summary": found.summary.to_dict("index"),
    }
    return json_text(result).rstrip("\n")


@contextmanager
def _spoken_warnings() -> Iterator[None]:
    """Print warnings as sentences, except for those that the verdict repeats."""

    def say(message: Warning | str, *_: object) -> None:
        text = printable(str(message), keep="\n\t")
        print(text if text.startswith("bernflow: ") else f"bernflow: {text}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.simplefilter("default", UserWarning)
        warnings.filterwarnings("ignore", message="bernflow: Poor", category=UserWarning)
        warnings.showwarning = say  # type: ignore[assignment]
        yield


@contextmanager
def _shown_causes() -> Iterator[None]:
    """Print the traceback of an error in user code before the error message."""
    try:
        yield
    except ModelError as error:
        if error.__cause__ is not None and "traceback" in str(error):
            traceback.print_exception(error.__cause__)
        raise


def _count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least 1")
    return count


def _formats(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    if not set(names) <= set(FORMATS):
        raise argparse.ArgumentTypeError(f"{text!r}: expected some of {', '.join(FORMATS)}, separated by commas")
    return names


COMMAND = Command(
    name="fit",
    summary="fit a Stan, NumPyro, PyMC or Bambi model",
    description=(
        "Fit a model, print the posterior with its verdict, and write a folder with the draws (draws.csv in CmdStan's "
        "layout, draws.nc for ArviZ), summary.csv, diagnostics.json, report.html, posterior.bernflow (read it with "
        "bernflow.load) and run.json, the record of how they were made. Ctrl-C ends the training early: the fit so far "
        "is judged and written; a second Ctrl-C stops at once."
    ),
    add_arguments=add_arguments,
    run=run,
    epilog="""
examples:
  bernflow fit eight_schools.stan eight_schools.json --out schools
  bernflow fit model.py:model data.csv --time-limit 60 --draws 10000
  bernflow fit model.stan data.json --quiet --json | jq .khat

exit codes:
    0  the fit is good or usable
    1  an error; nothing is written
    2  the command line is invalid
    3  the fit has finished with the verdict poor; the results are written
  130  interrupted; the fit so far is written, if there is one
""",
)
