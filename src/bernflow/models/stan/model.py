"""Stan programs as models."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from bernflow.errors import ModelError
from bernflow.models.base import AbstractMappedModel, Site, Theta
from bernflow.models.stan import functions
from bernflow.models.stan.instance import Instance, Operation, join, split
from bernflow.models.stan.points import RADIUS, shrinking_points

LOG_LIKELIHOOD = "log_lik"
# Suffixes of the names of predictions, such as y_rep for y.
ENDINGS = ("_rep", "_pred", "_sim", "_tilde", "_hat", "_new")
# A program is tested at this many points first, which is mostly sufficient.
NUM_PROBES = 10


class StanModel(AbstractMappedModel):
    """A compiled Stan program with its data.

    All constants of the densities are kept, so that the log evidence is that of the program as written.

    Attributes:
        sites: the parameters block.
        handle: number of the program with these data; like data, it is an argument of compiled functions.
        data: the data by name.
        instance: the compiled program; instances with data of the same shapes are equal.
    """

    sites: tuple[Site, ...]
    handle: Int[np.ndarray, ""]
    data: dict[str, np.ndarray]
    instance: Instance = eqx.field(static=True)
    half_lines: tuple[bool, ...] = eqx.field(static=True)

    def __init__(self, instance: Instance, data: dict[str, np.ndarray]):
        if instance.dim == 0:
            raise ModelError(
                "The Stan program has no parameters to infer: expected at least one in its parameters block."
            )
        self.sites = tuple(Site(v.name, v.shape, None) for v in instance.parameters)
        self.handle = np.asarray(instance.handle, np.int32)
        self.data = data
        self.instance = instance
        self.half_lines = _on_half_lines(instance)
        _check_density(instance)

    def unconstrained_sizes(self) -> tuple[int, ...]:
        """Return the number of unconstrained dimensions of every parameter."""
        return self.instance.sizes

    def scales(self) -> tuple[bool, ...]:
        """Return for each parameter whether it is declared with only a lower bound."""
        return self.half_lines

    def constrain(self, x: Float[Array, " p"]) -> tuple[Theta, Float[Array, ""]]:
        """Map x to the parameters; return theta and log |d theta / d x|."""
        flat = functions.constrain(self.instance, self.handle, x)
        return split(self.instance.parameters, flat), functions.log_jacobian(self.instance, self.handle, x)

    def unconstrain(self, theta: Theta) -> Float[Array, " p"]:
        """Map theta to R^p; NaN if theta lies outside its support."""
        flat = join(self.instance.parameters, theta)
        return self.instance.call(Operation.UNCONSTRAIN, self.handle, flat, self.instance.dim)  # type: ignore[arg-type]

    def log_density_on_reals(self, x: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate the program's target with the Jacobian of its constraints."""
        return functions.log_density(self.instance, self.handle, x)

    def first_index(self) -> int:
        """Return 1, as in Stan."""
        return 1

    def sample_prior(self, key: Key[Array, ""]) -> None:
        """Return None: a program does not identify its prior."""

    def initial(self) -> None:
        """Return None: a Stan program has no starting point."""

    def observed(self) -> Theta:
        """Return the variables of the data block."""
        return {name: jnp.asarray(value) for name, value in self.data.items()}

    def data_groups(self) -> tuple[Theta, Theta]:
        """Return the variables of the data block: observed if the program predicts them, constant otherwise.

        The name of a prediction is that of the predicted variable with a suffix, such as `y_rep`.
        """
        data, names = self.observed(), self.predicted_names()
        observed = {name: value for name, value in data.items() if any(name + ending in names for ending in ENDINGS)}
        return observed, {name: value for name, value in data.items() if name not in observed}

    def likelihood_names(self) -> tuple[str, ...]:
        """Return log_lik, if the program computes it."""
        return tuple(v.name for v in self.instance.derived if v.name == LOG_LIKELIHOOD)

    def predicted_names(self) -> tuple[str, ...]:
        """Return the generated quantities that are random, because they depend on the seed."""
        generated = self.instance.derived[self.instance.num_transformed :]
        if not generated:
            return ()
        points = np.random.default_rng(2).uniform(-1.0, 1.0, (NUM_PROBES, self.instance.dim))
        handles, num = np.full(NUM_PROBES, self.handle, np.int32), self.instance.num_derived
        keys = [np.tile(np.array([seed, 0], np.uint32), (NUM_PROBES, 1)) for seed in (1, 2)]
        engine = self.instance.engine
        first, second = (engine.evaluate(Operation.DERIVED, handles, points, key, num) for key in keys)
        random = ((first != second) & np.isfinite(first) & np.isfinite(second)).any(axis=0)
        return tuple(v.name for v in generated if random[v.places].any())

    def log_likelihood(self, theta: Theta) -> Theta:
        """Return log_lik, if the program computes it."""
        if LOG_LIKELIHOOD not in {v.name for v in self.instance.derived}:
            return {}
        return {LOG_LIKELIHOOD: self.deterministic(theta)[LOG_LIKELIHOOD]}

    def deterministic(self, theta: Theta) -> Theta:
        """Evaluate transformed parameters and generated quantities; random ones are seeded by a hash of theta."""
        if not self.instance.derived:
            return {}
        return self._derived(theta, jnp.zeros(2, jnp.uint32))

    def predict(self, key: Key[Array, ""], theta: Theta, *args: Any, **kwargs: Any) -> Theta:
        """Draw new generated quantities."""
        if args or kwargs:
            raise ModelError(
                "A Stan program makes predictions in its generated quantities block, for its own data: for new data, "
                "make a model with bf.from_stan(program, data=new_data), and load the saved posterior with it."
            )
        generated = [v.name for v in self.instance.derived[self.instance.num_transformed :] if v.name != LOG_LIKELIHOOD]
        if not generated:
            raise ModelError(
                "The Stan program makes no predictions: add a generated quantities block, for example generated "
                "quantities { vector[N] y_rep = ...; } with a function that ends in _rng."
            )
        values = self._derived(theta, jax.random.bits(key, (2,), jnp.uint32))
        return {name: values[name] for name in generated}

    def _derived(self, theta: Theta, key: Array) -> Theta:
        x = self.unconstrain(theta)
        flat = self.instance.call(Operation.DERIVED, self.handle, x, self.instance.num_derived, key)  # type: ignore[arg-type]
        return split(self.instance.derived, flat)


