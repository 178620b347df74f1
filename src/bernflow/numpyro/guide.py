"""`AutoBernstein`: the Bernstein flow of `bernflow.fit` as an automatic guide.

`bernflow.fit` chooses start, optimizer and number of steps itself and judges the result. Whoever has a training loop
in NumPyro already (minibatches, parameters of the model, another bound) uses the same flow from there.
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
# The standard error of a median is then 1 % of a standard deviation.
NUM_QUANTILE_DRAWS = 10_000


class AutoBernstein(AutoContinuous):
    """Guide a model by a Bernstein flow, in one dimension as in many.

    The flow is that of `bernflow.fit`: base noise, increasing Bernstein polynomials whose coefficients depend on the
    earlier dimensions, a full-rank affine map around them. It starts as N(init_loc, init_scale^2), with logistic noise
    nearly so. Positive sites come first in its autoregressive order, the others follow in the order of the model.

    All that is trained are NumPyro parameters: `{prefix}_loc` and `{prefix}_scale_tril` as in `AutoMultivariateNormal`
    (but in the order of the flow), `{prefix}_bias` (the polynomials), `{prefix}_inner_*`, `{prefix}_network_*` and
    `{prefix}_skip_*`. They alone determine the posterior, whichever guide object they are given to.

    Args:
        model: a NumPyro model without discrete latent sites.
        order: order M of the polynomials, which have M+1 coefficients.
        prefix: what the names of the parameters begin with.
        init_loc_fn: where the guide starts, one of NumPyro's initialization strategies.
        init_scale: standard deviation at the start, on the unconstrained scale.
        num_hidden: units in each of the two hidden layers of the conditioner.
        base: base noise, "normal" or "logistic" (heavier tails).
        path_gradient: use the gradients of `bernflow.fit`: far less noise, at up to three times the cost in some tens
            of dimensions and more in hundreds. Right for bounds that are linear in log q (`Trace_ELBO`,
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
            raise ArgumentError(f"prefix={prefix!r}: expected a string, which the names of the parameters begin with.")
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
        """Return the base noise: p independent variates."""
        self._check_ready()
        return BASES[self.base](jnp.zeros(self.latent_dim), 1.0).to_event(1)

    def get_transform(self, params: Mapping[str, Array]) -> Transform:
        """Return the map from base noise to the unconstrained latent vector."""
        self._check_params(params)
        return super().get_transform(params)

    def sample_posterior(self, rng_key, params, *args, sample_shape=(), **kwargs) -> dict[str, Array]:
        """Draw every latent site, and what is deterministic given them, on the scale of the model."""
        self._check_params(params)
        return super().sample_posterior(rng_key, params, *args, sample_shape=sample_shape, **kwargs)

    def median(self, params: Mapping[str, Array]) -> dict[str, Array]:
        """Return the median of every element of every site (see `quantiles`)."""
        return self.quantiles(params, 0.5)

    def quantiles(
        self,
        params: Mapping[str, Array],
        quantiles: Any,
        *,
        num_samples: int | None = NUM_QUANTILE_DRAWS,
        rng_key: Key[Array, ""] | int = 0,
    ) -> dict[str, Array]:
        """Return marginal quantiles of every element of every site, on the scale of the model.

        They are quantiles of draws: those of a parameter among several, and of a deterministic site, have no closed
        form. The site of a model with one parameter gets exact ones, since the flow is increasing.

        Args:
            params: the trained parameters.
            quantiles: probabilities between 0 and 1, of any shape.
            num_samples: number of draws.
            rng_key: a JAX key or an integer seed. The default is fixed, so that the same call gives the same result.

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

        # The map of a site to its support may be decreasing, as below an upper bound or in one part of a simplex.
        ends, values, mirrored = at(jnp.array([0.25, 0.75])), at(levels), at(1.0 - levels)
        return {name: jnp.where(ends[name][1] >= ends[name][0], values[name], mirrored[name]) for name in values}

    def _setup_prototype(self, *args, **kwargs):
        super()._setup_prototype(*args, **kwargs)
        self._permutation = self._scales_first()
        self._core_shapes = jax.eval_shape(self._new_core, jax.random.key(0))

    def _scales_first(self) -> np.ndarray:
        """Return the places in NumPyro's latent vector of what the flow generates first, second, ..."""
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
        """Make the flow from NumPyro's parameters, whose initial values are computed only where none are given."""
        # What the prototype run has left in the guide may be a tracer that is no longer alive: hence all the lambdas.
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
                "This AutoBernstein has not seen its model yet: run svi.init(key, *args) or svi.run(key, num_steps, "
                "*args) first, or numpyro.handlers.seed(guide, key)(*args) to use parameters that exist already."
            )

    def _check_params(self, params: Mapping[str, Array]) -> None:
        """Refuse the parameters of another guide; NumPyro would use initial values in their place."""
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
                    f"num_hidden={self.num_hidden} and {dim} parameters. Use the guide that they were trained with."
                )


def _check_levels(quantiles: Any) -> Float[Array, "..."]:
    levels = jnp.asarray(quantiles, float)
    if not_jax_tracer(levels) and not bool(jnp.all((levels > 0) & (levels < 1))):
        raise ArgumentError(f"quantiles={quantiles!r}: expected probabilities strictly between 0 and 1.")
    return levels
