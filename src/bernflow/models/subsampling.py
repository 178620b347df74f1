"""NumPyro model functions with subsampled plates or trained parameters."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.distributions.constraints import Constraint

from bernflow.errors import ModelError
from bernflow.models.base import AbstractJointModel, Site, Theta
from bernflow.models.discovery import Local, Plate, discover, take_rows
from bernflow.models.evaluation import evaluation, inference_mode, with_training_argument
from bernflow.models.inputs import check_values, freeze, is_data, name_of, pack, unpack, user_code
from bernflow.models.numpyro import copied, drawn, fill, fresh, learned, redraw
from bernflow.models.running import model_lock, run_model
from bernflow.models.supports import can_sample, check_observed
from bernflow.precision import float_dtype

# Name of the single row of a model that does not subsample: a batch is all data.
ALL = "all"


class SubsampledModel(AbstractJointModel):
    """A NumPyro model function with subsampled plates, `numpyro.param` or `numpyro.mutable` sites, with its arguments.

    Batches are taken from the first subsampled plate; NumPyro draws the rows of other plates. Without a subsampled
    plate, a batch is all data. The methods for all rows (`log_density`, `predict`, ...) run over blocks of `batch_size`
    rows, with the weights of the model and its modules in evaluation mode: always for equinox modules and layers of
    flax.linen, and for flax.nnx modules if the function refers to them by a global name, a closure,
    `functools.partial` or `self`. A boolean argument `training`, `train` or `is_training` of the function is true in
    training and false otherwise.

    Args:
        function: the model, with NumPyro primitives.
        args: positional arguments of the model.
        kwargs: keyword arguments of the model.
    """

    sites: tuple[Site, ...]
    args: Any
    kwargs: Any
    weights: dict[str, PyTree]
    fixed: dict[str, PyTree]
    state: dict[str, PyTree]
    constraints: dict[str, Constraint]
    function: Callable = eqx.field(static=True)
    plates: tuple[Plate, ...] = eqx.field(static=True)
    local: tuple[Local, ...] = eqx.field(static=True)
    observed_names: tuple[str, ...] = eqx.field(static=True)
    has_deterministic: bool = eqx.field(static=True)
    has_prior: bool = eqx.field(static=True)

    def __init__(self, function: Callable, args: tuple = (), kwargs: dict[str, Any] | None = None):
        self.function = function
        kwargs = {} if kwargs is None else kwargs
        check_values(args, "The model arguments args", allow_infinite=True)
        check_values(kwargs, "The model arguments model_kwargs", allow_infinite=True)
        self.args, self.kwargs = pack(args), pack(kwargs)
        self.weights, self.fixed, self.state, self.plates = {}, {}, {}, ()
        with user_code(f"The model function {name_of(function)!r}"):
            found = discover(function, (self.args, self.kwargs))
            self.sites, self.plates, self.local = tuple(found.sites), tuple(found.plates), tuple(found.local)
            self.observed_names, self.has_deterministic = tuple(found.observed), found.has_deterministic
            self.constraints = found.constraints
            try:
                self._initialize()
            except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):
                self.args, self.kwargs = freeze(args), freeze(kwargs)
                self._initialize()
            self.has_prior = can_sample(self._draw)
            for name, value in self.observed().items():
                check_values(value, f"The observed site {name!r}")
                if name in found.checkable:
                    check_observed(f"The observed site {name!r}", found.checkable[name], value)

    @property
    def batch_size(self) -> int | None:
        """Rows per batch: the `subsample_size` of the plate, or None if the model does not subsample."""
        return self.plates[0].batch_size if self.plates else None

    def num_rows(self) -> int:
        """Count the rows of the first subsampled plate; one if there is none."""
        return self.plates[0].size if self.plates else 1

    def rows(self) -> dict[str, np.ndarray]:
        """Return the indices of the rows, by the name of their plate."""
        return {self.plates[0].name if self.plates else ALL: np.arange(self.num_rows())}

    def trained(self) -> tuple[PyTree, PyTree]:
        """Return the parameters on the unconstrained scale, and the mutable state, or None."""
        return (self.weights if jax.tree.leaves(self.weights) else None), (self.state or None)

    def log_density_of_batch(
        self, theta: Theta, weights: PyTree, state: PyTree, batch: PyTree, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], PyTree]:
        """Estimate log prior + log likelihood from a batch of rows; NumPyro's plate scales them by N / B."""
        trace = self._trace(key, theta, batch, weights=weights, state=state, training=True)
        density = sum((jnp.sum(_log_prob(site)) for site in _samples(trace).values()), start=jnp.zeros(()))
        return density, None if state is None else _new_state(trace, state)

    def frozen(self, weights: PyTree, state: PyTree) -> "SubsampledModel":
        """Return the model of all rows with the trained weights fixed."""
        new = (self.weights if weights is None else weights, self.state if state is None else state)
        return eqx.tree_at(lambda model: (model.weights, model.state), self, new)

    def log_density(self, theta: Theta) -> Float[Array, ""]:
        """Evaluate log prior + log likelihood of all rows at theta, without any Jacobian."""
        return sum(self.log_terms(theta).values(), start=jnp.zeros(()))

    def log_terms(self, theta: Theta) -> Theta:
        """Split the log density of all rows into one term per site, including factors and observed sites."""
        local = {site.name: site for site in self.local}

        def terms(rows: dict[str, Array], valid: Array, key: Key[Array, ""]) -> Theta:
            out = {}
            for name, site in _samples(self._trace(key, theta, rows)).items():
                value = _log_prob(site)
                if name in local:
                    plate, axis = self.plates[0], local[name].axis
                    # The plate scales rows by N / B, which must be undone because all rows are visited. Padding of
                    # the last block does not count.
                    keep = valid.reshape(valid.shape + (1,) * (-axis - 1))
                    value = jnp.where(keep, value * (plate.batch_size / plate.size), 0.0)
                out[name] = jnp.sum(value)
            return out

        return {
            name: jnp.sum(values) if name in local else values[0]
            for name, values in self._over_blocks(terms, jax.random.key(0)).items()
        }

    def support_of(self, name: str, theta: Theta) -> Constraint:
        """Return the support of a site given earlier sites, by running the model."""
        return self._trace(jax.random.key(0), theta, self._first_rows(), is_filled=True)[name]["fn"].support

    def sample_prior(self, key: Key[Array, ""]) -> Theta | None:
        """Draw every latent site; None if a prior is improper."""
        return self._draw(key) if self.has_prior else None

    def initial(self) -> None:
        """Return None: a NumPyro model has no starting point."""

    def observed(self) -> Theta:
        """Return the observed data by site, all rows."""

        def values(rows: dict[str, Array], valid: Array, key: Key[Array, ""]) -> Theta:
            trace = self._trace(jax.random.key(0), {}, rows, is_filled=True)
            return {name: _full_value(trace[name]) for name in self.observed_names}

        return self._joined(self._over_blocks(values, jax.random.key(0)), of_values=True)

    def log_likelihood(self, theta: Theta) -> Theta:
        """Evaluate the log likelihood of every row at every observed site, without `handlers.scale`."""

        def points(rows: dict[str, Array], valid: Array, key: Key[Array, ""]) -> Theta:
            trace = self._trace(key, theta, rows)
            return {name: trace[name]["fn"].log_prob(trace[name]["value"]) for name in self.observed_names}

        return self._joined(self._over_blocks(points, jax.random.key(0)), of_values=False)

    def deterministic(self, theta: Theta) -> Theta:
        """Evaluate the `numpyro.deterministic` sites, for all rows at once."""
        if not self.has_deterministic:
            return {}
        trace = self._trace(jax.random.key(0), theta, {}, is_filled=True)
        return {name: site["value"] for name, site in trace.items() if site["type"] == "deterministic"}

    def predict(self, key: Key[Array, ""], theta: Theta, *args: Any, **kwargs: Any) -> Theta:
        """Draw new values of the observed sites, for all rows.

        Args:
            key: a JAX random key.
            theta: one value per latent site.
            *args: new model arguments, which replace all stored ones; an outcome may be None. All of their rows are
                used at once, without subsampling.
            **kwargs: new keyword arguments.
        """
        with user_code(f"The model function {name_of(self.function)!r}, run to predict,"):
            if args or kwargs:
                trace = self._trace(key, theta, {}, is_redrawn=True, arguments=(args, kwargs))
                return drawn(trace, self.observed_names)
            key, block_key = jax.random.split(key)
            first = self._trace(key, theta, self._first_rows(), is_redrawn=True)
            inside = {site.name for site in self.local}
            # Observed sites outside the plate are drawn once and passed to every block.
            shared = {n: value for n, value in drawn(first, self.observed_names).items() if n not in inside}

            def values(rows: dict[str, Array], valid: Array, key: Key[Array, ""]) -> Theta:
                trace = self._trace(key, {**theta, **shared}, rows, is_redrawn=True)
                return drawn(trace, self.observed_names)

            return self._joined(self._over_blocks(values, block_key), of_values=True)

    def _trace(
        self,
        key: Key[Array, ""],
        theta: Theta,
        rows: dict[str, Array],
        *,
        weights: PyTree = None,
        state: PyTree = None,
        training: bool = False,
        is_filled: bool = False,
        is_redrawn: bool = False,
        arguments: tuple[tuple, dict[str, Any]] | None = None,
    ) -> dict[str, dict]:
        """Run the model on some rows; plates not in `rows` are subsampled in training and complete otherwise."""
        weights = self.weights if weights is None else weights
        state = self.state if state is None else state
        args, kwargs = unpack((self.args, self.kwargs) if arguments is None else arguments)
        args, kwargs = with_training_argument(self.function, args, kwargs, training)
        function: Callable = redraw(self.function) if is_redrawn else self.function
        function = handlers.seed(take_rows(function, rows, complete=not training), key)
        function = handlers.substitute(function, data={**self._params(weights, training), **copied(state), **theta})
        if is_filled:
            function = handlers.substitute(function, substitute_fn=partial(fill, key))
        # The lock comes first, because evaluation mode is set on the user's modules, which all threads share.
        with model_lock, nullcontext() if training else evaluation(self.function):
            return run_model(function, args, kwargs)

    def _params(self, weights: PyTree, training: bool) -> dict[str, PyTree]:
        """Return the values of the `numpyro.param` sites."""
        values = eqx.combine(weights, self.fixed)
        for name, constraint in self.constraints.items():
            if name in values:
                values[name] = biject_to(constraint)(values[name])
        return values if training else {name: inference_mode(value) for name, value in values.items()}

    def _first_rows(self) -> dict[str, Array]:
        return {plate.name: jnp.arange(plate.batch_size) for plate in self.plates[:1]}

    def _over_blocks(self, function: Callable[[dict, Array, Array], Theta], key: Key[Array, ""]) -> Theta:
        """Call `function(rows, valid, key)` on all rows, one block at a time, and stack the results."""
        if not self.plates:
            return {name: value[None] for name, value in function({}, jnp.ones(1, bool), key).items()}
        plate = self.plates[0]
        num = -(-plate.size // plate.batch_size)
        places = np.arange(num * plate.batch_size).reshape(num, plate.batch_size)
        # The last block is padded with copies of the last row, so that all blocks have one compiled shape.
        blocks = (np.minimum(places, plate.size - 1), places < plate.size, jax.random.split(key, num))
        # Rematerialize blocks in the gradient, so that intermediate values are stored for one block only.
        return jax.lax.map(jax.checkpoint(lambda block: function({plate.name: block[0]}, block[1], block[2])), blocks)

    def _joined(self, stacked: Theta, *, of_values: bool) -> Theta:
        """Concatenate the blocks of every site along its rows; sites outside the plate are in every block."""
        axes = {site.name: site.axis - (site.event_dim if of_values else 0) for site in self.local}
        return {
            name: _join(value, axes[name], self.num_rows()) if name in axes else value[0]
            for name, value in stacked.items()
        }

    def _initialize(self) -> None:
        """Compute initial values, and evaluate the density on shapes, which fails if the model needs concrete data."""

        def values(arguments: Any) -> tuple[dict, dict, dict]:
            function = fresh(take_rows(self.function, {}, complete=False, head=True))
            args, kwargs = unpack(arguments)
            args, kwargs = with_training_argument(self.function, args, kwargs, training=True)
            key = jax.random.key(0)
            filled = handlers.substitute(handlers.seed(function, key), substitute_fn=partial(fill, key))
            trace = run_model(filled, args, kwargs)
            params = {name: site["value"] for name, site in trace.items() if site["type"] == "param"}
            trained = {name: learned(name, trace) for name in params}
            return jax.tree.map(_strong, params), trained, jax.tree.map(_strong, function.initial)

        params, trained, self.state = eqx.filter_jit(values)((self.args, self.kwargs))
        is_trained = jax.tree.map(lambda leaf: leaf is not None, trained, is_leaf=lambda leaf: leaf is None)
        weights, self.fixed = eqx.partition(params, is_trained)
        self.weights = {name: _unconstrain(name, value, self.constraints) for name, value in weights.items()}
        theta = {site.name: jax.ShapeDtypeStruct(site.shape, float_dtype()) for site in self.sites}
        batch = self._first_rows()

        def density(model: SubsampledModel, theta: Theta) -> Any:
            out, state = model.log_density_of_batch(theta, *model.trained(), batch, jax.random.key(0))
            return out, model.log_density(theta), state

        eqx.filter_eval_shape(density, self, theta)

    def _draw(self, key: Key[Array, ""]) -> Theta:
        trace = self._trace(key, {}, self._first_rows())
        return {site.name: trace[site.name]["value"] for site in self.sites}


def _unconstrain(name: str, value: PyTree, by_name: dict[str, Constraint]) -> PyTree:
    if name not in by_name:
        return value
    try:
        out = biject_to(by_name[name]).inv(value)
    except NotImplementedError as error:
        raise ModelError(
            f"The numpyro.param site {name!r} has the constraint {by_name[name]!r}, for which no map from "
            "R^n is known. Use a parameter with a supported constraint and transform it inside the model."
        ) from error
    if not np.all(np.isfinite(out)):
        raise ModelError(
            f"The numpyro.param site {name!r} starts at {np.asarray(value)}: expected a value in the interior of its "
            f"constraint {by_name[name]!r}. Give it another initial value."
        )
    return out


def _samples(trace: dict[str, dict]) -> dict[str, dict]:
    return {name: site for name, site in trace.items() if site["type"] == "sample"}


def _log_prob(site: dict[str, Any]) -> Array:
    """Evaluate the log probability of a site, scaled by plates and `handlers.scale`."""
    value = site["fn"].log_prob(site["value"])
    return value if site["scale"] is None else site["scale"] * value


def _strong(leaf: Any) -> Any:
    """Convert a number to an array without weak type, which would change in the first training step."""
    if not (is_data(leaf) or isinstance(leaf, float)):
        return leaf
    return jax.lax.convert_element_type(leaf, jnp.asarray(leaf).dtype)


def _full_value(site: dict[str, Any]) -> Array:
    shape = jnp.broadcast_shapes(jnp.shape(site["value"]), tuple(site["fn"].shape()))
    return jnp.broadcast_to(site["value"], shape)


def _new_state(trace: dict[str, dict], state: dict[str, PyTree]) -> dict[str, PyTree]:
    """Return the mutable values after a run, with the same types as before, as loops require."""

    def one(old: Any, new: Any) -> Any:
        new = jax.lax.stop_gradient(new)
        return new.astype(old.dtype) if jnp.issubdtype(jnp.asarray(old).dtype, jnp.number) else new

    return {name: jax.tree.map(one, old, trace[name]["value"]) for name, old in state.items()}


def _join(stacked: Array, axis: int, num_rows: int) -> Array:
    """Merge blocks (num, ..., B, ...) along the axis of the rows and drop the padding of the last block."""
    moved = jnp.moveaxis(stacked, 0, axis - 1)
    position = moved.ndim + axis
    merged = moved.reshape((*moved.shape[: position - 1], -1, *moved.shape[position + 1 :]))
    return jax.lax.slice_in_dim(merged, 0, num_rows, axis=position - 1)