def _on_half_lines(instance: Instance) -> tuple[bool, ...]:
    """Find the parameters theta = lower + exp(x), for which a step of 1 in x changes theta by exp(x) (e - 1)."""
    base = np.random.default_rng(0).uniform(-1.0, 1.0, instance.dim)
    ends = np.cumsum(instance.sizes)
    rows = np.tile(base, (len(ends) + 1, 1))
    for i, (end, size) in enumerate(zip(ends, instance.sizes, strict=True)):
        rows[i + 1, end - size : end] += 1.0
    theta = instance.on_host(Operation.CONSTRAIN, rows, instance.num_theta)
    found = []
    for i, (variable, end, size) in enumerate(zip(instance.parameters, ends, instance.sizes, strict=True)):
        # Sorted, because x and theta have different orders of the components of an array.
        moved = np.sort((theta[i + 1] - theta[0])[variable.places])
        expected = np.sort(np.exp(base[end - size : end]) * np.expm1(1.0))
        found.append(moved.shape == expected.shape and bool(np.allclose(moved, expected, rtol=1e-9, atol=0.0)))
    return tuple(found)


def _check_density(instance: Instance) -> None:
    """Evaluate the density at some points; raise an error with Stan's message if all of them fail."""
    points = shrinking_points(np.random.default_rng(1), instance.dim)
    for rows in (points[:NUM_PROBES], points[NUM_PROBES:]):
        if np.isfinite(instance.on_host(Operation.VALUE, rows, 1)).any():
            return
    message = instance.engine.message(instance.handle)
    reason = f"Stan reports:\n{message}" if message else "It is zero or not a number at all of them."
    raise ModelError(
        f"The density of the Stan program cannot be evaluated at any of {len(points)} points, uniform on "
        f"(-{RADIUS:g}, {RADIUS:g}) and closer to zero, on the unconstrained scale. {reason}\nCheck that every "
        "parameter is declared with the bounds that the model block needs, and that the data lie in the support of "
        "their distributions."
    )
