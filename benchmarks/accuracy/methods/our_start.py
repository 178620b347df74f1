"""Other methods from where bernflow starts: what they reach there is not owed to bernflow's flow.

The start is the Gaussian of mode and curvature that bernflow's Newton paths find. Alone, it is a method; as affine map
it whitens the target for the flows of other libraries, which then begin where ours does.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float

from benchmarks.accuracy.density import Density, Points
from benchmarks.accuracy.methods import flowjax_spline, numpyro_guides, ours
from benchmarks.accuracy.methods.base import Fitted, Method, Settings
from benchmarks.accuracy.methods.ours import fit_by_bernflow, most_of_start
from benchmarks.targets import Benchmark

# One step so small that it moves nothing.
START = {"family": "gaussian-fullrank", "steps": 1, "num_particles": 1, "optimizer": 1e-12}


@dataclass(frozen=True)
class Start:
    """The Gaussian N(loc, F F^T) on NumPyro's R^p, sites in model order."""

    loc: Float[np.ndarray, " p"]
    factor: Float[np.ndarray, "p p"]

    @property
    def log_det(self) -> float:
        """Return log |det F|."""
        return float(np.linalg.slogdet(self.factor)[1])


def find(benchmark: Benchmark, key: int) -> Start:
    """Return the start of bernflow's fits in NumPyro's order of the dimensions; to be called in `enable_x64`."""
    post = fit_by_bernflow(benchmark, key, START)
    layout, dim = post.layout, post.layout.dim
    points = jnp.concatenate([jnp.zeros((1, dim)), jnp.eye(dim)])
    flow: Any = post.distribution
    mapped = np.asarray(jax.vmap(lambda z: flow.transform_and_log_det(z)[0])(points))
    begins = np.concatenate([[0], np.cumsum(layout.sizes)])
    places = np.concatenate([np.arange(begins[i], begins[i + 1]) for i in layout.order])
    loc, factor = np.empty(dim), np.empty((dim, dim))
    loc[places], factor[places] = mapped[0], (mapped[1:] - mapped[0]).T
    return Start(loc, factor)


class Whitened:
    """A density of u with x = loc + F u: near the start it is that of a standard normal."""

    def __init__(self, density: Density, start: Start):
        self._density, self._start = density, start
        self.dim = density.dim

    def log_density(self, u: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate the log density at one point."""
        start = self._start
        return self._density.log_density(jnp.asarray(start.loc) + jnp.asarray(start.factor) @ u) + start.log_det

    def evaluate(self, u: Points) -> Float[np.ndarray, " num"]:
        """Evaluate the log density at many points; NaN counts as a density of zero."""
        return self._density.evaluate(self._map(u)) + self._start.log_det

    def constrain(self, u: Points) -> dict[str, np.ndarray]:
        """Map many points to named values on the scale of the model."""
        return self._density.constrain(self._map(u))

    def _map(self, u: Points) -> Float[np.ndarray, "num p"]:
        return self._start.loc + np.asarray(u) @ self._start.factor.T


def white_problem(benchmark: Benchmark, key: int) -> numpyro_guides.Problem:
    """Return the whitened target as a NumPyro model of one vector."""
    white = Whitened(Density(benchmark), find(benchmark, key))

    def model() -> None:
        u = numpyro.sample("u", dist.Normal(0.0, 1.0).expand([white.dim]).to_event(1))
        # The sites of the target are none of this model.
        with numpyro.handlers.block():
            log_density = white.log_density(u)
        numpyro.factor("target", log_density + 0.5 * jnp.sum(u**2 + jnp.log(2 * jnp.pi)))

    return numpyro_guides.Problem(model, (), white)


def white_density(benchmark: Benchmark, key: int) -> Whitened:
    """Return the whitened target as a density."""
    return Whitened(Density(benchmark), find(benchmark, key))


def _from_start(name: str, plain: Method, fit: Callable[..., Fitted]) -> Method:
    described = f"As {plain.label}, on the target whitened by the Gaussian from which bernflow starts; seconds and "
    described += "gradients include the search for it."
    return Method(
        name, f"{plain.label}, our start", fit, described, plain.settings, plain.quick, plain.needs, plain.applies
    )


def _with_search(fit: Callable[..., Fitted]) -> Callable[[Benchmark, int, Settings], Fitted]:
    """Add the gradients of the search for the start to those of a training."""

    def counted(benchmark: Benchmark, key: int, settings: Settings) -> Fitted:
        fitted = fit(benchmark, key, settings)
        with jax.enable_x64(True):
            search = most_of_start(Density(benchmark).dim, 1)
        return Fitted(fitted.draw, fitted.seconds, (fitted.gradients or 0) + search, fitted.verdict, fitted.details)

    return counted


_PLAIN: dict[str, Any] = {method.name: method for method in (*numpyro_guides.METHODS, *flowjax_spline.METHODS)}

METHODS = (
    Method(
        "start",
        "bernflow's start, untrained",
        ours.fit,
        "The Gaussian of mode and curvature from which bernflow's training starts: `family='gaussian-fullrank'` with "
        "one step that moves nothing.",
        settings=START,
    ),
    *(
        _from_start(
            f"start-{short}",
            _PLAIN[guide],
            _with_search(functools.partial(numpyro_guides.fit, guide_name=guide, make_problem=white_problem)),
        )
        for short, guide in (("IAF", "AutoIAFNormal"), ("BNAF", "AutoBNAFNormal"))
    ),
    _from_start(
        "start-spline",
        _PLAIN["flowjax-spline"],
        _with_search(functools.partial(flowjax_spline.fit, make_density=white_density)),
    ),
)
