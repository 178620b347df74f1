"""`bernflow demo`: fit a hierarchical model and plot its posterior."""

import argparse
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpyro
import numpyro.distributions as dist

import bernflow as bf
from bernflow.cli.command import INTERRUPTED, OK, Command
from bernflow.cli.printing import figure_lines, table_lines, wrapped

SHOWN = ("mu", "tau", "theta")
NUM_DRAWS = 20_000
# Rubin (1981): the estimated effects of coaching in eight schools, and their standard errors.
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
# Computed by quadrature over mu and tau.
LOG_EVIDENCE = -31.311347


def eight_schools(y: np.ndarray, sigma: np.ndarray) -> None:
    """Eight schools with standardized effects: theta = mu + tau * theta_trans."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    theta_trans = numpyro.sample("theta_trans", dist.Normal(0.0, 1.0).expand([len(y)]).to_event(1))
    theta = numpyro.deterministic("theta", mu + tau * theta_trans)
    with numpyro.plate("schools", len(y)):
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="DIR", help="folder for the results (default: demo)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed (default: 0)")
    parser.add_argument("--quiet", action="store_true", help="print only the verdict and the names of the files")


def run(options: argparse.Namespace) -> int:
    """Fit eight schools, print a summary, and save a figure, a report and the posterior."""
    # Fail before the fit if the folder cannot be created.
    options.out.mkdir(parents=True, exist_ok=True)
    if not options.quiet:
        print("Eight schools: effects of coaching on test scores, a hierarchical model.", flush=True)
    with warnings.catch_warnings():
        # The verdict is printed below.
        warnings.filterwarnings("ignore", message="bernflow: ", category=UserWarning)
        posterior = bf.fit(eight_schools, EFFECTS, ERRORS, key=options.seed, progress=not options.quiet)
    if not options.quiet:
        print("\n".join(_summary(posterior, LOG_EVIDENCE)))
    print("\n".join(wrapped(posterior.diagnostics.status)))
    if not options.quiet:
        print()
    picture = options.out / "posterior.png"
    posterior.plot(var_names=SHOWN, num=NUM_DRAWS).savefig(picture, dpi=120)
    report = posterior.report(options.out / "report.html", title="Eight schools")
    saved = posterior.save(options.out / "posterior.bernflow")
    print(f"Picture:   {picture}\nReport:    {report}   (open it in a browser)")
    print(f"Posterior: {saved}   (read it with bernflow.load)")
    return INTERRUPTED if posterior.settings["interrupted"] else OK


def _summary(posterior: bf.Posterior, log_evidence: float) -> Iterator[str]:
    """Yield the table of the parameters and the statistics of the fit."""
    table = posterior.summary(num=NUM_DRAWS)
    yield ""
    yield from table_lines([(str(name), row[:4]) for name, row in table.iterrows() if str(name).split("[")[0] in SHOWN])
    yield ""
    yield from figure_lines(posterior, log_evidence)
    yield ""


COMMAND = Command(
    name="demo",
    summary="fit a well-known model and plot its posterior",
    description=(
        "Fit eight schools (non-centered), print the posterior with k-hat, effective sample size, evidence and "
        "verdict, and save a figure, a report and the posterior to a folder."
    ),
    add_arguments=add_arguments,
    run=run,
    epilog="""
examples:
  bernflow demo
  bernflow demo --seed 1 --out other --quiet
""",
)
