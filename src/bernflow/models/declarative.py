"""A model written as a dictionary of priors and a likelihood function."""

from collections.abc import Callable, Mapping
from numbers import Number
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpyro.distributions import Distribution
from numpyro.distributions.constraints import Constraint

from bernflow.errors import ModelError
from bernflow.models.base import AbstractModel, Site, Theta
from bernflow.models.inputs import NUMERIC_KINDS, call, check_values, pack, unpack, user_code
from bernflow.models.priors import check_prior, resolve
from bernflow.models.supports import check_observed, probe, start_value

OBSERVED = "y"


class Model(AbstractModel):
    """Priors by name, and a likelihood of the data y given the parameters and x.

    Args:
        prior: distributions by parameter name. A prior that depends on other parameters is a function of the
            dict of parameters; the order of the entries does not matter.
        likelihood: `likelihood(theta, x)` returns the distribution of y; `x` may be left out.
        y: the observed data.
        x: whatever else the likelihood needs: an array, or any nesting of arrays in dicts, lists and tuples.
        log_likelihood: instead of `likelihood`, `log_likelihood(theta, y, x)` returns the log likelihood of
            every data point, shape (N,). Such a model cannot predict.

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
    likelihood: Callable | None = eqx.field(static=True)
    pointwise: Callable | None = eqx.field(static=True)
    has_prior: bool = eqx.field(static=True)

    def __init__(
        self,
        *,
        prior: Mapping[str, Distribution | Callable],
        likelihood: Callable | None = None,
        y: Any = None,
        x: Any = None,
        log_likelihood: Callable | None = None,
    ):
        _check_functions(likelihood, log_likelihood, y)
        check_prior(prior, reserved=OBSERVED)
        self.prior = dict(prior)
        self.likelihood = likelihood
        self.pointwise = log_likelihood
        self.y = None if y is None else _outcome(y)
        self.x = _covariates(x)
        self.sites = resolve(self.prior)
        self._check_likelihood()
        self._check_outcome()
        self.has_prior = self._can_sample()

    def log_density(self, theta: Theta) -> Float[Array, ""]:
        """Evaluate log prior + log likelihood at theta, without any Jacobian."""
        return sum(self.log_terms(theta).values(), start=jnp.zeros(()))

    def log_terms(self, theta: Theta) -> Theta:
        """Split the log density into one term per prior and one, `y`, for the likelihood."""
        terms = {site.name: jnp.sum(self._prior(site.name, theta).log_prob(theta[site.name])) for site in self.sites}
        return terms | {OBSERVED: jnp.sum(self._points(theta))}

    def support_of(self, name: str, theta: Theta) -> Constraint:
        """Return the support of a parameter given those that its prior depends on."""
        return self._prior(name, theta).support

    def sample_prior(self, key: Key[Array, ""]) -> Theta | None:
        """Draw every parameter from its prior, or None where one is improper."""
        return self._draw(key) if self.has_prior else None

    def initial(self) -> None:
        """Return None: the model carries no starting point."""

    def observed(self) -> Theta:
        """Return y, if it was given."""
        return {} if self.y is None else {OBSERVED: jnp.asarray(self.y)}

    def log_likelihood(self, theta: Theta) -> Theta:
        """Evaluate the log likelihood of every data point."""
        return {OBSERVED: self._points(theta)}

    def deterministic(self, theta: Theta) -> Theta:
        """Return nothing: derived quantities are computed from draws."""
        return {}

    def predict(self, key: Key[Array, ""], theta: Theta, x: Any = None) -> Theta:  # type: ignore[override]
        """Draw new outcomes for the covariates given, or for the model's own."""
        if self.likelihood is None:
            raise ModelError(
                "Prediction needs likelihood=..., a function that returns a distribution: this model has "
                "log_likelihood=..., which cannot generate data."
            )
        with user_code("The likelihood, run to predict,"):
            fn = call(self.likelihood, theta, unpack(self.x if x is None else _covariates(x)))
            if x is None:
                shape = np.shape(self.y)
                batch = jnp.broadcast_shapes(fn.batch_shape, shape[: len(shape) - fn.event_dim])
                fn = fn if batch == tuple(fn.batch_shape) else fn.expand(batch)
            return {OBSERVED: fn.sample(key)}

    def _prior(self, name: str, theta: Theta) -> Distribution:
        fn = self.prior[name]
        return fn if isinstance(fn, Distribution) else fn(theta)

    def _points(self, theta: Theta) -> Array:
        x, y = unpack(self.x), None if self.y is None else jnp.asarray(self.y)
        if self.likelihood is not None:
            return call(self.likelihood, theta, x).log_prob(y)
        assert self.pointwise is not None
        return jnp.asarray(call(self.pointwise, theta, y, x))

    def _draw(self, key: Key[Array, ""]) -> Theta:
        theta: Theta = {}
        for site, site_key in zip(self.sites, jax.random.split(key, len(self.sites)), strict=True):
            theta[site.name] = self._prior(site.name, theta).sample(site_key)
        return theta

    def _can_sample(self) -> bool:
        try:
            jax.eval_shape(lambda key: self._draw(key), jax.random.key(0))
        except NotImplementedError:
            return False
        return True

    def _check_likelihood(self) -> None:
        """Evaluate shapes only: the likelihood must give one value per data point."""
        theta = {site.name: jax.ShapeDtypeStruct(site.shape, jnp.zeros(()).dtype) for site in self.sites}
        seen: dict[str, Any] = {}

        def visit(theta: Theta) -> Array:
            if self.likelihood is not None:
                fn = call(self.likelihood, theta, unpack(self.x))
                if not isinstance(fn, Distribution):
                    raise ModelError(
                        f"The likelihood returned a {type(fn).__name__}: expected a NumPyro distribution. "
                        "A function that returns log probabilities is given as log_likelihood=..."
                    )
                seen["batch"], seen["event_dim"] = tuple(fn.batch_shape), fn.event_dim
                _check_shape(np.shape(self.y), seen["batch"], tuple(fn.event_shape))
            return self._points(theta)

        what = "The log_likelihood" if self.likelihood is None else "The likelihood"
        with user_code(f"{what} (parameters: {', '.join(theta)})"):
            out = jax.eval_shape(visit, theta)
        shape = np.shape(self.y)
        if self.likelihood is None and self.y is not None and out.shape not in (shape, shape[:1]):
            raise ModelError(
                f"The log_likelihood returned shape {out.shape} for y of shape {shape}: expected one value "
                "per data "
                f"point, shape {shape[:1]}. Return the terms before they are summed over the data."
            )

    def _check_outcome(self) -> None:
        """Run the likelihood once on concrete data: only then can bounds that come from x be compared."""

        def visit(key: Key[Array, ""]) -> None:
            theta: Theta = {}
            for site in self.sites:
                theta[site.name] = start_value(key, site.name, self._prior(site.name, theta))
            assert self.likelihood is not None
            check_observed("Model: y", call(self.likelihood, theta, unpack(self.x)), self.y)

        if self.likelihood is not None:
            with user_code("The likelihood"):
                probe(visit)


