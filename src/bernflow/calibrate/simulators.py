"""Simulators of data sets: the prior and the likelihood of a model, or a user's function."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree, UInt32
from numpyro.distributions.constraints import Constraint

from bernflow.errors import ArgumentError, ModelError
from bernflow.models import AbstractModel, Model, as_model
from bernflow.models.base import AbstractJointModel, AbstractMappedModel, Site, Theta
from bernflow.models.inputs import Opaque, name_of, user_code
from bernflow.models.numpyro import NumPyroModel
from bernflow.precision import float_dtype


class AbstractSimulator(eqx.Module):
    """Draws parameters, and data given them; pure, so that it can be jitted and vmapped."""

    @abstractmethod
    def draw(self, key: Key[Array, ""]) -> tuple[Theta, PyTree]:
        """Return parameters drawn from the prior, and data drawn given them, as arguments of `model`."""

    @abstractmethod
    def model(self, data: PyTree) -> AbstractModel:
        """Return the model of data drawn by `draw`."""


class ModelSimulator(AbstractSimulator):
    """Draws from the prior and from the likelihood of a model; unobserved inputs do not change."""

    template: AbstractModel

    def draw(self, key: Key[Array, ""]) -> tuple[Theta, Theta]:
        """Return parameters drawn from the prior, and observed values drawn given them."""
        prior_key, data_key = jax.random.split(key)
        theta = self.template.sample_prior(prior_key)
        assert theta is not None  # from_model has made sure
        return theta, self.template.predict(data_key, theta)

    def model(self, data: Theta) -> AbstractModel:
        """Return the model of the observed values given."""
        return self.template.with_observed(data)


class FunctionSimulator(AbstractSimulator):
    """Calls a user's function. Its model may contain data anywhere, so a key represents them."""

    function: Callable = eqx.field(static=True)

    def draw(self, key: Key[Array, ""]) -> tuple[Theta, UInt32[Array, "2"]]:
        """Return parameters drawn from the prior, and the data of the key that recreates the model."""
        return self._call(key)[0], jax.random.key_data(key)

    def model(self, data: UInt32[Array, "2"]) -> "SimulatedModel":
        """Return the model of a key."""
        return SimulatedModel(self, data)

    def build(self, data: UInt32[Array, "2"]) -> AbstractModel:
        """Call the function for its model."""
        return self._call(jax.random.wrap_key_data(data, impl="threefry2x32"))[1]

    def _call(self, key: Key[Array, ""]) -> tuple[Theta, AbstractModel]:
        what = f"simulate={name_of(self.function)}"
        with user_code(what):
            try:
                result = self.function(key)
            except (jax.errors.TracerArrayConversionError, jax.errors.ConcretizationTypeError) as error:
                raise ModelError(
                    f"{what} computes with NumPy or looks at values, but all simulations run as one compiled "
                    "function: expected jax.numpy and jax.random throughout. Give simulated data to a bf.Model by "
                    'model.with_observed({"y": y}), and to a log density by a closure.'
                ) from error
        if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[0], Mapping)):
            raise ModelError(
                f"{what} returned a {type(result).__name__}: expected a tuple of the parameters by name and the model "
                "of the data drawn given them."
            )
        model = as_model(result[1])
        return _checked(what, result[0], model), model


class SimulatedModel(AbstractModel):
    """The model of one call of a user's function, which is called again whenever its model is needed.

    All data sets then share compiled code, since they differ only in their keys.
    """

    simulator: FunctionSimulator
    data: UInt32[Array, "2"]
    sites: tuple[Site, ...]

    def __init__(self, simulator: FunctionSimulator, data: UInt32[Array, "2"]):
        self.simulator, self.data = simulator, data
        self.sites = self._model().sites

    def log_density(self, theta: Theta) -> Float[Array, ""]:
        """Evaluate log prior + log likelihood at theta, without any Jacobian."""
        return self._model().log_density(theta)

    def log_terms(self, theta: Theta) -> Theta:
        """Split `log_density` into one summed term per site."""
        return self._model().log_terms(theta)

    def support_of(self, name: str, theta: Theta) -> Constraint:
        """Return the support of a site given those before it."""
        return self._model().support_of(name, theta)

    def sample_prior(self, key: Key[Array, ""]) -> Theta | None:
        """Draw every site from the prior, if the model can."""
        return self._model().sample_prior(key)

    def initial(self) -> Theta | None:
        """Return the user's starting point, or None."""
        return self._model().initial()

    def observed(self) -> Theta:
        """Return the observed data by name."""
        return self._model().observed()

    def log_likelihood(self, theta: Theta) -> Theta:
        """Evaluate the pointwise log likelihood of every observed site."""
        return self._model().log_likelihood(theta)

    def deterministic(self, theta: Theta) -> Theta:
        """Evaluate the quantities that the model derives from its parameters."""
        return self._model().deterministic(theta)

    def predict(self, key: Key[Array, ""], theta: Theta, *args: Any, **kwargs: Any) -> Theta:
        """Draw new observations given theta."""
        return self._model().predict(key, theta, *args, **kwargs)

    def _model(self) -> AbstractModel:
        return self.simulator.build(self.data)


