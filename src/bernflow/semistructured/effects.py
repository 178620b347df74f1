"""The posterior of the effects: an ordinary model of a few parameters, with the last layers integrated out."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from bernflow.models import Model
from bernflow.models.base import Theta
from bernflow.semistructured.design import INTERCEPT, Design
from bernflow.semistructured.lastlayer import Gaussian, Kind, Prior, Rows, predictors
from bernflow.semistructured.likelihoods import free_of_order, log_prob, ordered
from bernflow.semistructured.outcomes import CUTPOINTS, LEVEL, SIGMA, site_names


@dataclasses.dataclass(frozen=True)
class Vector:
    """The parameters by name as one vector: coefficients, level, extra; compared by value."""

    sites: tuple[str, ...]
    kind: Kind

    def __call__(self, theta: Theta) -> Array:
        """Return the vector, in the user's units and unconstrained."""
        parts = [jnp.reshape(theta[name], -1) for name in self.sites]
        if self.kind.outcome == "gaussian":
            parts.append(jnp.log(theta[SIGMA]).reshape(1))
        if self.kind.outcome == "ordinal":
            parts.append(free_of_order(theta[CUTPOINTS]))
        return jnp.concatenate(parts)

    def split(self, vector: Array) -> Theta:
        """Return the parameters by name."""
        d = self.kind.num_predictors
        shape = (d,) if self.kind.outcome == "categorical" else ()
        named: Theta = {name: vector[i * d : (i + 1) * d].reshape(shape) for i, name in enumerate(self.sites)}
        rest = vector[len(self.sites) * d :]
        if self.kind.outcome == "gaussian":
            named[SIGMA] = jnp.exp(rest[0])
        if self.kind.outcome == "ordinal":
            named[CUTPOINTS] = ordered(rest)
        return named


@dataclasses.dataclass(frozen=True)
class Profile:
    """The log likelihood of rows with the last layers at their conditional modes, plus the integration term."""

    vector: Vector

    def __call__(self, theta: Theta, y: Array, x: dict[str, Array]) -> Array:
        """Return one value per row; terms that belong to no row are distributed over all."""
        step = self.vector(theta) - x["mode"]
        eta = x["base"] + x["slope"] @ step
        d = eta.shape[-1]
        extra = (x["mode"] + step)[len(self.vector.sites) * d :]
        points = log_prob(self.vector.kind.outcome, eta, extra, y)
        return points + (x["linear"] @ step - 0.5 * step @ x["quadratic"] @ step) / x["num_rows"]


@dataclasses.dataclass(frozen=True)
class Intercept:
    """The intercept at the origin of the columns."""

    sites: tuple[str, ...]
    mean: tuple[float, ...]

    def __call__(self, theta: Theta) -> Theta:
        """Return it by name."""
        shift = sum((m * theta[name] for name, m in zip(self.sites, self.mean, strict=True)), start=0.0)
        return {INTERCEPT: theta[LEVEL] - shift}


@dataclasses.dataclass(frozen=True)
class Units:
    """Map from the user's units to the standardized regression: v = factor * u + offset."""

    factor: np.ndarray
    offset: np.ndarray
    origin: float
    unit: float

    def inside(self, vector: Any) -> Any:
        """Return standardized vectors."""
        return vector * self.factor + self.offset

    def outside(self, vector: Any) -> Any:
        """Return vectors in the user's units."""
        return (vector - self.offset) / self.factor


def find_units(design: Design, kind: Kind, origin: float, unit: float) -> Units:
    """Return the units of all parameters."""
    d = kind.num_predictors
    factor, offset = list(np.repeat(design.scale / unit, d)), [0.0] * (len(design.names) * d)
    if design.has_level:
        factor += [1.0 / unit] * d
        offset += [-origin / unit] * d
    extra = [-np.log(unit)] * kind.num_extra  # the log of sigma; cutpoints have unit 1
    return Units(np.array(factor + [1.0] * kind.num_extra), np.array(offset + extra), origin, unit)


