"""A common interface of the NUTS samplers of NumPyro and blackjax, in the space of a flow."""

import dataclasses
import importlib
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key
from numpyro.infer import NUTS
from numpyro.infer.util import ParamInfo

from bernflow import target
from bernflow.errors import ArgumentError
from bernflow.flows.base import AbstractFlow
from bernflow.models.base import AbstractModel
from bernflow.target import AbstractLayout


class Whitened(eqx.Module):
    """The log density of a posterior in the space of the noise of a flow."""

    flow: AbstractFlow
    layout: AbstractLayout
    model: AbstractModel

    def __call__(self, z: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate log p(x(z), data) + log |dx/dz|."""
        x, log_det = self.flow.transform_and_log_det(z)
        return target.log_density(self.layout, self.model, x) + log_det


class Points(NamedTuple):
    """Starting points of the chains, with their log density and its gradient."""

    z: Float[Array, "chains p"]
    log_density: Float[Array, " chains"]
    gradient: Float[Array, "chains p"]


class Step(NamedTuple):
    """The result of one or several steps of all chains; the statistics have the names of ArviZ."""

    z: Float[Array, "*steps chains p"]
    log_density: Float[Array, "*steps chains"]
    stats: dict[str, Array]


def no_steps(num: int, chains: int, dim: int) -> Step:
    """Return empty arrays for `num` steps."""
    shape = (num, chains)
    kinds = {"diverging": bool, "n_steps": np.int32, "tree_depth": np.int32}
    floats = dict.fromkeys(("acceptance_rate", "step_size", "energy"), None)
    stats = {name: jnp.zeros(shape, kind) for name, kind in {**kinds, **floats}.items()}
    return Step(jnp.zeros((*shape, dim)), jnp.zeros(shape), stats)


class Sampler(Protocol):
    """A sampler of several chains; instances are compared by value, so that equal ones share compiled functions."""

    @property
    def warmup_steps(self) -> int:
        """Number of calls of `step` that belong to the warmup."""

    def start(self, density: Whitened, points: Points, keys: Key[Array, " chains"]) -> tuple[Any, Int[Array, ""]]:
        """Return the first state of the chains and the number of gradient evaluations for it."""

    def step(self, density: Whitened, state: Any) -> tuple[Any, Step]:
        """Take one step with every chain."""


@dataclasses.dataclass(frozen=True)
class NumpyroSampler:
    """NumPyro's NUTS with its own warmup."""

    warmup: int
    target_accept: float

    @property
    def warmup_steps(self) -> int:
        """All warmup steps; the state contains the end of the warmup."""
        return self.warmup

    def start(self, density, points, keys):
        """Start every chain at its point."""
        return self._begin(density, points, keys)[1], jnp.asarray(0)

    def step(self, density, state):
        """Take one step with every chain."""
        # A kernel gets its warmup from `init`; the given state avoids a computation of another one.
        points = Points(state.z, -state.potential_energy, -state.z_grad)
        kernel, _ = self._begin(density, points, state.rng_key)
        state = kernel.sample(state, (), {})
        stats = {
            "diverging": state.diverging,
            "n_steps": state.num_steps,
            "tree_depth": jnp.floor(jnp.log2(state.num_steps)).astype(int) + 1,
            "acceptance_rate": state.accept_prob,
            "step_size": state.adapt_state.step_size,
            "energy": state.energy,
        }
        return state, Step(state.z, -state.potential_energy, stats)

    def _begin(self, density, points, keys):
        kernel = NUTS(potential_fn=lambda z: -density(z), target_accept_prob=self.target_accept)
        at = ParamInfo(points.z, -points.log_density, -points.gradient)
        return kernel, kernel.init(keys, self.warmup, at)


@dataclasses.dataclass(frozen=True)
class BlackjaxSampler:
    """blackjax's NUTS after its window adaptation."""

    warmup: int
    target_accept: float

    @property
    def warmup_steps(self) -> int:
        """None: the warmup ends before the first step."""
        return 0

    def start(self, density, points, keys):
        """Run the adaptation of every chain from its point."""
        blackjax = import_blackjax()
        keep = blackjax.adaptation.base.get_filter_adapt_info_fn(info_keys={"num_integration_steps"})
        adaptation = blackjax.window_adaptation(
            blackjax.nuts, density, target_acceptance_rate=self.target_accept, adaptation_info_fn=keep
        )

        def one(z, key):
            warmup_key, key = jax.random.split(key)
            (state, parameters), info = adaptation.run(warmup_key, z, self.warmup)
            return (state, parameters, key), jnp.sum(info.info.num_integration_steps) + 1

        state, num_gradients = jax.vmap(one)(points.z, keys)
        return state, jnp.sum(num_gradients)

    def step(self, density, state):
        """Take one step with every chain."""
        nuts = import_blackjax().nuts

        def one(state, parameters, key):
            step_key, key = jax.random.split(key)
            state, info = nuts(density, **parameters).step(step_key, state)
            return (state, parameters, key), info

        (state, parameters, keys), info = jax.vmap(one)(*state)
        stats = {
            "diverging": info.is_divergent,
            "n_steps": info.num_integration_steps,
            "tree_depth": info.num_trajectory_expansions,
            "acceptance_rate": info.acceptance_rate,
            "step_size": parameters["step_size"],
            "energy": info.energy,
        }
        return (state, parameters, keys), Step(state.position, state.logdensity, stats)


def import_blackjax() -> ModuleType:
    """Import blackjax, which is optional."""
    try:
        return importlib.import_module("blackjax")
    except ImportError as error:
        raise ArgumentError(
            "sampler='blackjax' needs the package blackjax, which is not installed: pip install 'bernflow[peers]', or "
            "use sampler='numpyro'."
        ) from error


SAMPLERS: dict[str, Any] = {"numpyro": NumpyroSampler, "blackjax": BlackjaxSampler}
