"""`bernflow demo`: one hierarchical model from the data to a picture."""

import argparse
import textwrap
import warnings
from collections.abc import Iterator
from pathlib import Path

import bernflow as bf
from bernflow.cli.command import Command
from bernflow.experiments.targets import BENCHMARKS

SHOWN = ("mu", "tau", "theta")
NUM_DRAWS = 20_000
WIDTH = 79


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="folder for the results (default: demo)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default: 0)")
    parser.add_argument("--quiet", action="store_true", help="print only the verdict and the names of the files")


def run(options: argparse.Namespace) -> None:
    """Fit eight schools, print a summary, save the picture and the posterior."""
    # A folder that cannot be made should fail now, not after the fit.
    options.out.mkdir(parents=True, exist_ok=True)
    benchmark = BENCHMARKS["eight-schools-noncentered"]
    if not options.quiet:
        print("Eight schools: effects of coaching on test scores, a hierarchical model.", flush=True)
    with warnings.catch_warnings():
        # The verdict is printed below, whatever it is.
        warnings.filterwarnings("ignore", message="bernflow: ", category=UserWarning)
        posterior = bf.fit(benchmark.model, *benchmark.args, key=options.seed, progress=not options.quiet)
    lines = _verdict(posterior) if options.quiet else _summary(posterior, benchmark.log_evidence)
    print("\n".join(lines))
    picture = options.out / "posterior.png"
    posterior.plot(var_names=SHOWN, num=NUM_DRAWS).savefig(picture, dpi=120)
    saved = posterior.save(options.out / "posterior.bernflow")
    print(f"Picture:   {picture}\nPosterior: {saved}   (read it with bernflow.load)")


def _summary(posterior: bf.Posterior, log_evidence: float | None) -> Iterator[str]:
    """Yield the table of the parameters, the figures of the fit, and the verdict."""
    table = posterior.summary(num=NUM_DRAWS)
    yield ""
    yield f"{'':<12}" + "".join(f"{column:>10}" for column in ("mean", "sd", "5%", "95%"))
    for name, row in table.iterrows():
        if str(name).split("[")[0] in SHOWN:
            yield f"{name:<12}" + "".join(f"{value:>10.2f}" for value in row)
    d = posterior.diagnostics
    exact = "" if log_evidence is None else f"   (exact: {log_evidence:.4f})"
    yield ""
    yield f"{'k-hat':<14}{d.khat:>9.2f} ± {d.khat_se:.2f}     (below 0.7: weights are reliable)"
    yield f"{'ESS':<14}{100 * d.ess_fraction:>9.1f} %          of the draws, after weighting"
    yield f"{'ELBO':<14}{d.elbo:>9.4f} ± {d.elbo_se:.4f}"
    yield f"{'log evidence':<14}{d.log_evidence:>9.4f} ± {d.log_evidence_se:.4f}{exact}"
    yield f"{'time':<14}{posterior.settings['wall_seconds']:>9.1f} s,  {posterior.settings['steps']} steps"
    yield ""
    yield from _verdict(posterior)
    yield ""


def _verdict(posterior: bf.Posterior) -> list[str]:
    return textwrap.wrap(posterior.diagnostics.status, WIDTH)


COMMAND = Command(
    name="demo",
    summary="fit a well-known model and draw its posterior",
    description=(
        "Fit eight schools (non-centered), print the posterior with k-hat, effective sample size, evidence and "
        "verdict, and save its picture and the posterior to a folder."
    ),
    add_arguments=add_arguments,
    run=run,
)
