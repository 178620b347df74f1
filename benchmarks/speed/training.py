"""What is timed of bernflow: one compiled chunk of training steps, the one that `bf.fit` runs."""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float

from benchmarks import data
from benchmarks.families import fit_options
from benchmarks.targets import eight_schools_noncentered
from bernflow.fit.batches.rows import Batches
from bernflow.fit.batches.stage import WEIGHTS_OPTIMIZER
from bernflow.fit.building import flows_at
from bernflow.fit.deadline import Deadline, Pace
from bernflow.fit.settings import FULL_RATE_DIM, Settings, resolve_settings
from bernflow.fit.start import Gaussian
from bernflow.fit.train.objective import AllRows, Anchor, BatchFeed, BatchOfRows
from bernflow.fit.train.recipe import CHUNK, Recipe, StepConfig, recipe_for
from bernflow.fit.train.scan import network_steps_at_once
from bernflow.fit.train.state import as_stack, begin, on_device, with_network
from bernflow.fit.train.steps import Chunk, inputs_of, run_chunk, take_steps
from bernflow.keys import as_key, nth
from bernflow.models import AbstractModel, as_model
from bernflow.models.base import AbstractJointModel
from bernflow.precision import use_precision
from bernflow.target import Target

# A small constant rate: the arithmetic is that of any other, and a long timing does not leave the posterior.
RATE = 1e-3
# Parameters of eight schools beside the effects: mu and tau.
NUM_SHARED = 2


def schools(dim: int) -> AbstractModel:
    """Return the non-centered hierarchy of eight schools with more or fewer schools, `dim` parameters in all.

    Its density costs a multiple of `dim`: in the growth of a step the flow is what is seen.
    """
    y, sigma = data.load_eight_schools()
    chosen = np.arange(max(dim - NUM_SHARED, 1)) % len(y)
    return as_model(eight_schools_noncentered, (np.asarray(y)[chosen], np.asarray(sigma)[chosen]), {})


def regression(num_rows: int, num_predictors: int) -> AbstractModel:
    """Return a linear regression on simulated rows."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(num_rows, num_predictors))
    y = x @ np.linspace(-1.0, 1.0, num_predictors) + rng.normal(size=num_rows)
    return as_model(linear_model, (x, y), {})


def linear_model(x: Float[Array, "n k"], y: Float[Array, " n"]) -> None:
    """Linear regression with unknown noise: as many parameters as predictors, and one."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(x @ b, sigma), obs=y)


def resolved(settings: Mapping[str, Any]) -> Settings:
    """Choose how to train: family, order, num_particles, restarts and precision as of `bf.fit`, or their defaults."""
    names = ("family", "order", "num_particles", "restarts", "precision")
    return resolve_settings(**fit_options({name: settings[name] for name in names if name in settings}))


class Training:
    """Flows in training, from a standard normal start: nothing is searched for, so that only steps are timed.

    Args:
        make: makes the model, in the precision of the training.
        settings: family, order, num_particles, restarts and precision as of `bf.fit`; what is left out is its default.
        chunk: steps of one call.
    """

    def __init__(self, make: Any, settings: Mapping[str, Any], chunk: int = CHUNK):
        self.settings = resolved(settings)
        self.chunk = chunk
        with use_precision(self.settings.precision):
            self.target = Target(make())
            dim, num = self.target.dim, self.settings.restarts
            start = Gaussian(np.zeros((1, dim)), np.eye(dim)[None], np.zeros(1))
            flows = flows_at(self.settings, dim, start, np.zeros(num, int), jax.random.key(0))
            self.state = begin(flows, self.settings.optimizer)
            self.recipe = recipe_for(self.settings, flows)
            self._rates = np.full(chunk, RATE * min(1.0, FULL_RATE_DIM / dim))
        self.elbo: float | None = None  # nothing has run

    def _chunk(self) -> Chunk:
        powers, pace = np.zeros(self.settings.restarts), Pace(Deadline.start())
        return Chunk(self.state, AllRows(self.target), as_key(1), self._rates, powers, self.recipe, pace)

    def lower(self) -> Any:
        """Trace the steps whose noise is drawn at once and translate them for XLA."""
        with use_precision(self.settings.precision):
            chunk = self._chunk()
            inputs = next(inputs_of(chunk))
            return run_chunk.lower(chunk.state, chunk.objective, inputs, chunk.powers, config=chunk.recipe.config)

    def run(self) -> None:
        """Run one chunk and look at what it saw, as `bf.fit` does."""
        with use_precision(self.settings.precision):
            self.state, trace = take_steps(self._chunk())
            self.elbo = float(np.mean(trace.elbo))

    def described(self) -> dict[str, Any]:
        """Return what was timed, for the record."""
        return {
            "dim": self.target.dim,
            "order": self.settings.order,
            "num_particles": self.settings.num_particles,
            "restarts": self.settings.restarts,
            "precision": self.settings.precision,
            "elbo": self.elbo,
            "device": jax.devices()[0].device_kind,
        }


