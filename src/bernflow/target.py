"""The target density of a fit: a model on R^p, with the log-Jacobian of every support."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.constraints import Constraint

from bernflow.compiled import filter_jit
from bernflow.errors import ModelError
from bernflow.models.base import AbstractMappedModel, AbstractModel, Site, Theta, num_rows
from bernflow.models.inputs import user_code

# Up to this many rows of data, the density is traced once for all functions of a fit.
MAX_ROWS_TRACED_ONCE = 1000


class AbstractLayout(eqx.Module):
    """The order of the sites in the unconstrained vector x, and the map between both scales.

    Positive parameters come first, the others follow in model order: the flow is autoregressive, and parameters
    conditional on a scale are simpler than a scale conditional on parameters.
    """

    sites: eqx.AbstractVar[tuple[Site, ...]]
    model: eqx.AbstractVar[AbstractModel | None]
    order: eqx.AbstractVar[tuple[int, ...]]
    sizes: eqx.AbstractVar[tuple[int, ...]]

    @property
    def dim(self) -> int:
        """Number of unconstrained dimensions p."""
        return sum(self.sizes)

    @property
    def num_scales(self) -> int:
        """Number of dimensions of scale parameters, which come first."""
        flags = self._scales()
        return sum(size for size, is_one in zip(self.sizes, flags, strict=True) if is_one)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the sites in model order."""
        return tuple(site.name for site in self.sites)

    @abstractmethod
    def constrain(self, x: Float[Array, " p"]) -> tuple[Theta, Float[Array, ""]]:
        """Map x to the constrained scale.

        Returns:
            theta and log |d theta / d x|.
        """

    @abstractmethod
    def unconstrain(self, theta: Theta) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map theta to R^p.

        Returns:
            x and log |d theta / d x| there.
        """

    @abstractmethod
    def contains(self, theta: Theta) -> Bool[Array, ""]:
        """Tell whether theta lies in the support of every site, if that is known without the map to R^p."""

    @abstractmethod
    def log_density(self, model: AbstractModel, pieces: list[Array]) -> Float[Array, ""]:
        """Evaluate log p(theta(x), data) + log |d theta / d x|, with x split by site."""

    @abstractmethod
    def _scales(self) -> Sequence[bool]:
        """Return whether each site is a scale."""

    def labels(self) -> list[str]:
        """Name every unconstrained dimension in the order of x, for example `b[2]`."""
        labels = []
        for i in self.order:
            site, size = self.sites[i], self.sizes[i]
            labels += [site.name] if size == 1 and not site.shape else [f"{site.name}[{k}]" for k in range(size)]
        return labels

    def split(self, x: Float[Array, " p"]) -> list[Array]:
        """Split x by site, in model order."""
        pieces: list[Array | None] = [None] * len(self.sites)
        start = 0
        for i in self.order:
            pieces[i] = x[start : start + self.sizes[i]]
            start += self.sizes[i]
        return pieces  # type: ignore[return-value]

    def join(self, pieces: list[Array]) -> Float[Array, " p"]:
        """Concatenate the pieces of the sites, given in model order, to x."""
        return jnp.concatenate([jnp.ravel(pieces[i]) for i in self.order])


class Layout(AbstractLayout):
    """A layout whose map is determined by the supports of the sites."""

    sites: tuple[Site, ...]
    model: AbstractModel | None
    order: tuple[int, ...] = eqx.field(static=True)
    sizes: tuple[int, ...] = eqx.field(static=True)
    unconstrained_shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    def __init__(self, sites: tuple[Site, ...], model: AbstractModel | None = None):
        _check_sites(sites)
        self.sites = sites
        self.model = model
        self.order = _scales_first(self._scales())
        supports = self._example_supports()
        self.unconstrained_shapes = tuple(
            tuple(biject_to(s).inverse_shape(site.shape)) for s, site in zip(supports, sites, strict=True)
        )
        self.sizes = tuple(math.prod(shape) for shape in self.unconstrained_shapes)

    def constrain(self, x: Float[Array, " p"]) -> tuple[Theta, Float[Array, ""]]:
        """Map x to the constrained scale."""
        return self._constrain(self.split(x))

    def _constrain(self, pieces: list[Array]) -> tuple[Theta, Float[Array, ""]]:
        theta: Theta = {}
        log_jacobian = jnp.zeros((), pieces[0].dtype)
        for site, piece, shape in zip(self.sites, pieces, self.unconstrained_shapes, strict=True):
            piece = piece.reshape(shape)
            transform = biject_to(self._support(site, theta))
            value = transform(piece)
            log_jacobian += jnp.sum(transform.log_abs_det_jacobian(piece, value))
            theta[site.name] = value
        return theta, log_jacobian

    def unconstrain(self, theta: Theta) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map theta to R^p."""
        pieces = []
        log_jacobian = jnp.zeros(())
        for site in self.sites:
            transform = biject_to(self._support(site, theta))
            value = theta[site.name]
            piece = transform.inv(value)
            log_jacobian += jnp.sum(transform.log_abs_det_jacobian(piece, value))
            pieces.append(piece)
        return self.join(pieces), log_jacobian

    def contains(self, theta: Theta) -> Bool[Array, ""]:
        """Tell whether theta lies in the support of every site."""
        inside = jnp.array(True)
        for site in self.sites:
            inside &= jnp.all(self._support(site, theta)(theta[site.name]))
        return inside

    def log_density(self, model: AbstractModel, pieces: list[Array]) -> Float[Array, ""]:
        """Evaluate log p(theta(x), data) + log |d theta / d x|, with x split by site."""
        theta, log_jacobian = self._constrain(pieces)
        return model.log_density(theta) + log_jacobian

    def _scales(self) -> Sequence[bool]:
        return [is_scale(site.support) for site in self.sites]

    def _support(self, site: Site, theta: Theta) -> Constraint:
        if site.support is not None:
            return site.support
        if self.model is None:
            raise ModelError(
                f"The support of {site.name!r} depends on other parameters or is known only to its model: pass the "
                "model to bf.load(path, model=...)."
            )
        return self.model.support_of(site.name, theta)

    def _example_supports(self) -> list[Constraint]:
        """Return one support per site; if it depends on other sites, at arbitrary values of those.

        Only the kind of support matters here, because it determines the number of unconstrained dimensions.
        """
        theta: Theta = {}
        supports = []
        for site in self.sites:
            support = self._support(site, theta)
            supports.append(support)
            if self.model is not None:  # otherwise no support depends on theta
                transform = biject_to(support)
                theta[site.name] = transform(jnp.zeros(transform.inverse_shape(site.shape)))
        return supports


