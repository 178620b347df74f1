"""NumPyro model functions."""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key, PyTree
from numpyro import handlers
from numpyro.distributions.constraints import Constraint
from numpyro.primitives import Messenger

from bernflow.errors import ModelError
from bernflow.models.base import AbstractModel, Site, Theta
from bernflow.models.inputs import bare, check_values, freeze, is_data, name_of, pack, unpack, user_code
from bernflow.models.running import log_prob_terms, run_model
from bernflow.models.supports import (
    can_sample,
    check_continuous,
    check_observed,
    describe,
    is_factor,
    probe,
    start_value,
    traced_shapes,
)
from bernflow.precision import float_dtype

# Errors of functions that need JAX arrays, or concrete values.
UNCLEAR = (TypeError, AttributeError, IndexError, ValueError, jax.errors.JAXTypeError, jax.errors.JAXIndexError)


class NumPyroModel(AbstractModel):
    """A NumPyro model function with its arguments.

    Arrays among the arguments are traced; numbers, strings and other objects are static. If the function needs the
    values of its arrays (`len(np.unique(group))`), all of them are static, and new data trigger a recompilation.

    Args:
        function: the model, with NumPyro primitives.
        args: positional arguments of the model.
        kwargs: keyword arguments of the model.
    """

    sites: tuple[Site, ...]
    args: Any
    kwargs: Any
    replaced: Theta
    function: Callable = eqx.field(static=True)
    observed_names: tuple[str, ...] = eqx.field(static=True)
    has_prior: bool = eqx.field(static=True)

    def __init__(self, function: Callable, args: tuple = (), kwargs: dict[str, Any] | None = None):
        self.function = function
        kwargs = {} if kwargs is None else kwargs
        check_values(args, "The model arguments args", allow_infinite=True)
        check_values(kwargs, "The model arguments model_kwargs", allow_infinite=True)
        self.args, self.kwargs = pack(args), pack(kwargs)
        self.replaced = {}
        with user_code(f"The model function {name_of(function)!r}"):
            self.sites, self.observed_names = self._discover()
            try:
                self._evaluate_shapes()
            except (jax.errors.JAXTypeError, jax.errors.JAXIndexError):
                self.args, self.kwargs = freeze(args), freeze(kwargs)
                self._evaluate_shapes()
            self.has_prior = can_sample(self._draw)

    def log_density(self, theta: Theta) -> Float[Array, ""]:
        """Evaluate log prior + log likelihood at theta, without any Jacobian."""
        return sum(self.log_terms(theta).values(), start=jnp.zeros(()))

    def log_terms(self, theta: Theta) -> Theta:
        """Split the log density into one term per site, including factors and observed sites."""
        seeded = handlers.seed(self._conditioned(), jax.random.key(0))
        return log_prob_terms(seeded, unpack(self.args), unpack(self.kwargs), theta)

    def support_of(self, name: str, theta: Theta) -> Constraint:
        """Return the support of a site given earlier sites, by running the model."""
        return self._trace(jax.random.key(0), theta)[name]["fn"].support

    def sample_prior(self, key: Key[Array, ""]) -> Theta | None:
        """Draw every latent site; None if a prior is improper."""
        if not self.has_prior:
            return None
        return self._draw(key)

    def initial(self) -> None:
        """Return None: a NumPyro model has no starting point."""

    def observed(self) -> Theta:
        """Return the observed data by site."""
        trace = self._trace(jax.random.key(0), {})
        return {name: jnp.asarray(trace[name]["value"]) for name in self.observed_names}

    def with_observed(self, values: Theta) -> "NumPyroModel":
        """Return the model with other values at its observed sites, whatever data the function gets."""
        shapes = {name: jnp.shape(value) for name, value in self.observed().items()}
        given = {name: jnp.shape(value) for name, value in values.items()}
        if shapes != given:
            raise ModelError(
                f"with_observed got values of shapes {given}: expected one for every observed site, {shapes}."
            )
        return eqx.tree_at(lambda m: m.replaced, self, values, is_leaf=lambda node: node is self.replaced)

    def log_likelihood(self, theta: Theta) -> Theta:
        """Evaluate the pointwise log likelihood of every observed site, without `handlers.scale`."""
        trace = self._trace(jax.random.key(0), theta)
        return {name: trace[name]["fn"].log_prob(trace[name]["value"]) for name in self.observed_names}

    def dims(self) -> dict[str, tuple[str | None, ...]]:
        """Return the names of the axes, which are the names of their plates."""
        return plate_dims(self._trace(jax.random.key(0), {}))

    def deterministic(self, theta: Theta) -> Theta:
        """Evaluate the `numpyro.deterministic` sites."""
        trace = self._trace(jax.random.key(0), theta)
        return {name: site["value"] for name, site in trace.items() if site["type"] == "deterministic"}

    def predict(self, key: Key[Array, ""], theta: Theta, *args: Any, **kwargs: Any) -> Theta:
        """Draw new values of the observed sites.

        Args:
            key: a JAX random key.
            theta: one value per latent site.
            *args: new model arguments, which replace all stored ones; an outcome may be None.
            **kwargs: new keyword arguments.
        """
        if not args and not kwargs:
            args, kwargs = self.args, self.kwargs
        conditioned = handlers.substitute(redraw(self.function), data=theta)
        with user_code(f"The model function {name_of(self.function)!r}, run to predict,"):
            trace = run_model(handlers.seed(conditioned, key), unpack(args), unpack(kwargs))
        return drawn(trace, self.observed_names)

    def mean(self, theta: Theta, *args: Any, **kwargs: Any) -> Theta:
        """Return the means of the observed sites; if one depends on another observed site, given a draw of that."""
        if not args and not kwargs:
            args, kwargs = self.args, self.kwargs
        conditioned = handlers.substitute(redraw(self.function), data=theta)
        with user_code(f"The model function {name_of(self.function)!r}, run to predict,"):
            seeded = handlers.seed(conditioned, jax.random.key(0))
            trace = run_model(seeded, unpack(args), unpack(kwargs))
            drawn(trace, self.observed_names)  # raises an error if a site is not reached
            return {name: trace[name]["fn"].mean for name in self.observed_names}

    def with_arguments(self, args: Any, kwargs: Any) -> "NumPyroModel":
        """Return the model with other arguments of the same structure."""
        return eqx.tree_at(lambda model: (model.args, model.kwargs), self, (args, kwargs))

    def _trace(self, key: Key[Array, ""], theta: Theta, args: Any = None, kwargs: Any = None) -> dict[str, dict]:
        """Run the model at theta; missing sites get a value inside their support."""
        given = handlers.substitute(fresh(self._conditioned()), data=theta)
        # Seeded last: sites with a value need no key, whose splitting would be compiled.
        seeded = handlers.seed(handlers.substitute(given, substitute_fn=partial(fill, key)), key)
        args, kwargs = (unpack(self.args), unpack(self.kwargs)) if args is None else (args, kwargs)
        return run_model(seeded, args, kwargs)

    def _conditioned(self) -> Callable:
        """Return the function conditioned on replaced data, if any."""
        return handlers.condition(self.function, data=self.replaced) if self.replaced else self.function

    def _draw(self, key: Key[Array, ""]) -> Theta:
        trace = run_model(handlers.seed(self.function, key), unpack(self.args), unpack(self.kwargs))
        return {site.name: trace[site.name]["value"] for site in self.sites}

    def _discover(self) -> tuple[tuple[Site, ...], tuple[str, ...]]:
        """Return the sites of the parameters and the names of the observed ones."""
        found: list[tuple[tuple[Site, ...], tuple[str, ...]]] = []
        try:
            trace = traced_shapes(lambda key: self._trace(key, {}, bare(self.args), bare(self.kwargs)))
            clear = _is_clear(trace)
        except UNCLEAR:
            clear = False
        if clear:
            return _examine(trace)
        probe(lambda key: found.append(_examine(self._trace(key, {}))))
        return found[0]

    def _evaluate_shapes(self) -> None:
        """Evaluate the density on abstract data, which raises an error if the function needs concrete values."""
        theta = {site.name: jax.ShapeDtypeStruct(site.shape, float_dtype()) for site in self.sites}
        arguments = (self.args, self.kwargs)

        def density(arguments: Any, theta: Theta) -> Theta:
            args, kwargs = arguments
            seeded = handlers.seed(self.function, jax.random.key(0))
            return log_prob_terms(seeded, unpack(args), unpack(kwargs), theta)

        eqx.filter_eval_shape(density, arguments, theta)


