"""The model interface implemented by PyMC models."""

import warnings
from collections.abc import Sequence
from typing import Any
from weakref import ReferenceType

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.errors import ArgumentError, ModelError
from bernflow.models.base import AbstractMappedModel, Site, Theta
from bernflow.models.inputs import user_code
from bernflow.models.pymc.prediction import Inputs, arguments, plain, replaced
from bernflow.models.pymc.program import Program, Shapes, program_of
from bernflow.precision import float_dtype

# Tolerance for the relative error of theta after a round trip through R^p, for values inside the support.
ROUND_TRIP = {"float64": 1e-6, "float32": 1e-3}


class Notes:
    """Metadata that no compiled function depends on; all instances are equal, so that they cause no recompilation.

    Attributes:
        coords: labels along named axes.
        no_draws: the reason why observations cannot be drawn, or None.
        origin: weak reference to the PyMC model.
    """

    def __init__(self, coords: dict[str, np.ndarray], no_draws: str | None, origin: ReferenceType):
        self.coords = coords
        self.no_draws = no_draws
        self.origin = origin

    def identity_parts(self) -> tuple[()]:
        """Return nothing: fits do not depend on notes, see `fingerprint`."""
        return ()

    def __hash__(self) -> int:
        return 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Notes)


class AbstractPyMCModel(AbstractMappedModel):
    """A PyMC model with its data: densities, maps and derived quantities in JAX, draws by PyMC's own generators."""

    sites: eqx.AbstractVar[tuple[Site, ...]]
    inputs: eqx.AbstractVar[Inputs]
    program: eqx.AbstractVar[Program]
    shapes: eqx.AbstractVar[Shapes]
    has_prior: eqx.AbstractVar[bool]
    start: eqx.AbstractVar[dict[str, np.ndarray] | None]
    notes: eqx.AbstractVar[Notes]

    def unconstrained_sizes(self) -> tuple[int, ...]:
        """Return the number of unconstrained dimensions of every site."""
        return self.shapes.sizes

    def scales(self) -> tuple[bool, ...]:
        """Return for each site whether its support is a half line with a lower bound."""
        return self.program.scales()

    def constrain(self, x: Float[Array, " p"]) -> tuple[Theta, Float[Array, ""]]:
        """Map x to the constrained scale by PyMC's transforms; return theta and log |d theta / d x|."""
        pieces = jnp.split(x, np.cumsum(self.shapes.sizes)[:-1])
        point = [piece.reshape(shape) for piece, shape in zip(pieces, self.shapes.x, strict=True)]
        outputs = self._run("constrain", point)
        theta = dict(zip(self.program.names, outputs, strict=False))
        return theta, sum(outputs[len(theta) :], start=jnp.zeros((), x.dtype))

    def unconstrain(self, theta: Theta) -> Float[Array, " p"]:
        """Map theta to R^p; NaN if a round trip changes theta, which means that it lies outside its support."""
        x = jnp.concatenate([jnp.ravel(piece) for piece in self._run("unconstrain", self._point(theta))])
        again, _ = self.constrain(x)
        tolerance = ROUND_TRIP["float64" if x.dtype == jnp.float64 else "float32"]
        inside = jnp.array(True)
        for name, value in again.items():
            scale = 1.0 + jnp.max(jnp.abs(theta[name]), initial=0.0)
            inside &= jnp.all(jnp.abs(value - theta[name]) <= tolerance * scale)
        return jnp.where(inside, x, jnp.nan)

    def log_density_on_reals(self, x: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate log prior + log likelihood + log |d theta / d x|."""
        theta, log_jacobian = self.constrain(x)
        return self.log_density(theta) + log_jacobian

    def log_density(self, theta: Theta) -> Float[Array, ""]:
        """Evaluate log prior + log likelihood + potentials at theta, without any Jacobian."""
        return sum(self.log_terms(theta).values(), start=jnp.zeros(()))

    def log_terms(self, theta: Theta) -> Theta:
        """Split the log density into one term per variable and potential."""
        return dict(zip(self.program.term_names, self._run("terms", self._point(theta)), strict=True))

    def log_prior(self, theta: Theta) -> Theta:
        """Evaluate the log prior of every free variable."""
        terms = self.log_terms(theta)
        return {name: terms[name] for name in self.program.names if name in terms}

    def sample_prior(self, key: Key[Array, ""]) -> Theta | None:
        """Draw the parameters as PyMC does, ignoring potentials; None if a prior is improper.

        A draw is NaN if a distribution gets invalid parameters from earlier draws.
        """
        if not self.has_prior:
            return None
        dtype = float_dtype()
        results = [jax.ShapeDtypeStruct(shape, dtype) for shape in self.shapes.theta]
        given = arguments(self.program, self.inputs)
        drawn = self.program.sampler("prior").in_jax(key, given, results, fill=np.nan)
        return dict(zip(self.program.names, drawn, strict=True))

    def initial(self) -> Theta | None:
        """Return PyMC's initial point if the user gave an `initval`."""
        return None if self.start is None else {name: jnp.asarray(v) for name, v in self.start.items()}

    def observed(self) -> Theta:
        """Return the observed values by the names of their variables."""
        return dict(zip(self.program.observed_names, self._run("observed", []), strict=True))

    def constants(self) -> Theta:
        """Return the `pm.Data` containers that are not only observed values."""
        return {name: jnp.asarray(plain(self.inputs.data[name])) for name in self.program.constant_names}

    def dims(self) -> dict[str, tuple[str | None, ...]]:
        """Return the names of the axes of variables."""
        return dict(self.program.dims)

    def coords(self) -> dict[str, Any]:
        """Return the labels along named axes."""
        return dict(self.notes.coords)

    def log_likelihood(self, theta: Theta) -> Theta:
        """Evaluate the pointwise log likelihood of every observed variable."""
        return dict(zip(self.program.observed_names, self._run("pointwise", self._point(theta)), strict=True))

    def deterministic(self, theta: Theta) -> Theta:
        """Evaluate the `pm.Deterministic` variables."""
        values = self._run("deterministic", self._point(theta))
        return dict(zip(self.program.deterministic_names, values, strict=True))

    def prepare(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Replace the model's data by new data, given by the names of their `pm.Data`."""
        if args and not isinstance(args[0], Inputs):
            raise ArgumentError(
                f"predict() got {len(args)} positional arguments: expected new data by the names of their pm.Data, "
                "for example predict(x=...)."
            )
        if args:
            return args, {}
        if kwargs:
            return (replaced(self.program, self.shapes, self.inputs, kwargs),), {}
        self._warn_if_changed()
        return (self.inputs,), {}

    def predict(self, key: Key[Array, ""], theta: Theta, *args: Any, **kwargs: Any) -> Theta:
        """Draw new values of the observed variables by PyMC's own random generators.

        Args:
            key: a JAX random key.
            theta: one value per parameter.
            *args: the result of `prepare`.
            **kwargs: new data by the names of their `pm.Data`.
        """
        inputs = self._inputs(args, kwargs)
        if inputs.results is None:
            raise ModelError(f"The PyMC model cannot draw observations ({self.notes.no_draws}).")
        given = [*arguments(self.program, inputs), *self._point(theta)]
        drawn = self.program.sampler("predictive").in_jax(key, given, inputs.results)
        return dict(zip(self.program.observed_names, drawn, strict=True))

    def mean(self, theta: Theta, *args: Any, **kwargs: Any) -> Theta:
        """Return the means of the observed variables, if PyMC provides them."""
        values = self._run("mean", self._point(theta), self._inputs(args, kwargs))
        return dict(zip(self.program.observed_names, values, strict=True))

    def _inputs(self, args: tuple, kwargs: dict[str, Any]) -> Inputs:
        return self.prepare(args, kwargs)[0][0] if args or kwargs else self.inputs

    def _point(self, theta: Theta) -> list[Array]:
        return [theta[name] for name in self.program.names]

    def _run(self, kind: str, point: Sequence[Array], inputs: Inputs | None = None) -> list[Array]:
        inputs = self.inputs if inputs is None else inputs
        with user_code("The PyMC model, run in JAX,"):
            return self.program.run(kind, self.shapes, point, inputs.data, inputs.lengths)

    def _warn_if_changed(self) -> None:
        """Warn if the data of the PyMC model were changed after the fit, because predictions do not use them."""
        model = self.notes.origin()
        if model is None or program_of(model) is not self.program:
            return
        now, then = self.program.parts.snapshot(), {name: plain(value) for name, value in self.inputs.data.items()}
        changed = [name for name in self.program.data_names if not np.array_equal(now[name], then[name])]
        if changed:
            warnings.warn(
                f"The data {', '.join(map(repr, changed))} of the PyMC model were changed after the fit. predict() "
                f"draws for the data of the fit; for others call predict({', '.join(f'{n}=...' for n in changed)}).",
                stacklevel=4,
            )