class MappedLayout(AbstractLayout):
    """A layout that uses the model's own map, with sites reordered."""

    sites: tuple[Site, ...]
    model: AbstractMappedModel
    order: tuple[int, ...] = eqx.field(static=True)
    sizes: tuple[int, ...] = eqx.field(static=True)

    def __init__(self, model: AbstractMappedModel):
        _check_sites(model.sites)
        self.sites = model.sites
        self.model = model
        self.order = _scales_first(self._scales())
        self.sizes = model.unconstrained_sizes()

    def constrain(self, x: Float[Array, " p"]) -> tuple[Theta, Float[Array, ""]]:
        """Map x to the constrained scale."""
        return self.model.constrain(self._to_model(x))

    def unconstrain(self, theta: Theta) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map theta to R^p."""
        x = self.model.unconstrain(theta)
        _, log_jacobian = self.model.constrain(x)
        return self.join(jnp.split(x, np.cumsum(self.sizes)[:-1])), log_jacobian

    def contains(self, theta: Theta) -> Bool[Array, ""]:
        """Return True: outside its support theta has no finite x."""
        return jnp.array(True)

    def log_density(self, model: AbstractModel, pieces: list[Array]) -> Float[Array, ""]:
        """Evaluate log p(theta(x), data) + log |d theta / d x|, with x split by site."""
        assert isinstance(model, AbstractMappedModel)
        return model.log_density_on_reals(jnp.concatenate(pieces))

    def _scales(self) -> Sequence[bool]:
        return self.model.scales()

    def _to_model(self, x: Float[Array, " p"]) -> Float[Array, " p"]:
        """Reorder x to the order of the model."""
        return jnp.concatenate(self.split(x))


def layout_of(model: AbstractModel) -> AbstractLayout:
    """Return the layout of a model."""
    if isinstance(model, AbstractMappedModel):
        return MappedLayout(model)
    depends = any(site.support is None for site in model.sites)
    return Layout(model.sites, model if depends else None)


def _check_sites(sites: tuple[Site, ...]) -> None:
    if not sites:
        raise ModelError(
            "The model has no parameters to infer: expected at least one latent site without observed value."
        )


def _scales_first(scales: Sequence[bool]) -> tuple[int, ...]:
    return tuple(sorted(range(len(scales)), key=lambda i: (not scales[i], i)))


class Density(Protocol):
    """A log density that a flow can be trained on."""

    def log_density(self, x: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate a log density, up to a constant."""