def _is_clear(trace: dict[str, dict]) -> bool:
    """Tell whether supports and data contain no tracers, so that an abstract run was sufficient."""
    samples = [site for site in trace.values() if site["type"] == "sample"]
    found = [site["value"] if site["is_observed"] else site["fn"].support for site in samples]
    return not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(found))


def _examine(trace: dict[str, dict]) -> tuple[tuple[Site, ...], tuple[str, ...]]:
    """Classify the sites of a first run and check the observed values."""
    sites: list[Site] = []
    observed: list[str] = []
    _refuse_trained(trace)
    for name, site in trace.items():
        if site["type"] != "sample":
            continue
        if not site["is_observed"]:
            check_continuous(name, site["fn"].support)
            sites.append(describe(name, jnp.shape(site["value"]), site["fn"].support))
        # An "observed" value that is computed from parameters is a term of the density and not data.
        elif not is_factor(site["fn"]) and not isinstance(site["value"], jax.core.Tracer):
            check_values(site["value"], f"The observed site {name!r}")
            check_observed(f"The observed site {name!r}", site["fn"], site["value"])
            warn_broadcast(name, site)
            observed.append(name)
    return tuple(sites), tuple(observed)


class redraw(Messenger):  # noqa: N801  (NumPyro's handlers are lower case)
    """Remove the observed values and draw new ones of the same shape.

    `handlers.uncondition` keeps the shape of the distribution, which is a scalar in
    `sample("y", Bernoulli(p), obs=y)` without a plate.
    """

    def process_message(self, msg: dict[str, Any]) -> None:
        """Convert an observed site to a latent one with the shape of the data."""
        if msg["type"] != "sample" or not msg["is_observed"] or is_factor(msg["fn"]):
            return
        fn = msg["fn"]
        data_batch = jnp.shape(msg["value"])[: jnp.ndim(msg["value"]) - fn.event_dim]
        batch = jnp.broadcast_shapes(fn.batch_shape, data_batch)
        if batch != tuple(fn.batch_shape):
            msg["fn"] = fn.expand(batch)
        msg["is_observed"] = False
        msg["value"] = None


