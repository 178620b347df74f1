"""A model written as a dictionary of priors and a likelihood function."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree
from numpyro.distributions import Distribution
from numpyro.distributions.constraints import Constraint

from bernflow.errors import ModelError
from bernflow.models import network as networks
from bernflow.models.base import AbstractJointModel, Site, Theta
from bernflow.models.columns import has_frame
from bernflow.models.declared_inputs import (
    as_covariates,
    as_images,
    as_outcome,
    check_functions,
    check_shape,
    check_unknown,
    network_parts,
)
from bernflow.models.derived import check_derived, derive
from bernflow.models.inputs import call, num_positional, unpack, user_code
from bernflow.models.mapped import row_blocks
from bernflow.models.network import Network
from bernflow.models.priors import check_prior, resolve
from bernflow.models.supports import can_sample, check_observed, probe, start_value
from bernflow.precision import float_dtype, use_settings

OBSERVED = "y"
ARGUMENTS = ("prior", "likelihood", "y", "x", "log_likelihood", "network", "images", "derived")


class Model(AbstractJointModel):
    """Priors by name, and a likelihood of the data y given the parameters and x.

    Args:
        prior: distributions by parameter name. A prior that depends on other parameters is a function of the
            dict of parameters; the order of the entries does not matter.
        likelihood: `likelihood(theta, x)` returns the distribution of y; `x` may be omitted.
        y: the observed data.
        x: other inputs of the likelihood: an array, or any nesting of arrays in dicts, lists and tuples.
        log_likelihood: instead of `likelihood`, `log_likelihood(theta, y, x)` returns the log likelihood of
            every data point, shape (N,). Such a model cannot predict.
        network: a network (equinox, flax.nnx) whose weights are trained and not inferred. The likelihood then takes its
            output h, one row per observation, as its last argument: `likelihood(theta, x, h)`.
        images: the inputs of the network, one row per observation.
        derived: `derived(theta, x)` returns a dict of quantities computed from the parameters; `x` may be omitted. They
            are included in draws, tables, figures and saved files.

    Example:
        >>> import numpy as np, numpyro.distributions as dist
        >>> model = Model(
        ...     prior={"u": lambda th: dist.Normal(0, th["s"]), "s": dist.HalfNormal(1)},
        ...     likelihood=lambda th: dist.Normal(th["u"], 1.0),
        ...     y=np.array([0.3, -1.2, 0.7]),
        ... )
        >>> [site.name for site in model.sites]
        ['s', 'u']
    """

    sites: tuple[Site, ...]
    prior: dict[str, Any]
    y: Any
    x: Any
    network: Network | None
    images: Any
    features: Any
    is_real: Any
    likelihood: Callable | None = eqx.field(static=True)
    pointwise: Callable | None = eqx.field(static=True)
    derived: Callable | None = eqx.field(static=True)
    has_prior: bool = eqx.field(static=True)
    total_rows: int | None = eqx.field(static=True)

    @use_settings()
    def __init__(
        self,
        *,
        prior: Mapping[str, Distribution | Callable] | None = None,
        likelihood: Callable | None = None,
        y: Any = None,
        x: Any = None,
        log_likelihood: Callable | None = None,
        network: Any = None,
        images: Any = None,
        derived: Callable | None = None,
        **unknown: Any,
    ):
        check_unknown(unknown, ARGUMENTS)
        check_functions(likelihood, log_likelihood, y)
        self.prior = check_prior(prior, reserved=OBSERVED)
        self.likelihood = likelihood
        self.pointwise = log_likelihood
        self.y = None if y is None else as_outcome(y)
        self.x = as_covariates(x)
        self.is_real = None
        self.total_rows = None if self.y is None or self.y.ndim == 0 else len(self.y)
        self.network, self.images, self.features = network_parts(network, images, self.y)
        self.sites = resolve(self.prior)
        try:
            self._check_parts()
        except ModelError as error:
            if not has_frame(x):
                raise
            # The likelihood may need the table as a matrix.
            self.x = as_covariates(x, tables="matrix")
            try:
                self._check_parts()
            except ModelError:
                raise error from error.__cause__
        self.has_prior = can_sample(self._draw)
        self.derived = derived
        check_derived(derived, self.sites, self.deterministic, OBSERVED)

    def log_density(self, theta: Theta) -> Float[Array, ""]:
        """Evaluate log prior + log likelihood at theta, without any Jacobian."""
        return sum(self.log_terms(theta).values(), start=jnp.zeros(()))

    def log_terms(self, theta: Theta) -> Theta:
        """Split the log density into one term per prior and one, `y`, for the likelihood."""
        return self._prior_terms(theta) | {OBSERVED: jnp.sum(self._points(theta))}

    def support_of(self, name: str, theta: Theta) -> Constraint:
        """Return the support of a parameter given those that its prior depends on."""
        return self._prior(name, theta).support

    def sample_prior(self, key: Key[Array, ""]) -> Theta | None:
        """Draw every parameter from its prior; None if a prior is improper."""
        return self._draw(key) if self.has_prior else None

    def initial(self) -> None:
        """Return None: the model has no starting point."""

    def observed(self) -> Theta:
        """Return y, if there is one."""
        return {} if self.y is None else {OBSERVED: jnp.asarray(self.y)}

    def with_observed(self, values: Theta) -> "Model":
        """Return the model with another outcome, `{"y": ...}`, and the same covariates."""
        if self.y is None or set(values) != {OBSERVED} or jnp.shape(values[OBSERVED]) != self.y.shape:
            given = ", ".join(f"{name!r} of shape {jnp.shape(value)}" for name, value in values.items())
            own = "no outcome" if self.y is None else f"{OBSERVED!r} of shape {self.y.shape}"
            raise ModelError(f"with_observed got {given}: expected values for the data of the model, {own}.")
        return eqx.tree_at(lambda m: m.y, self, values[OBSERVED])

    def log_likelihood(self, theta: Theta) -> Theta:
        """Evaluate the log likelihood of every data point."""
        return {OBSERVED: self._points(theta)}

    def deterministic(self, theta: Theta) -> Theta:
        """Evaluate the function `derived`."""
        return derive(self.derived, theta, unpack(self.x))

    def num_rows(self) -> int:
        """Count the rows of y."""
        if self.total_rows is None:
            raise ModelError("Batches need one row per observation: give y=... of shape (N,) or (N, ...).")
        return self.total_rows

    def rows(self) -> PyTree:
        """Return the outcome, the covariates with one row per observation, and the inputs of the network."""
        return {"y": self.y, "x": self._split_covariates()[0], "images": self.images}

    def split_rows(self) -> tuple[PyTree, PyTree]:
        """Split the data behind `log_density` into the arrays with one row per observation and the rest."""
        by_row, constant = self._split_covariates()
        return (self.y, by_row, self.features), constant

    def with_rows(self, rows: PyTree, constant: PyTree, total: int, is_real: Any = None) -> "Model":
        """Return the model with other rows, in the format of `split_rows`.

        Args:
            rows: outcome, covariates with one row per observation, and output of the network.
            constant: the other covariates.
            total: total number of rows that the batch represents.
            is_real: mask of the rows that are not padding; None if all are real.
        """
        new = copy.copy(self)
        y, by_row, features = rows
        changes = {"y": y, "x": eqx.combine(by_row, constant), "features": features, "is_real": is_real}
        for name, value in {**changes, "total_rows": total}.items():
            object.__setattr__(new, name, value)
        return new

    def without_rows(self) -> "Model":
        """Return the model without the outcome, the images and the covariates with one row per observation."""
        constants = self._split_covariates()[1]
        light = eqx.tree_at(lambda m: m.x, self, constants, is_leaf=_is_none)
        rows = (None, None, None, None)
        return eqx.tree_at(lambda m: (m.y, m.images, m.features, m.is_real), light, rows, is_leaf=_is_none)

    def trained(self) -> tuple[PyTree, PyTree]:
        """Return the weights and the state of the network."""
        return (None, None) if self.network is None else (self.network.weights, self.network.state)

    def log_density_of_batch(
        self, theta: Theta, weights: PyTree, state: PyTree, batch: PyTree, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], PyTree]:
        """Estimate log prior + log likelihood from a batch of B out of N rows."""
        h = None
        if self.network is not None:
            h, state = self.network.apply(weights, state, batch["images"], key, True)
            h = h.astype(float_dtype())
        x = unpack(eqx.combine(batch["x"], self._split_covariates()[1]))
        points = self._points_of(theta, batch["y"], x, h)
        scale = self.num_rows() / batch["y"].shape[0]
        return self._log_prior(theta) + scale * jnp.sum(points), state

    def frozen(self, weights: PyTree, state: PyTree) -> "Model":
        """Return the model of all rows with the output of the trained network as data."""
        if self.network is None:
            return self
        if self.images is None:
            raise ModelError(
                "The model contains the output of its network but no images: expected the model as it was built."
            )
        network = self.network.with_weights(weights, state)
        features = networks.evaluate(network, self.images)
        # The images are no longer needed, and would be passed to every function of the model.
        return eqx.tree_at(
            lambda m: (m.network, m.features, m.images), self, (network, features, None), is_leaf=_is_none
        )

    def prepare(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Evaluate the network once on new images, so that predictions need only its output."""
        if kwargs.get("images") is None:
            return args, {name: value for name, value in kwargs.items() if name != "images"}
        if self.network is None:
            raise ModelError("predict got images, but the model has no network: leave them out.")
        features = networks.evaluate(self.network, as_images(kwargs["images"]))
        return args, {**{name: v for name, v in kwargs.items() if name != "images"}, "features": features}

    def predict(  # type: ignore[override]
        self, key: Key[Array, ""], theta: Theta, x: Any = None, features: Any = None
    ) -> Theta:
        """Draw new outcomes for new covariates, or for the model's own.

        Args:
            key: a JAX random key.
            theta: one value per parameter.
            x: covariates to use instead of the model's own.
            features: output of the network for new images; `Posterior.predict` computes it from `images=`.
        """
        fn = self._predictive(theta, x, features)
        return {OBSERVED: fn.sample(key)}

    def mean(self, theta: Theta, x: Any = None, features: Any = None) -> Theta:  # type: ignore[override]
        """Return the mean of the outcome for new covariates, or for the model's own."""
        return {OBSERVED: self._predictive(theta, x, features).mean}

    def _predictive(self, theta: Theta, x: Any, features: Any) -> Distribution:
        """Return the distribution of outcomes for a prediction."""
        if self.network is not None and (x is None) != (features is None) and self.x is not None:
            raise ModelError("predict for new data needs both x and images: the model was given both.")
        if self.likelihood is None:
            raise ModelError(
                "Prediction needs likelihood=..., a function that returns a distribution: this model has "
                "log_likelihood=..., which cannot simulate data."
            )
        with user_code("The likelihood, run to predict,"):
            own = x is None and features is None
            h = self.features if own else features
            fn = self._distribution(theta, unpack(self.x if x is None else as_covariates(x)), h)
            if own:
                shape = np.shape(self.y)
                batch = jnp.broadcast_shapes(fn.batch_shape, shape[: len(shape) - fn.event_dim])
                fn = fn if batch == tuple(fn.batch_shape) else fn.expand(batch)
            return fn

    def _prior(self, name: str, theta: Theta) -> Distribution:
        fn = self.prior[name]
        return fn if isinstance(fn, Distribution) else fn(theta)

    def _prior_terms(self, theta: Theta) -> Theta:
        return {site.name: jnp.sum(self._prior(site.name, theta).log_prob(theta[site.name])) for site in self.sites}

    def _log_prior(self, theta: Theta) -> Array:
        return sum(self._prior_terms(theta).values(), start=jnp.zeros(()))

    def _points(self, theta: Theta) -> Array:
        y = None if self.y is None else jnp.asarray(self.y)
        points = self._points_of(theta, y, unpack(self.x), unpack(self.features))
        if self.is_real is None:
            return points
        return jnp.where(self.is_real.reshape(-1, *(1,) * (points.ndim - 1)), points, 0.0)

    def _points_of(self, theta: Theta, y: Any, x: Any, h: Any) -> Array:
        """Evaluate the log likelihood of every row given."""
        if self.likelihood is not None:
            return self._distribution(theta, x, h).log_prob(y)
        assert self.pointwise is not None
        return jnp.asarray(call(self.pointwise, theta, y, *self._arguments(self.pointwise, 2, x, h)))

    def _distribution(self, theta: Theta, x: Any, h: Any) -> Distribution:
        assert self.likelihood is not None
        return call(self.likelihood, theta, *self._arguments(self.likelihood, 1, x, h))

    def _arguments(self, function: Callable, num_before: int, x: Any, h: Any) -> tuple:
        """Return the data arguments of a user's function: x, then the output h of a network, if there is one."""
        if self.network is None:
            return (x,)
        h = jnp.asarray(h, float_dtype())
        return (h,) if x is None and num_positional(function) <= num_before + 1 else (x, h)

    def _split_covariates(self) -> tuple[Any, Any]:
        """Split x into the arrays with one row per observation and the rest."""
        num = self.num_rows()
        return eqx.partition(self.x, lambda leaf: isinstance(leaf, np.ndarray | jax.Array) and leaf.shape[:1] == (num,))

    def _draw(self, key: Key[Array, ""]) -> Theta:
        theta: Theta = {}
        for site, site_key in zip(self.sites, jax.random.split(key, len(self.sites)), strict=True):
            theta[site.name] = self._prior(site.name, theta).sample(site_key)
        return theta

    def _parts(self) -> Iterator[tuple[int, tuple[Any, Any, Any]]]:
        """Yield (first row, (y, x, h)): all rows at once, or in blocks if they are memory-mapped."""
        if self.total_rows is None:
            yield 0, (self.y, self.x, self.features)
            return
        by_row, constant = self._split_covariates()
        for start, (y, x, h) in row_blocks((self.y, by_row, self.features), self.total_rows):
            yield start, (y, eqx.combine(x, constant), h)

    def _check_parts(self) -> None:
        for start, (y, x, h) in self._parts():
            if start == 0:
                self._check_likelihood(y, x, h)
            self._check_outcome(y, x, h)

    def _check_likelihood(self, y: Any, x: Any, h: Any) -> None:
        """Check, by shapes only, that the likelihood returns one value per data point."""
        theta = {site.name: jax.ShapeDtypeStruct(site.shape, float_dtype()) for site in self.sites}
        seen: dict[str, Any] = {}

        def visit(theta: Theta) -> Array:
            if self.likelihood is not None:
                fn = self._distribution(theta, unpack(x), h)
                if not isinstance(fn, Distribution):
                    raise ModelError(
                        f"The likelihood returned a {type(fn).__name__}: expected a NumPyro distribution. Pass a "
                        "function that returns log probabilities as log_likelihood=..."
                    )
                seen["batch"], seen["event_dim"] = tuple(fn.batch_shape), fn.event_dim
                check_shape(np.shape(y), seen["batch"], tuple(fn.event_shape))
            return self._points_of(theta, None if y is None else jnp.asarray(y), unpack(x), unpack(h))

        what = "The log_likelihood" if self.likelihood is None else "The likelihood"
        with user_code(f"{what} (parameters: {', '.join(theta)})"):
            out = jax.eval_shape(visit, theta)
        shape = np.shape(y)
        if self.likelihood is None and y is not None and out.shape not in (shape, shape[:1]):
            raise ModelError(
                f"The log_likelihood returned shape {out.shape} for y of shape {shape}: expected one value per data "
                f"point, shape {shape[:1]}. Return the terms before they are summed over the data."
            )

    def _check_outcome(self, y: Any, x: Any, h: Any) -> None:
        """Run the likelihood once on concrete data, which is needed to check bounds that depend on x."""

        def visit(key: Key[Array, ""]) -> None:
            theta: Theta = {}
            for site in self.sites:
                theta[site.name] = start_value(key, site.name, self._prior(site.name, theta))
            assert self.likelihood is not None
            check_observed("Model: y", self._distribution(theta, unpack(x), h), y)

        if self.likelihood is not None:
            with user_code("The likelihood"):
                probe(visit)


def _is_none(leaf: Any) -> bool:
    return leaf is None