class JointTraining:
    """A flow, and a network where the model has one, in training on batches of rows; in the precision in use.

    Args:
        model: the model with its rows.
        batch_size: rows of a step.
        settings: how to train, see `resolved`.
        chunk: steps of one call.
        resident: whether the rows lie on the device.
    """

    def __init__(self, model: AbstractJointModel, batch_size: int, settings: Settings, chunk: int, resident: bool):
        self.settings, self.chunk = settings, chunk
        self.model = model.without_rows()
        self.target = Target(self.model)
        self.batches = Batches(model.rows(), model.num_rows(), batch_size, seed=0, resident=resident)
        dim, has_network = self.target.dim, model.trained()[0] is not None
        optimizer = WEIGHTS_OPTIMIZER if has_network else None
        self.recipe = Recipe(
            StepConfig(settings.optimizer, use_score=True, weights_optimizer=optimizer),
            learning_rate=RATE,
            num_particles=settings.num_particles,
            weights_rate=RATE if has_network else None,
            constant_rate=True,
        )
        flow = settings.family.build(jax.random.key(0), settings.spec(dim), jnp.zeros(dim), jnp.eye(dim))
        self.state = begin(as_stack(flow), settings.optimizer)
        if has_network:
            self.state = with_network(self.state, *model.trained(), WEIGHTS_OPTIMIZER)
        # Where the control variates stand changes nothing in the cost of a step; a network has none.
        anchor = None if has_network else Anchor(jnp.zeros(dim), jnp.zeros(()), jnp.zeros(dim))
        self.feed = BatchFeed(BatchOfRows(self.target.layout, on_device(self.model), anchor), self.batches)
        self.at_once = network_steps_at_once() if has_network else chunk
        self.done = 0

    def _chunks(self, num: int, at_once: int) -> Iterator[Chunk]:
        """Yield what is needed for so many steps."""
        for objective, batch in self.feed.chunks([at_once] * (num // at_once), self.done, at_once):
            rates = self.recipe.rates(at_once), self.recipe.weights_rates(at_once)
            pace, key = Pace(Deadline.start()), nth(as_key(1), self.done)
            yield Chunk(self.state, objective, key, rates[0], np.zeros(1), self.recipe, pace, batch, rates[1])

    def run(self) -> None:
        """Run one chunk and look at what it saw, as `bf.fit` does."""
        for chunk in self._chunks(self.chunk, self.at_once):
            self.state, _ = take_steps(chunk._replace(state=self.state))
            self.done += self.at_once

    def inputs(self) -> tuple[Any, ...]:
        """Return what one step is given, but for its configuration."""
        chunk = next(self._chunks(1, 1))
        return chunk.state, chunk.objective, next(inputs_of(chunk)), chunk.powers

    def step(self, *inputs: Any) -> Any:
        """Take one step, as a function of its inputs."""
        return run_chunk(*inputs, config=self.recipe.config)

    def lower(self) -> Any:
        """Trace one step and translate it for XLA."""
        return run_chunk.lower(*self.inputs(), config=self.recipe.config)

    def described(self) -> dict[str, Any]:
        """Return what was timed, for the record."""
        return {
            "dim": self.target.dim,
            "batch_size": self.batches.batch_size,
            "num_particles": self.settings.num_particles,
            "precision": self.settings.precision,
            "device": jax.devices()[0].device_kind,
        }