def from_model(model: Any, args: tuple, kwargs: dict[str, Any]) -> ModelSimulator:
    """Make a simulator of a model; raise if it cannot be simulated."""
    accepted = as_model(model, args, kwargs)
    if isinstance(accepted, AbstractMappedModel):
        raise ModelError(
            f"calibrate: a {type(accepted).__name__} runs in software of its own, one data set at a time, and cannot "
            "be simulated from in compiled code: expected a bf.Model or a NumPyro model function. Or fit simulated "
            "data one by one with bf.fit; bernflow.diagnostics.uniformity.rank_p_value judges the ranks."
        )
    if isinstance(accepted, AbstractJointModel) and (not isinstance(accepted, Model) or accepted.network is not None):
        raise ModelError(
            "calibrate: the model is trained on batches of its rows, or has a network beside its parameters: expected "
            "a model whose posterior is fitted to all rows. Leave out subsample_size; a network has no prior to "
            "simulate from."
        )
    if not accepted.observed():
        raise ModelError(
            f"calibrate: the {type(accepted).__name__} has no observed data that could be simulated. Give the model "
            "data of the size you will have (their values do not matter), or pass simulate=f, where f(key) returns "
            "parameters drawn from the prior and the model of data drawn given them."
        )
    theta = accepted.sample_prior(jax.random.key(0))
    if theta is None:
        raise ModelError(
            "calibrate: a parameter of the model has an improper prior, which cannot be drawn from. Give it a proper "
            "one, or pass simulate=f with f(key) that draws the parameters in another way."
        )
    if isinstance(accepted, NumPyroModel):
        _refuse_data_elsewhere(accepted, theta)
    return ModelSimulator(accepted)


def from_function(function: Any) -> FunctionSimulator:
    """Make a simulator of a user's function."""
    if not callable(function):
        raise ArgumentError(
            f"simulate={function!r}: expected a function of a key that returns parameters and the model of their data."
        )
    return FunctionSimulator(function)


def _checked(what: str, theta: Mapping[str, Any], model: AbstractModel) -> Theta:
    """Return one array per parameter of the model."""
    values: Theta = {}
    for site in model.sites:
        if site.name not in theta or jnp.shape(theta[site.name]) != site.shape:
            found = f"of shape {jnp.shape(theta[site.name])}" if site.name in theta else f"missing in {sorted(theta)}"
            raise ModelError(f"{what}: the parameter {site.name!r} is {found}: expected shape {site.shape}.")
        values[site.name] = jnp.asarray(theta[site.name], float_dtype())
    return values


def _refuse_data_elsewhere(model: NumPyroModel, theta: Theta) -> None:
    """Refuse a function that uses its data other than as observed values: those uses would see the old data."""
    observed, simulated = model.observed(), model.predict(jax.random.key(1), theta)
    replaced = model.with_observed(simulated)

    def exchange(leaf: Any) -> Any:
        value = leaf.value if isinstance(leaf, Opaque) else leaf
        for name, old in observed.items():
            if isinstance(value, np.ndarray | jax.Array) and np.array_equal(value, old) and np.ndim(value):
                new = np.asarray(simulated[name])
                return Opaque(new) if isinstance(leaf, Opaque) else new
        return leaf

    arguments: PyTree = jax.tree.map(exchange, (replaced.args, replaced.kwargs))
    exchanged = eqx.tree_at(lambda m: (m.args, m.kwargs), replaced, arguments)
    before, after = replaced.log_terms(theta), exchanged.log_terms(theta)
    changed = [name for name in before if not np.allclose(before[name], after[name], rtol=1e-6, equal_nan=True)]
    if changed:
        raise ModelError(
            f"calibrate: the model uses observed data also elsewhere, in the term of {', '.join(map(repr, changed))} "
            "(lagged values, a prior that depends on the data): values drawn at the observed sites would not be what "
            "the model makes of them. Pass simulate=f, where f(key) returns parameters drawn from the prior and the "
            "model of data drawn given them, as functools.partial(model, y)."
        )