def sites_of(design: Design) -> tuple[str, ...]:
    """Return the names of coefficients and level."""
    return site_names(design.names) + ((LEVEL,) if design.has_level else ())


def make_model(
    design: Design,
    kind: Kind,
    units: Units,
    priors: dict[str, Any],
    found: Gaussian,
    layer: Prior,
    rows: Rows,
    y: np.ndarray,
) -> Model:
    """Return the model of the effects in the user's units.

    Args:
        design: the columns.
        kind: of the outcome.
        units: of the parameters.
        priors: by name.
        found: the joint mode of the standardized regression.
        layer: its prior.
        rows: its rows.
        y: outcomes (k, n) in the user's units.
    """
    d, real = kind.num_predictors, np.asarray(rows.weight) > 0
    base = np.asarray(predictors(rows, kind, found.theta, found.w))[real] * units.unit + units.origin
    x, z, slope = (np.asarray(leaf, np.float64) for leaf in (rows.x, rows.z, found.slope))
    own = np.zeros((*x.shape[:2], d, len(found.theta)))
    for j in range(d):
        own[:, :, j, j : x.shape[2] * d : d] = x
    own += np.einsum("knq,kqdt->kndt", z, slope.reshape(len(z), z.shape[2], d, -1))
    weight = np.repeat(np.asarray(layer.layer), d)
    # The prior of the last layers along their conditional modes, and the gradient of the log determinant.
    linear = np.asarray(found.shift) - np.einsum("kvt,v,kv->t", slope, weight, np.asarray(found.w))
    quadratic = np.einsum("kvt,v,kvs->ts", slope, weight, slope)
    num = int(real.sum())
    covariates = {
        "base": base,
        "slope": own[real] * units.unit * units.factor,
        "mode": units.outside(np.asarray(found.theta)),
        "linear": linear * units.factor,
        "quadratic": quadratic * np.outer(units.factor, units.factor),
        "num_rows": np.float64(num),
    }
    derived = Intercept(site_names(design.names), tuple(map(float, design.mean))) if design.has_intercept else None
    return Model(
        prior=priors,
        log_likelihood=Profile(Vector(sites_of(design), kind)),
        y=y[real],
        x=covariates,
        **({"derived": derived} if derived else {}),
    )


def normal_prior(priors: dict[str, Any], vector: Vector, units: Units) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and precision of a normal prior that approximates the user's, for the standardized regression."""
    mean, precision = np.zeros(len(units.factor)), np.zeros(len(units.factor))
    d, place = vector.kind.num_predictors, 0
    for name in vector.sites:
        prior = priors[name]
        prior = getattr(prior, "prior", prior)  # of the intercept: of unit slope in the level
        center, spread = np.asarray(prior.mean, float), np.asarray(prior.variance, float) ** 0.5
        wide = ~(np.isfinite(center) & np.isfinite(spread)) | (priors[name] is not prior)
        own = slice(place, place + d)
        mean[own] = np.where(wide, 0.0, center * units.factor[own] + units.offset[own])
        precision[own] = np.where(wide, 1e-2, (spread * units.factor[own]) ** -2.0)
        place += d
    precision[place:] = 1e-2
    return mean, precision


def last_layers(
    found: Gaussian, vectors: np.ndarray, units: Units, number: int, key: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Draw the last layer of a network given draws of the parameters; also return the standardized parameters.

    Args:
        found: the joint mode and its curvature.
        vectors: parameters in the user's units (num, t).
        units: of the parameters.
        number: index of the network.
        key: a random key.
    """
    inside = units.inside(vectors)
    mode = np.asarray(found.w[number]) + (inside - np.asarray(found.theta)) @ np.asarray(found.slope[number]).T
    noise = np.asarray(jax.random.normal(key, mode.shape))
    factor = np.linalg.cholesky(np.asarray(found.layer_precision[number]))
    return inside, mode + np.linalg.solve(factor.T, noise.T).T