def _check_shape(shape: tuple[int, ...], batch: tuple[int, ...], event: tuple[int, ...]) -> None:
    split = len(shape) - len(event)
    given = f"y has shape {shape}, the likelihood has batch_shape {batch} and event_shape {event}"
    if split < 0 or shape[split:] != event:
        raise ModelError(
            f"{given}: expected y to end in the event_shape {event}. "
            "Reshape y, or change what to_event(...) makes of the likelihood."
        )
    try:
        points = jnp.broadcast_shapes(shape[:split], batch)
    except ValueError:
        points = None
    if points != shape[:split]:
        outcome = "which do not fit" if points is None else f"which broadcast to {points}"
        raise ModelError(
            f"{given}, {outcome}: expected one log probability per data point, shape {shape[:split]}. "
            "Make the parameters of the likelihood as long as y: a column of shape (N, 1) becomes (N,) "
            "by `[:, 0]` or `.squeeze(-1)`."
        )


def _check_functions(likelihood: Any, log_likelihood: Any, y: Any) -> None:
    if (likelihood is None) == (log_likelihood is None):
        given = "neither" if likelihood is None else "both"
        raise ModelError(f"Model got {given} of likelihood= and log_likelihood=: expected exactly one of them.")
    for name, function in (("likelihood", likelihood), ("log_likelihood", log_likelihood)):
        if function is not None and (not callable(function) or isinstance(function, Distribution)):
            raise ModelError(
                f"Model: {name} is a {type(function).__name__}: expected a function of theta, "
                f"for example `{name}=lambda theta, {'x' if name == 'likelihood' else 'y, x'}: ...`."
            )
    if likelihood is not None and y is None:
        raise ModelError("Model got likelihood= without y=: expected the observed data as y=...")


def _outcome(y: Any) -> np.ndarray:
    check_values(y, "Model: y")
    array = np.asarray(y)
    if array.dtype.kind not in NUMERIC_KINDS:
        raise ModelError(f"Model: y has dtype {array.dtype}: expected numbers. Encode it as integers or floats.")
    check_values(array, "Model: y")
    return array.astype(int) if array.dtype.kind == "b" else array


def _covariates(x: Any) -> Any:
    """Pack x; a list of plain numbers counts as an array."""

    def is_numbers(node: Any) -> bool:
        return isinstance(node, list) and len(node) > 0 and all(isinstance(v, Number) for v in node)

    x = jax.tree.map(lambda node: np.asarray(node) if is_numbers(node) else node, x, is_leaf=is_numbers)
    check_values(x, "Model: x")
    return pack(x)
