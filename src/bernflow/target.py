"""The density that a flow is fitted to: a model on R^p, with the log-Jacobian of every support."""

import math

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.constraints import Constraint

from bernflow.errors import ModelError
from bernflow.models.base import AbstractModel, Site, Theta


class Layout(eqx.Module):
    """The order in which the sites lie in the unconstrained vector x, and the map between both scales.

    Positive parameters come first, the rest follow in model order: the flow is autoregressive, and what is
    conditioned on a scale is simpler than the other way round.
    """

    sites: tuple[Site, ...]
    model: AbstractModel | None
    order: tuple[int, ...] = eqx.field(static=True)
    sizes: tuple[int, ...] = eqx.field(static=True)
    unconstrained_shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    def __init__(self, sites: tuple[Site, ...], model: AbstractModel | None = None):
        if not sites:
            raise ModelError(
                "The model has no parameters to infer: expected at least one latent site without observed value."
            )
        self.sites = sites
        self.model = model
        self.order = tuple(sorted(range(len(sites)), key=lambda i: (not is_scale(sites[i].support), i)))
        supports = self._example_supports()
        self.unconstrained_shapes = tuple(
            tuple(biject_to(s).inverse_shape(site.shape)) for s, site in zip(supports, sites, strict=True)
        )
        self.sizes = tuple(math.prod(shape) for shape in self.unconstrained_shapes)

    @property
    def dim(self) -> int:
        """Number of unconstrained dimensions p."""
        return sum(self.sizes)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sites in model order."""
        return tuple(site.name for site in self.sites)

    def constrain(self, x: Float[Array, " p"]) -> tuple[Theta, Float[Array, ""]]:
        """Map x to the constrained scale.

        Returns:
            theta and log |d theta / d x|.
        """
        pieces = self._split(x)
        theta: Theta = {}
        log_jacobian = jnp.zeros((), x.dtype)
        for site, piece in zip(self.sites, pieces, strict=True):
            transform = biject_to(self._support(site, theta))
            value = transform(piece)
            log_jacobian += jnp.sum(transform.log_abs_det_jacobian(piece, value))
            theta[site.name] = value
        return theta, log_jacobian

    def unconstrain(self, theta: Theta) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map theta to R^p.

        Returns:
            x and log |d theta / d x| there.
        """
        pieces = []
        log_jacobian = jnp.zeros(())
        for site in self.sites:
            transform = biject_to(self._support(site, theta))
            value = theta[site.name]
            piece = transform.inv(value)
            log_jacobian += jnp.sum(transform.log_abs_det_jacobian(piece, value))
            pieces.append(jnp.ravel(piece))
        return jnp.concatenate([pieces[i] for i in self.order]), log_jacobian

    def labels(self) -> list[str]:
        """Name every unconstrained dimension in the order of x, for example `b[2]`."""
        labels = []
        for i in self.order:
            site, size = self.sites[i], self.sizes[i]
            labels += [site.name] if size == 1 and not site.shape else [f"{site.name}[{k}]" for k in range(size)]
        return labels

    def _split(self, x: Float[Array, " p"]) -> list[Array]:
        pieces: list[Array | None] = [None] * len(self.sites)
        start = 0
        for i in self.order:
            pieces[i] = x[start : start + self.sizes[i]].reshape(self.unconstrained_shapes[i])
            start += self.sizes[i]
        return pieces  # type: ignore[return-value]

    def _support(self, site: Site, theta: Theta) -> Constraint:
        if site.support is not None:
            return site.support
        if self.model is None:
            raise ModelError(
                f"The support of {site.name!r} depends on other parameters, so the model is needed: pass it to "
                "bf.load(path, model=...)."
            )
        return self.model.support_of(site.name, theta)

    def _example_supports(self) -> list[Constraint]:
        """Return one support per site; where it depends on others, the one at an arbitrary value of those.

        Only its kind matters here, because it fixes the number of unconstrained dimensions.
        """
        theta: Theta = {}
        supports = []
        for site in self.sites:
            support = self._support(site, theta)
            supports.append(support)
            shape = biject_to(support).inverse_shape(site.shape)
            theta[site.name] = biject_to(support)(jnp.zeros(shape))
        return supports


class Target(eqx.Module):
    """An unnormalised log density on R^p."""

    layout: Layout
    model: AbstractModel

    def __init__(self, model: AbstractModel):
        depends = any(site.support is None for site in model.sites)
        self.layout = Layout(model.sites, model if depends else None)
        self.model = model

    @property
    def dim(self) -> int:
        """Number of unconstrained dimensions p."""
        return self.layout.dim

    def log_density(self, x: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate log p(theta(x), data) + log |d theta / d x|; NaN counts as -inf."""
        return log_density(self.layout, self.model, x)


def is_scale(support: Constraint | None) -> bool:
    """Tell whether a support is a half line from a lower bound: the signature of a scale parameter."""
    if isinstance(support, constraints.independent):
        return is_scale(support.base_constraint)
    return isinstance(support, type(constraints.greater_than(0.0))) or support in (
        constraints.positive,
        constraints.softplus_positive,
        constraints.nonnegative,
    )


def log_density(layout: Layout, model: AbstractModel, x: Float[Array, " p"]) -> Float[Array, ""]:
    """Evaluate log p(theta(x), data) + log |d theta / d x|; NaN counts as -inf."""
    theta, log_jacobian = layout.constrain(x)
    value = model.log_density(theta) + log_jacobian
    return jnp.where(jnp.isnan(value), -jnp.inf, value)
