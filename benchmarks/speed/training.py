"""What is timed of bernflow: one compiled chunk of training steps, the one that `bf.fit` runs."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float

from benchmarks import data
from benchmarks.targets import eight_schools_noncentered
from bernflow.fit import joint
from bernflow.fit.batches import Batches
from bernflow.fit.building import flows_at
from bernflow.fit.chunk import CHUNK, begin, draw_noise, run_chunk, steps_at_once, take_steps
from bernflow.fit.jointly import WEIGHTS_OPTIMIZER
from bernflow.fit.settings import FULL_RATE_DIM, Settings, resolve_settings
from bernflow.fit.start import Gaussian
from bernflow.keys import as_key, grid
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
    given: dict[str, Any] = {name: settings.get(name) for name in names}
    given["family"] = given["family"] or "bernstein"
    return resolve_settings(**given, base=None, steps=None, components=None, optimizer=None)


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
            self.trainee = begin(flows, self.settings.optimizer)
            self._rates = np.full(chunk, RATE * min(1.0, FULL_RATE_DIM / dim))
        self.elbo: float | None = None  # nothing has run

    @property
    def method(self) -> dict[str, Any]:
        """How the flows are trained."""
        use_score = self.settings.trains_by_score(self.trainee.flow)
        return {"optimizer": self.settings.optimizer, "use_score": use_score}

    def lower(self) -> Any:
        """Trace the steps whose noise is drawn at once and translate them for XLA."""
        with use_precision(self.settings.precision):
            flows, num, num_particles = self.trainee.flow, self.settings.restarts, self.settings.num_particles
            num_steps = steps_at_once(flows, self.chunk, num_particles)
            keys, use_score = grid(as_key(1), (num, 2)), self.method["use_score"]
            noise = draw_noise(flows, keys, num_steps=num_steps, num_particles=num_particles, use_score=use_score)
            return run_chunk.lower(
                self.trainee, self.target, noise, self._rates[:num_steps], np.zeros(num), **self.method
            )

    def run(self) -> None:
        """Run one chunk and look at what it saw, as `bf.fit` does."""
        with use_precision(self.settings.precision):
            self.trainee, trace = take_steps(
                self.trainee,
                self.target,
                as_key(1),
                self._rates,
                np.zeros(self.settings.restarts),
                num_particles=self.settings.num_particles,
                **self.method,
            )
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
        self.method = joint.JointMethod(
            flow_optimizer=settings.optimizer,
            flow_rate=RATE,
            weights_optimizer=WEIGHTS_OPTIMIZER,
            weights_rate=RATE,
            num_particles=settings.num_particles,
            use_score=True,
            constant_rate=True,
        )
        dim = self.target.dim
        flow = settings.family.build(jax.random.key(0), settings.spec(dim), jnp.zeros(dim), jnp.eye(dim))
        self.trainee = joint.begin(flow, model, self.method)
        # Where the control variates stand changes nothing in the cost of a step; a network has none.
        has_network = self.trainee.weights is not None
        self.anchor = None if has_network else joint.Anchor(jnp.zeros(dim), jnp.zeros(()), jnp.zeros(dim))
        self.done = 0

    def run(self) -> None:
        """Run one chunk and look at what it saw, as `bf.fit` does."""
        self.trainee, self.done = joint.train_jointly(
            self.trainee,
            self.model,
            self.target.layout,
            self.batches,
            jax.random.key(1),
            self.method,
            self.done + self.chunk,
            lambda *_: None,
            anchor=self.anchor,
            first_step=self.done,
        )

    def inputs(self) -> tuple[Any, ...]:
        """Return what one step is given, but for the method."""
        ((rows, indices),) = self.batches.chunks([1])
        fixed = (joint.on_device(self.model), self.target.layout, self.anchor, rows, indices)
        return fixed, self.trainee, grid(as_key(1), (1,)), jnp.ones(1)

    def step(self, *inputs: Any) -> Any:
        """Take one step, as a function of its inputs."""
        fixed, trainee, keys, rates = inputs
        return joint.run_chunk(fixed, trainee, keys, rates, self.method)

    def lower(self) -> Any:
        """Trace one step and translate it for XLA."""
        compiled: Any = joint.run_chunk
        return compiled.lower(*self.inputs(), self.method)

    def described(self) -> dict[str, Any]:
        """Return what was timed, for the record."""
        return {
            "dim": self.target.dim,
            "batch_size": self.batches.batch_size,
            "num_particles": self.settings.num_particles,
            "precision": self.settings.precision,
            "device": jax.devices()[0].device_kind,
        }
