"""PyMC's ADVI, mean field and full rank, on the log density of the target as one PyMC potential.

The targets are NumPyro models. PyMC gets their log density on R^p with its JAX gradient as one operation on a flat
vector: the same function that PyMC would build from a model of its own, up to the choice of the map to R^p and of the
starting point (zero here).
"""

import functools
import logging
import time
import warnings
from typing import Any

import jax
import numpy as np

from benchmarks.accuracy.density import Density
from benchmarks.accuracy.methods.base import DIVERGED, Drawn, Fitted, Method, RefusedError, Settings
from benchmarks.targets import Benchmark

KINDS = {
    "pymc-advi": ("advi", "ADVI (PyMC)", "mean-field"),
    "pymc-fullrank": ("fullrank_advi", "full-rank ADVI (PyMC)", "full-rank"),
}


def fit(benchmark: Benchmark, key: int, settings: Settings, kind: str) -> Fitted:
    """Fit a normal by `pm.fit` with its defaults."""
    import pymc as pm

    with jax.enable_x64(True), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC warns of its own internals
        logging.getLogger("pymc").setLevel(logging.ERROR)
        started = time.perf_counter()
        density = Density(benchmark)
        with pm.Model():
            x = pm.Flat("x", shape=density.dim)
            pm.Potential("log_density", _operation(density)(x))
            try:
                approximation = pm.fit(settings["steps"], method=kind, random_seed=key, progressbar=False)
            except FloatingPointError as error:
                raise RefusedError(DIVERGED) from error
        mean = np.asarray(approximation.mean.eval(), np.float64)
        factor = np.linalg.cholesky(np.asarray(approximation.cov.eval(), np.float64))
        seconds = time.perf_counter() - started

    def draw(num: int, seed: int) -> Drawn:
        with jax.enable_x64(True):
            z = np.random.default_rng(seed).normal(size=(num, len(mean)))
            x = mean + z @ factor.T
            log_q = -0.5 * np.sum(z**2 + np.log(2 * np.pi), axis=1) - np.sum(np.log(np.diagonal(factor)))
            return Drawn(density.constrain(x), density.evaluate(x) - log_q)

    return Fitted(draw, seconds, settings["steps"] * settings["num_particles"])


def _operation(density: Density) -> Any:
    """Make the log density an operation of PyTensor, with its gradient."""
    import pytensor.tensor as pt
    from pytensor.graph.basic import Apply
    from pytensor.graph.op import Op

    value = jax.jit(density.log_density)
    gradient = jax.jit(jax.grad(density.log_density))

    class Gradient(Op):
        gufunc_signature = "(p)->(p)"

        def make_node(self, *inputs: Any) -> Apply:
            return Apply(self, [pt.as_tensor_variable(inputs[0])], [pt.dvector()])

        def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
            outputs[0][0] = np.asarray(gradient(inputs[0]), np.float64)

    class LogDensity(Op):
        gufunc_signature = "(p)->()"

        def make_node(self, *inputs: Any) -> Apply:
            return Apply(self, [pt.as_tensor_variable(inputs[0])], [pt.dscalar()])

        def perform(self, node: Any, inputs: Any, outputs: Any) -> None:
            outputs[0][0] = np.asarray(value(inputs[0]), np.float64)

        def grad(self, inputs: Any, output_gradients: Any) -> list[Any]:
            return [output_gradients[0] * Gradient()(inputs[0])]

    return LogDensity()


METHODS = tuple(
    Method(
        name,
        label,
        functools.partial(fit, kind=kind),
        f"`pm.fit(method={kind!r})` with its defaults ({words} normal, 10,000 steps of one particle, adagrad_window), "
        "on the log density as a potential of a flat vector, from zero.",
        settings={"steps": 10_000, "num_particles": 1},
        needs=("pymc", "pymc"),
    )
    for name, (kind, label, words) in KINDS.items()
)