def fill(key: Key[Array, ""], site: dict[str, Any]) -> Array | None:
    """Return a value inside the support of a latent site that has none, by `start_value`."""
    if site["type"] != "sample" or site["is_observed"] or site["value"] is not None:
        return None
    return start_value(key, site["name"], site["fn"], site["kwargs"]["sample_shape"])


class TrainedSitesError(ModelError):
    """The model has subsampled plates or trained parameters, which `NumPyroModel` does not support."""


def _refuse_trained(trace: dict[str, dict]) -> None:
    for name, site in trace.items():
        if site["type"] == "plate" and is_subsampled(site):
            raise TrainedSitesError(
                f"NumPyroModel: the plate {name!r} takes {site['args'][1]} of {site['args'][0]} rows. Pass the "
                "function to bernflow.fit, which uses minibatches, or leave out subsample_size."
            )
        if site["type"] == "mutable" or (site["type"] == "param" and jax.tree.leaves(learned(name, trace))):
            raise TrainedSitesError(
                f"NumPyroModel: {name!r} comes from numpyro.{site['type']} and changes in training. Pass the function "
                "to bernflow.fit, which also trains it, or give it a prior with numpyro.sample."
            )


def is_subsampled(plate: dict[str, Any]) -> bool:
    """Tell whether a plate is subsampled."""
    size, subsample_size = plate["args"]
    return subsample_size not in (None, size)


