"""`AutoBernstein`: the Bernstein flow of `bernflow.fit` as an automatic guide.

`bernflow.fit` chooses start, optimizer and number of steps itself and judges the result. The guide provides the same
flow for existing training loops in NumPyro (minibatches, parameters of the model, another bound).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float, Key
from numpyro.distributions import constraints
from numpyro.distributions.transforms import PermuteTransform, Transform
from numpyro.infer.autoguide import AutoContinuous
from numpyro.infer.initialization import init_to_uniform
from numpyro.util import not_jax_tracer

from bernflow.errors import ArgumentError
from bernflow.fit.settings import HIDDEN_WIDTH, check_count
from bernflow.flows.autoregressive import BernsteinFlow
from bernflow.flows.families import Spec
from bernflow.keys import as_key
from bernflow.numpyro.flow import complete, new_core
from bernflow.numpyro.transform import FlowTransform
from bernflow.target import is_scale

BASES: dict[str, Callable[..., dist.Distribution]] = {"normal": dist.Normal, "logistic": dist.Logistic}
DEFAULT_ORDER = 20
# With this number the standard error of a median is about 1 % of a standard deviation.
NUM_QUANTILE_DRAWS = 10_000


class AutoBernstein(AutoContinuous):
    """An automatic guide with a Bernstein flow, for any number of dimensions.

    The flow is that of `bernflow.fit`: base noise, increasing Bernstein polynomials whose coefficients depend on
    earlier dimensions, and a full-rank outer affine map. It is initialized to N(init_loc, init_scale^2), approximately
    with logistic noise. Positive sites come first in its autoregressive order, the others follow in model order.

    The trained parameters are NumPyro parameters: `{prefix}_loc` and `{prefix}_scale_tril` as in
    `AutoMultivariateNormal` (but in the order of the flow), `{prefix}_bias` (the polynomials), `{prefix}_inner_*`,
    `{prefix}_network_*` and `{prefix}_skip_*`. They determine the posterior, independent of the guide object.

    Args:
        model: a NumPyro model without discrete latent sites.
        order: order M of the polynomials, which have M+1 coefficients.
        prefix: prefix of the names of the parameters.
        init_loc_fn: one of NumPyro's initialization strategies.
        init_scale: initial standard deviation on the unconstrained scale.
        num_hidden: units in each of the two hidden layers of the conditioner.
        base: base noise, "normal" or "logistic" (heavier tails).
        path_gradient: use the gradients of `bernflow.fit`: far less noise, at up to three times the cost in tens of
            dimensions and more in hundreds. Valid for bounds that are linear in log q (`Trace_ELBO`,
            `TraceMeanField_ELBO`), biased for others (`RenyiELBO`).

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> from numpyro.infer import SVI, Trace_ELBO
        >>> from bernflow.numpyro import AutoBernstein
        >>> def model(y):
        ...     p = numpyro.sample("p", dist.Beta(1.1, 1.1))
        ...     numpyro.sample("y", dist.Bernoulli(p), obs=y)
        >>> guide = AutoBernstein(model, order=10)
        >>> svi = SVI(model, guide, numpyro.optim.Adam(1e-2), Trace_ELBO(num_particles=8))
        >>> params = svi.run(jax.random.key(0), 100, jax.numpy.array([1, 1]), progress_bar=False).params
        >>> guide.quantiles(params, [0.05, 0.95])["p"].shape
        (2,)
    """

    scale_tril_constraint = constraints.scaled_unit_lower_cholesky

    def __init__(
        self,
        model: Callable[..., Any],
        *,
        order: int | None = DEFAULT_ORDER,
        prefix: str = "auto",
        init_loc_fn: Callable[..., Any] = init_to_uniform,
        init_scale: float = 0.1,
        num_hidden: int | None = HIDDEN_WIDTH,
        base: str = "normal",
        path_gradient: bool = False,
    ):
        for name, value in (("model", model), ("init_loc_fn", init_loc_fn)):
            if not callable(value):
                raise ArgumentError(f"{name}={value!r}: expected a function, as for NumPyro's own guides.")
        if not isinstance(prefix, str):
            raise ArgumentError(f"prefix={prefix!r}: expected a string, the prefix of the names of the parameters.")
        if isinstance(init_scale, bool) or not isinstance(init_scale, int | float) or not 0 < init_scale < math.inf:
            raise ArgumentError(f"init_scale={init_scale!r}: expected a finite number above 0.")
        if base not in BASES:
            raise ArgumentError(f"base={base!r} is unknown: expected one of {', '.join(BASES)}.")
        if not isinstance(path_gradient, bool):
            raise ArgumentError(f"path_gradient={path_gradient!r}: expected True or False.")
        self.order = check_count("order", order, DEFAULT_ORDER)
        self.num_hidden = check_count("num_hidden", num_hidden, HIDDEN_WIDTH)
        self.base = base
        self.path_gradient = path_gradient
        self._init_scale = float(init_scale)
        super().__init__(model, prefix=prefix, init_loc_fn=init_loc_fn)

    def get_base_dist(self) -> dist.Distribution:
        """Return the distribution of the base noise: p independent variates."""
        self._check_ready()
        return BASES[self.base](jnp.zeros(self.latent_dim), 1.0).to_event(1)

    def get_transform(self, params: Mapping[str, Array]) -> Transform:
        """Return the map from base noise to the unconstrained latent vector.

        Args:
            params: the trained parameters, as `SVI.get_params` returns them.
        """
        self._check_params(params)
        return super().get_transform(params)

    def sample_posterior(self, rng_key, params, *args, sample_shape=(), **kwargs) -> dict[str, Array]:
        """Draw latent and deterministic sites on the constrained scale.

        `rng_key` is a `jax.random.key`, `params` are the trained parameters, `args` and `kwargs` the arguments of the
        model. The draws of a site have shape `sample_shape` followed by the shape of the site.
        """
        self._check_params(params)
        return super().sample_posterior(rng_key, params, *args, sample_shape=sample_shape, **kwargs)

    def median(self, params: Mapping[str, Array]) -> dict[str, Array]:
        """Return the median of every element of every site (see `quantiles`).

        Args:
            params: the trained parameters.
        """
        return self.quantiles(params, 0.5)

    def quantiles(
        self,
        params: Mapping[str, Array],
        quantiles: Any,
        *,
        num_samples: int | None = NUM_QUANTILE_DRAWS,
        rng_key: Key[Array, ""] | int = 0,
    ) -> dict[str, Array]:
        """Return marginal quantiles of every element of every site, on the constrained scale.

        They are quantiles of draws, because there is no closed form with several parameters or for deterministic sites.
        For the latent site of a model with one parameter they are exact, since the flow is increasing.

        Args:
            params: the trained parameters.
            quantiles: probabilities between 0 and 1, of any shape.
            num_samples: number of draws.
            rng_key: a JAX key or an integer seed, fixed by default.

        Returns:
            Arrays of shape (*shape of quantiles, *shape of the site).
        """
        levels = _check_levels(quantiles)
        num = check_count("num_samples", num_samples, NUM_QUANTILE_DRAWS)
        draws = self.sample_posterior(as_key(rng_key), params, sample_shape=(num,))
        found = {name: jnp.quantile(value.astype(float), levels.ravel(), axis=0) for name, value in draws.items()}
        if self.latent_dim == 1:
            found |= self._exact_quantiles(params, levels.ravel())
        return {name: value.reshape(levels.shape + value.shape[1:]) for name, value in found.items()}

    def _exact_quantiles(self, params: Mapping[str, Array], levels: Float[Array, " k"]) -> dict[str, Array]:
        """Return the exact quantiles of the latent site of a one-dimensional posterior."""
        transform, noise = self.get_transform(params), self.get_base_dist().base_dist

        def at(levels):
            values = self._unpack_and_constrain(transform(noise.icdf(levels[:, None])), params)
            return {name: values[name] for name in self._init_locs}

        # The map of a site to its support may be decreasing, as for an upper bound or one component of a simplex.
        ends, values, mirrored = at(jnp.array([0.25, 0.75])), at(levels), at(1.0 - levels)
        return {name: jnp.where(ends[name][1] >= ends[name][0], values[name], mirrored[name]) for name in values}

    def _setup_prototype(self, *args, **kwargs):
        super()._setup_prototype(*args, **kwargs)
        self._permutation = self._scales_first()
        self._core_shapes = jax.eval_shape(self._new_core, jax.random.key(0))

    def _scales_first(self) -> np.ndarray:
        """Return the indices in NumPyro's latent vector of the dimensions of the flow, in order."""
        sizes = {name: np.size(value) for name, value in self._init_locs.items()}
        ends = dict(zip(sizes, np.cumsum(list(sizes.values())), strict=True))
        latents = [name for name in self.prototype_trace if name in sizes]
        latents.sort(key=lambda name: not is_scale(self.prototype_trace[name]["fn"].support))
        return np.concatenate([np.arange(ends[name] - sizes[name], ends[name]) for name in latents])

    def _get_posterior(self) -> dist.TransformedDistribution:
        transforms: list[Transform] = [FlowTransform(self._flow(), path_gradient=self.path_gradient)]
        if np.any(np.diff(self._permutation) < 0):
            transforms.append(PermuteTransform(jnp.asarray(np.argsort(self._permutation))))
        return dist.TransformedDistribution(self.get_base_dist(), transforms)

    def _flow(self) -> BernsteinFlow:
        """Build the flow from NumPyro parameters, whose initial values are computed only if needed."""
        # Initial values are lambdas, because attributes from the prototype run may be leaked tracers.
        trained = [
            numpyro.param(name, lambda key, i=i: jax.tree.leaves(self._new_core(key))[i])
            for i, name in enumerate(self._core_names())
        ]
        loc = numpyro.param(f"{self.prefix}_loc", lambda key: self._init_latent[self._permutation])
        tril = numpyro.param(
            f"{self.prefix}_scale_tril",
            lambda key: self._init_scale * jnp.eye(self.latent_dim),
            constraint=self.scale_tril_constraint,
        )
        core = jax.tree.unflatten(jax.tree.structure(self._core_shapes), trained)
        return complete(core, loc, tril)

    def _new_core(self, key: Key[Array, ""]) -> BernsteinFlow:
        spec = Spec(dim=self.latent_dim, order=self.order, noise=self.base, width=self.num_hidden)
        return new_core(spec, key)

    def _core_names(self) -> list[str]:
        paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(self._core_shapes)]
        return ["_".join([self.prefix, *(step.name for step in path)]) for path in paths]

    def _check_ready(self) -> None:
        if self.prototype_trace is None:
            raise ArgumentError(
                "This AutoBernstein has not been initialized yet: run svi.init(key, *args) or svi.run(key, num_steps, "
                "*args) first, or numpyro.handlers.seed(guide, key)(*args) to use existing parameters."
            )

    def _check_params(self, params: Mapping[str, Array]) -> None:
        """Raise an error for parameters of another guide, which NumPyro would replace by initial values."""
        self._check_ready()
        dim = self.latent_dim
        shapes = [leaf.shape for leaf in jax.tree.leaves(self._core_shapes)]
        expected = dict(zip(self._core_names(), shapes, strict=True))
        expected |= {f"{self.prefix}_loc": (dim,), f"{self.prefix}_scale_tril": (dim, dim)}
        for name, shape in expected.items():
            if name not in params:
                raise ArgumentError(
                    f"params has no {name!r}: expected what svi.get_params(state) or svi.run(...).params returns for a "
                    f"guide with prefix={self.prefix!r}, but got {', '.join(map(repr, params)) or 'nothing'}."
                )
            if jnp.shape(params[name]) != shape:
                raise ArgumentError(
                    f"params[{name!r}] has shape {jnp.shape(params[name])}: expected {shape} for order={self.order}, "
                    f"num_hidden={self.num_hidden} and {dim} parameters. Use the guide with which they were trained."
                )


def _check_levels(quantiles: Any) -> Float[Array, "..."]:
    levels = jnp.asarray(quantiles, float)
    if not_jax_tracer(levels) and not bool(jnp.all((levels > 0) & (levels < 1))):
        raise ArgumentError(f"quantiles={quantiles!r}: expected probabilities strictly between 0 and 1.")
    return levels