class Target(eqx.Module):
    """An unnormalized log density on R^p."""

    layout: AbstractLayout
    model: AbstractModel

    def __init__(self, model: AbstractModel):
        self.layout = layout_of(model)
        self.model = model
        if self.layout.dim == 0:
            raise ModelError(
                f"The parameters {', '.join(map(repr, self.layout.names))} have no free dimension: nothing is left to "
                "infer. A simplex with one component is always 1, and an array of size zero has no values: change the "
                "shape of one of them."
            )

    @property
    def dim(self) -> int:
        """Number of unconstrained dimensions p."""
        return self.layout.dim

    def log_density(self, x: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate log p(theta(x), data) + log |d theta / d x|, with NaN replaced by -inf."""
        return self.log_density_of_sites(self.layout.split(x))

    def log_density_of_sites(self, pieces: list[Array]) -> Float[Array, ""]:
        """Evaluate the log density with x split by site, so that it can be differentiated by some of the sites only."""
        return _log_density_of_sites(self.layout, self.model, pieces)


def is_scale(support: Constraint | None) -> bool:
    """Tell whether a support is a half line with a lower bound, as that of a scale parameter."""
    if isinstance(support, constraints.independent):
        return is_scale(support.base_constraint)
    return isinstance(support, type(constraints.greater_than(0.0))) or support in (
        constraints.positive,
        constraints.softplus_positive,
        constraints.nonnegative,
    )


def log_density(layout: AbstractLayout, model: AbstractModel, x: Float[Array, " p"]) -> Float[Array, ""]:
    """Evaluate log p(theta(x), data) + log |d theta / d x|, with NaN replaced by -inf."""
    return _log_density_of_sites(layout, model, layout.split(x))


def _log_density_of_sites(layout: AbstractLayout, model: AbstractModel, pieces: list[Array]) -> Float[Array, ""]:
    """Evaluate the log density with x split by site.

    Several functions of a fit evaluate the density. With few rows it is jitted, so that the model, which is slow to
    trace, is traced once and inlined into each of them. With many rows the density itself would become slower.
    """
    return (_traced if num_rows(model) <= MAX_ROWS_TRACED_ONCE else _log_density)(layout, model, pieces)


def _log_density(layout: AbstractLayout, model: AbstractModel, pieces: list[Array]) -> Float[Array, ""]:
    with user_code("The model's log density"):  # user code runs during tracing
        value = layout.log_density(model, pieces)
    return jnp.where(jnp.isnan(value), -jnp.inf, value)


_traced = filter_jit(_log_density, inline=True)
