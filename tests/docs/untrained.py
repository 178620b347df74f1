"""Stand-ins for what takes long in an example, so that all the rest of it runs for real and within a second or two.

`bf.fit` checks its arguments and reads the model as ever; only the training is left out, so that the posterior is a
narrow Gaussian around zero that is called good. NUTS returns draws of that. No Stan program is compiled. Longer
computations, whose results nothing can stand in for, end the example once their arguments have been checked.
"""

import dataclasses
import importlib
import inspect

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import SVI

import bernflow as bf
from bernflow.diagnostics import judge
from bernflow.fit.deadline import Deadline
from bernflow.fit.engine import describe_run
from bernflow.flows import FAMILIES, Spec
from bernflow.posterior.chains import NutsRun
from bernflow.precision import use_precision
from bernflow.target import layout_of

NUM_HISTORY = 4


class Enough(Exception):
    """The example has come to a computation that takes long, with arguments that fit."""


def install(setattr_=setattr):
    """Put the stand-ins in place, by a function like pytest's `monkeypatch.setattr`."""
    api = importlib.import_module("bernflow.fit.api")  # the name `bernflow.fit` is that of the function
    setattr_(api, "fit_target", lambda target, settings, *_: _steps(target.model, settings))
    setattr_(api, "fit_minibatches", lambda model, settings, *_: _steps(model, settings))
    setattr_(importlib.import_module("bernflow.posterior.nuts"), "run_nuts", _run_nuts)
    # `bernflow doctor` compiles a small Stan program, which takes longer than all other commands together.
    setattr_(importlib.import_module("bernflow.cli.doctor"), "check_compiler", lambda progress: None)
    setattr_(bf, "calibrate", _stop_at(bf.calibrate))
    setattr_(bf, "from_stan", _stop_at(bf.from_stan))
    setattr_(bf.SemiStructured, "fit", _stop_at(bf.SemiStructured.fit))
    setattr_(SVI, "run", _stop_at(SVI.run))


def _steps(model, settings):
    """Ask for no steps."""
    return _posterior(model, settings)
    yield


def _posterior(model, settings):
    with use_precision("float64"):
        layout = layout_of(model)
        spec = Spec(layout.dim, 2, "normal", 0)
        flow = FAMILIES["gaussian"].build(jax.random.key(0), spec, jnp.zeros(layout.dim), 0.1 * jnp.eye(layout.dim))
    diagnostics = dataclasses.replace(judge(np.zeros(1000), num_resamples=2), missing_mass=0.0)
    history = {"step": np.arange(NUM_HISTORY), "elbo": np.zeros(NUM_HISTORY), "elbo_se": np.ones(NUM_HISTORY)}
    described = settings.describe() | describe_run(NUM_HISTORY, 0, Deadline.start())
    return bf.Posterior(flow, layout, model, diagnostics, history, described)


def _run_nuts(posterior, model, num, warmup, chains, key, sampler, target_accept, progress):
    with use_precision(posterior.precision):
        x, _ = posterior.distribution.sample_and_log_prob(jax.random.key(0), chains * num)
    stats = {"diverging": np.zeros((chains, num), bool)}
    return NutsRun(
        np.asarray(x).reshape(chains, num, -1),
        stats,
        posterior.layout,
        model,
        1,
        {"sampler": sampler, "warmup": warmup},
    )


def _stop_at(function):
    """Return a function that binds its arguments as the real one would, and then ends the example."""
    signature = inspect.signature(function)

    def stand_in(*args, **kwargs):
        signature.bind(*args, **kwargs)
        raise Enough(f"{function.__qualname__} takes long")

    return stand_in
