"""bernflow itself: its defaults, what a user who knows the posterior would say, and the recipe of the paper."""

import time
import warnings

import jax

import bernflow as bf
from benchmarks.accuracy.methods.base import Drawn, Fitted, Method, Settings
from benchmarks.families import ORDER_OF_TEXT, TEXT, fit_options
from benchmarks.targets import Benchmark
from bernflow.fit.engine import num_starts
from bernflow.fit.start import MAX_ITERATIONS

DEFAULTS, THOROUGH, CHOICES = "bernflow", "bernflow-thorough", "bernflow-choices"
FULL_RANK, PAPER, PAPER_TEXT = "start-fullrank", "bernstein-paper", "bernstein-paper-text"
OURS = (DEFAULTS, THOROUGH, CHOICES)
# As a user says it who wants the best fit: train until the ELBO stops improving.
TO_THE_END = {"tolerance": 0}


def fit(benchmark: Benchmark, key: int, settings: Settings) -> Fitted:
    """Fit by `bf.fit` with these settings."""
    started = time.perf_counter()
    post = fit_by_bernflow(benchmark, key, settings)
    seconds = time.perf_counter() - started
    made = post.settings

    def draw(num: int, seed: int) -> Drawn:
        # The same key gives the same draws to both.
        return Drawn(post.draws(num, key=seed), post.log_weights(num, key=seed))

    training = int(made["training_gradients"])
    start = made.get("start_gradients")  # None where the fit has not counted them
    if start is None:
        start = 0 if made["family"] in (PAPER, TEXT) else most_of_start(post.layout.dim, made["restarts"])
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


def fit_by_bernflow(benchmark: Benchmark, key: int, settings: Settings) -> bf.Posterior:
    """Return the posterior by `bf.fit`, all of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a poor verdict warns; it is in the record
        post = bf.fit(benchmark.model, *benchmark.args, key=key, progress=False, **fit_options(settings))
    if post.settings["interrupted"]:
        raise KeyboardInterrupt  # half a fit is no result to keep
    return post


def most_of_start(dim: int, restarts: int) -> int:
    """Return the most gradients that the Newton paths to the start can take: a Hessian counts as one per dimension.

    A fit may end at its start; rivals with the same budget must not be left with nothing.
    """
    num_paths = max(num_starts(dim), 4 * restarts if restarts > 1 else 1)
    return MAX_ITERATIONS * num_paths * (dim + 1)


def knowledge(benchmark: Benchmark) -> Settings:
    """Return what a user who knows the posterior would tell `bf.fit`."""
    return {**({} if benchmark.order is None else {"order": benchmark.order}), **benchmark.choices}


# The training in the text of the paper; RMSprop is the default of this family.
_RECIPE = {"steps": 100_000, "num_particles": 10}
_COUNTED = "Gradients: those of the steps, and the most that the Newton paths to its start can take."

METHODS = (
    Method(DEFAULTS, "bernflow", fit, f"`bf.fit(model, *args)`, all settings at their defaults. {_COUNTED}"),
    Method(
        THOROUGH,
        "bernflow, thorough",
        fit,
        f"`bf.fit(model, *args, tolerance=0)`: trained until the ELBO stops improving. {_COUNTED}",
        settings=TO_THE_END,
    ),
    Method(
        CHOICES,
        "bernflow, options tuned",
        fit,
        "As thorough, and told what a user who knows the posterior would say (`components` for separate modes, order "
        "50 for Cauchy); only where there is something to say.",
        settings=TO_THE_END,
        applies=lambda benchmark: bool(knowledge(benchmark)),
        told=knowledge,
    ),
    Method(
        FULL_RANK,
        "full-rank normal, our start",
        fit,
        "`bf.fit(..., family='gaussian-fullrank', tolerance=0)`: a full-rank normal from bernflow's start, trained by "
        "bernflow until the ELBO stops improving.",
        settings={"family": "gaussian-fullrank", **TO_THE_END},
    ),
    Method(
        PAPER,
        "paper's recipe",
        fit,
        "The recipe of the paper as its authors published it: 50 coefficients, conditioner without activation on the "
        "noise, inner affine map fixed, positive parameters by softplus, RMSprop 0.001, 100,000 steps of 10 "
        "independent draws.",
        settings={"family": "bernstein-paper", **_RECIPE},
        quick={"steps": 10_000},
    ),
    Method(
        PAPER_TEXT,
        "paper's text",
        fit,
        "The same by the text of the paper where that differs: order 50, conditioner with activations on the noise "
        "after the sigmoid, inner affine map trained.",
        settings={"family": TEXT, "order": ORDER_OF_TEXT, **_RECIPE},
        quick={"steps": 10_000},
    ),
)
