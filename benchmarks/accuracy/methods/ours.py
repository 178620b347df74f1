"""bernflow itself: its defaults, what a user who knows the posterior would say, and the recipe of the paper."""

import time
import warnings

import jax

import bernflow as bf
from benchmarks.accuracy.methods.base import Drawn, Fitted, Method, Settings
from benchmarks.families import fit_options
from benchmarks.targets import Benchmark
from bernflow.fit.engine import num_starts
from bernflow.fit.start import MAX_ITERATIONS

DEFAULTS, CHOICES, PAPER = "bernflow", "bernflow-choices", "bernstein-paper"


def fit(benchmark: Benchmark, key: int, settings: Settings) -> Fitted:
    """Fit by `bf.fit`; where no number of steps is given, until the ELBO stops improving."""
    options = fit_options(settings if "steps" in settings else {"tolerance": 0, **settings})
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a poor verdict warns; it is in the record
        post = bf.fit(benchmark.model, *benchmark.args, key=key, progress=False, **options)
    seconds = time.perf_counter() - started
    if post.settings["interrupted"]:
        raise KeyboardInterrupt  # half a fit is no result to keep
    made = post.settings

    def draw(num: int, seed: int) -> Drawn:
        # The same key gives the same draws to both.
        return Drawn(post.draws(num, key=seed), post.log_weights(num, key=seed))

    training = int(made["training_gradients"])
    start = made.get("start_gradients")  # None where the fit has not counted them
    if start is None:
        start = 0 if made["family"] == PAPER else most_of_start(post.layout.dim, made["restarts"])
    return Fitted(
        draw,
        seconds,
        training + int(start),
        post.diagnostics.verdict,
        {
            "steps": int(made["steps"]),
            "training_gradients": training,
            "status": post.diagnostics.status,
            "jax": jax.__version__,
        },
    )


def most_of_start(dim: int, restarts: int) -> int:
    """Return the most gradients that the Newton paths to the start can take: a Hessian counts as one per dimension.

    A fit may end at its start; rivals with the same budget must not be left with nothing.
    """
    num_paths = max(num_starts(dim), 4 * restarts if restarts > 1 else 1)
    return MAX_ITERATIONS * num_paths * (dim + 1)


def knowledge(benchmark: Benchmark) -> Settings:
    """Return what a user who knows the posterior would tell `bf.fit`."""
    return {**({} if benchmark.order is None else {"order": benchmark.order}), **benchmark.choices}


METHODS = (
    Method(
        DEFAULTS,
        "bernflow",
        fit,
        "`bf.fit(model, *args, tolerance=0)`, other settings at their defaults. Gradients: those of the training "
        "steps, plus an upper limit for the Newton paths that find the start.",
    ),
    Method(
        CHOICES,
        "bernflow, options tuned",
        fit,
        "`bf.fit` with the options that a user who knows the posterior would set (`components` for separate modes, "
        "order 50 for Cauchy); only for targets where there are such options.",
        applies=lambda benchmark: bool(knowledge(benchmark)),
        told=knowledge,
    ),
    Method(
        PAPER,
        "paper's recipe",
        fit,
        "The flow and training recipe of the paper: order 50, RMSprop 0.001, 100,000 steps of 10 particles.",
        # The recipe in the text of the paper; RMSprop is the default of this family.
        settings={"family": "bernstein-paper", "order": 50, "steps": 100_000, "num_particles": 10},
        quick={"steps": 10_000},
    ),
)