def learned(name: str, trace: dict[str, dict]) -> PyTree:
    """Return the value of a `numpyro.param` site with untrained leaves replaced by None.

    `random_flax_module` and `random_nnx_module` remove weights with a prior from the value. `random_eqx_module` keeps
    them and names their sites <module>/<path>.
    """
    value = trace[name]["value"]
    latent = [other for other, site in trace.items() if site["type"] == "sample" and not site["is_observed"]]
    module = name.removesuffix("$params")

    def is_trained(path: tuple, leaf: Any) -> bool:
        own = jax.tree_util.keystr(path)[1:]
        has_prior = own and any(other.startswith(module) and other[len(module) :].endswith(own) for other in latent)
        is_number = isinstance(leaf, float) or eqx.is_inexact_array(jnp.asarray(leaf) if is_data(leaf) else leaf)
        return is_number and not (isinstance(value, eqx.Module) and has_prior)

    return eqx.filter(value, jax.tree.map_with_path(is_trained, value))


class fresh(Messenger):  # noqa: N801
    """Replace mutable values by copies, because a run changes them; the initial ones are kept in `initial`."""

    def __init__(self, fn: Callable | None = None):
        self.initial: dict[str, PyTree] = {}
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Replace the value of a mutable site by a copy."""
        if msg["type"] == "mutable" and msg["value"] is not None:
            self.initial[msg["name"]] = copied(msg["value"])
            msg["value"] = copied(msg["value"])


def copied(tree: PyTree) -> PyTree:
    """Copy the containers of a tree, not the arrays."""
    return jax.tree.map(lambda leaf: leaf, tree)


def plate_dims(trace: dict[str, dict]) -> dict[str, tuple[str | None, ...]]:
    """Name the axes of sites after their plates, except for plates with two sizes or names reserved by ArviZ."""
    samples = {name: site for name, site in trace.items() if site["type"] == "sample" and not is_factor(site["fn"])}
    sizes: dict[str, set[int]] = {}
    dims = {}
    for name, site in samples.items():
        shape = jnp.shape(site["value"])
        axes: list[str | None] = [None] * len(shape)
        for plate in site["cond_indep_stack"]:
            place = len(shape) - site["fn"].event_dim + plate.dim
            if place >= 0:
                axes[place] = plate.name
                sizes.setdefault(plate.name, set()).add(shape[place])
        dims[name] = axes
    usable = {name for name, lengths in sizes.items() if len(lengths) == 1} - {"chain", "draw", "sample"}
    named = {name: tuple(axis if axis in usable else None for axis in axes) for name, axes in dims.items()}
    return {name: axes for name, axes in named.items() if any(axes)}


def drawn(trace: dict[str, dict], names: tuple[str, ...]) -> Theta:
    """Return the new values of the observed sites."""
    missing = [name for name in names if name not in trace]
    if missing:
        raise ModelError(
            f"Prediction needs the observed sites {', '.join(map(repr, missing))}, but the model does not reach them "
            "with the arguments given to predict. Change the model to also sample them if the outcome is None."
        )
    return {name: trace[name]["value"] for name in names}


def warn_broadcast(name: str, site: dict[str, Any]) -> None:
    """Warn if data of shape (N,) are broadcast with a distribution of shape (N, 1), which counts points N times."""
    fn, shape = site["fn"], jnp.shape(site["value"])
    batch = shape[: len(shape) - fn.event_dim]
    if shape and jnp.broadcast_shapes(batch, tuple(fn.batch_shape)) != batch:
        warnings.warn(
            f"The observed site {name!r} has data of shape {shape} and a distribution of batch shape "
            f"{tuple(fn.batch_shape)}: they are broadcast, so data points count several times. Give both the same "
            "shape.",
            stacklevel=2,
        )
