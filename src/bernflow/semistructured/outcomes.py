"""The kinds of outcome: their checks of y and their priors."""

import contextlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
from jaxtyping import Array
from numpyro.distributions import Distribution, constraints

from bernflow.errors import ArgumentError, ModelError
from bernflow.models.base import Theta
from bernflow.semistructured.design import INTERCEPT, Design

OUTCOMES = ("bernoulli", "gaussian", "poisson", "ordinal", "categorical")
PRIOR_SCALE = 2.5
CUTPOINT_SCALE = 5.0
SIGMA, CUTPOINTS, LEVEL = "sigma", "cutpoints", "level"
# The meaning of exp(beta).
RATIOS = {"bernoulli": "odds_ratio", "ordinal": "odds_ratio", "categorical": "odds_ratio", "poisson": "rate_ratio"}
RESERVED = ("y", SIGMA, CUTPOINTS, LEVEL, INTERCEPT)


class OrderedNormal(Distribution):
    """Independent normal values in increasing order: the prior of the cutpoints.

    Args:
        scale: standard deviation of each value before they are sorted.
        num: number of values.
    """

    arg_constraints = {"scale": constraints.positive}  # noqa: RUF012 (NumPyro's own form)
    support = constraints.ordered_vector
    pytree_aux_fields = ("num",)

    def __init__(self, scale: Any, num: int, *, validate_args: bool | None = None):
        self.scale, self.num = scale, num
        super().__init__(batch_shape=(), event_shape=(num,), validate_args=validate_args)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draw and sort."""
        return jnp.sort(self.scale * jax.random.normal(key, (*sample_shape, self.num)), -1)

    def log_prob(self, value: Array) -> Array:
        """Evaluate the density, (K-1)! times that of independent values."""
        orders = jax.scipy.special.gammaln(self.num + 1.0)
        return jnp.sum(dist.Normal(0.0, self.scale).log_prob(value), -1) + orders


def site_names(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Name the coefficients like their columns, unless a name is taken."""
    return tuple(f"beta_{name}" if name in RESERVED else name for name in columns)


def check_outcome(outcome: Any) -> str:
    """Refuse an unknown kind of outcome."""
    if outcome not in OUTCOMES:
        raise ArgumentError(f"outcome={outcome!r} is unknown: expected one of {', '.join(map(repr, OUTCOMES))}.")
    return outcome


def check_y(outcome: str, y: Any, where: str = "y", num_classes: int | None = None) -> np.ndarray:
    """Return y in the form of the outcome; raise if it cannot be such an outcome.

    Args:
        outcome: kind of the outcome.
        y: outcomes as given by the user.
        where: name of the argument in messages.
        num_classes: number of classes in the training data; None for the training data themselves.
    """
    y = np.asarray(y)
    if y.dtype.kind == "O":
        with contextlib.suppress(TypeError, ValueError):
            y = y.astype(float)
    if y.dtype.kind not in "biuf" or y.ndim != 1:
        what = f"dtype {y.dtype}" if y.ndim == 1 else f"shape {y.shape}"
        raise ArgumentError(
            f"{where} has {what}, and the outcome is {outcome!r}: expected numbers of shape (N,). Labels become "
            "numbers by np.unique(y, return_inverse=True)[1]."
        )
    _refuse(~np.isfinite(y), y, where, outcome, "finite numbers", "Drop these rows from the table, the images and y.")
    if outcome == "gaussian":
        if num_classes is None and len(y) and np.ptp(y) == 0:
            raise ArgumentError(f"{where} has the same value {y[0]} in every row: expected an outcome that varies.")
        return y.astype(np.float64)
    if outcome == "bernoulli":
        _refuse((y != 0) & (y != 1), y, where, outcome, "0 or 1", "Code the outcome as 0 and 1.")
        return y.astype(np.int32)
    bad = (y < 0) | (y != np.floor(y))
    if outcome == "poisson":
        _refuse(bad, y, where, outcome, "counts 0, 1, 2, ...", 'Use outcome="gaussian" for measurements.')
        return y.astype(np.int32)
    fix = "Number the classes from 0 by np.unique(y, return_inverse=True)[1]."
    if num_classes is not None:
        _refuse(
            bad | (y >= num_classes), y, where, outcome, f"the classes of the training, 0 to {num_classes - 1}", fix
        )
        return y.astype(np.int32)
    _refuse(bad, y, where, outcome, "the classes 0, 1, ..., K-1", fix)
    present = np.unique(y.astype(np.int64))
    if len(present) < 2 or len(present) != present[-1] + 1:
        raise ArgumentError(
            f"{where} has the classes {present[:20].tolist()}, and the outcome is {outcome!r}: expected all of 0, 1, "
            f"..., K-1, at least two of them. {fix}"
        )
    return y.astype(np.int32)


def _refuse(bad: np.ndarray, y: np.ndarray, where: str, outcome: str, expected: str, advice: str) -> None:
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ArgumentError(
            f"{where} has {int(bad.sum())} values that are not {expected}, the first in row {row} ({y[row]}), and the "
            f"outcome is {outcome!r}. {advice}"
        )


def check_network_output(outcome: str, shape: tuple[int, ...], num_classes: int) -> None:
    """Refuse a network whose output is not one number per row, or K-1 of them for K classes."""
    wanted = num_classes - 1 if outcome == "categorical" else 1
    if shape == (wanted,) or (wanted == 1 and shape == ()):
        return
    expected = f"({wanted},)" if wanted > 1 else "() or (1,)"
    more = f": one logit for each of the classes 1 to {wanted}, against class 0" if outcome == "categorical" else ""
    raise ModelError(
        f"The network returns shape {shape} per row, and the outcome is {outcome!r}: expected {expected}{more}. "
        "Change its last layer."
    )


def unit_of(outcome: str, y: np.ndarray) -> tuple[float, float]:
    """Return origin and unit of the linear predictor: mean and sd of a "gaussian" outcome, 0 and 1 on a link scale."""
    return (float(np.mean(y)), float(np.std(y))) if outcome == "gaussian" else (0.0, 1.0)


def make_prior(outcome: str, design: Design, given: Any, y: np.ndarray, num_classes: int) -> dict[str, Any]:
    """Return the priors of all parameters by name, in the units of the table and the outcome.

    The default of a coefficient is Normal(0, 2.5) per standard deviation of its column (and, for "gaussian", of y). The
    default of the level, the linear predictor of an average row, is Normal(link of the mean of y, 2.5).
    """
    columns = design.names
    known = (*columns, INTERCEPT) if design.has_intercept else columns
    by_column = given if isinstance(given, Mapping) else dict.fromkeys(columns, given)
    unknown = [name for name in by_column if name not in known]
    if unknown:
        raise ArgumentError(
            f"prior has the name {unknown[0]!r}, which is no column of the formula: expected some of "
            f"{', '.join(map(repr, known))}."
        )
    shape = (num_classes - 1,) if outcome == "categorical" else ()
    unit = unit_of(outcome, y)[1]
    priors: dict[str, Any] = {}
    for site, name, scale in zip(site_names(columns), columns, design.scale, strict=True):
        default = dist.Normal(0.0, PRIOR_SCALE * unit / scale)
        own = by_column.get(name)
        priors[site] = _of_shape(name, default if own is None else own, shape)
    if design.has_level:
        own = by_column.get(INTERCEPT)
        center = _center(outcome, y, num_classes)
        default = dist.Normal(center, PRIOR_SCALE * unit)
        priors[LEVEL] = _of_shape(INTERCEPT, default, shape) if own is None else Shifted(own, design, shape)
    if outcome == "gaussian":
        priors[SIGMA] = dist.HalfNormal(unit)
    if outcome == "ordinal":
        priors[CUTPOINTS] = OrderedNormal(CUTPOINT_SCALE, num_classes - 1)
    return priors


class Shifted:
    """A prior of the intercept, expressed for the level given the coefficients: level = intercept + mean(X) beta."""

    def __init__(self, prior: Distribution, design: Design, shape: tuple[int, ...]):
        self.prior = _of_shape(INTERCEPT, prior, shape)
        self.sites, self.mean = site_names(design.names), tuple(map(float, design.mean))

    def __call__(self, theta: Theta) -> Distribution:
        """Return the prior of the level."""
        shift = sum((mean * theta[name] for name, mean in zip(self.sites, self.mean, strict=True)), start=0.0)
        return dist.TransformedDistribution(self.prior, dist.transforms.AffineTransform(shift, 1.0))


def _center(outcome: str, y: np.ndarray, num_classes: int) -> Any:
    """Return the link of the mean outcome, moved slightly off the boundaries."""
    if outcome == "gaussian":
        return float(np.mean(y))
    if outcome == "poisson":
        return float(np.log((np.sum(y) + 0.5) / len(y)))
    counts = np.bincount(y, minlength=max(num_classes, 2)) + 0.5
    logits = np.log(counts[1:] / counts[0])
    return float(logits[0]) if outcome == "bernoulli" else jnp.asarray(logits)


def describe_prior(prior: Any) -> Any:
    """Return a prior as text: the distributions and their parameters."""
    if isinstance(prior, Mapping):
        return {str(name): describe_prior(value) for name, value in sorted(prior.items())}
    if prior is None:
        return None
    if isinstance(prior, Shifted):
        return describe_prior(prior.prior)
    if isinstance(prior, dist.Independent):
        return describe_prior(prior.base_dist)
    if isinstance(prior, dist.ExpandedDistribution):
        return describe_prior(prior.base_dist)
    values = [getattr(prior, name, None) for name in prior.arg_constraints] or jax.tree.leaves(prior)
    texts = [f"{value:.4g}" for values in values for value in np.unique(np.asarray(values, float))]
    return f"{type(prior).__name__}({', '.join(texts)})"


def check_prior(prior: Any) -> None:
    """Refuse what is neither a distribution nor a dict of them."""
    for value in prior.values() if isinstance(prior, Mapping) else [prior]:
        if value is not None and not isinstance(value, Distribution):
            raise ArgumentError(
                f"prior has {value!r}: expected a NumPyro distribution for all coefficients, such as dist.Normal(0, "
                "1) (or a dict of them by column)."
            )


def _of_shape(name: str, prior: Distribution, shape: tuple[int, ...]) -> Distribution:
    if prior.shape() == shape:
        return prior.to_event(len(shape)) if prior.batch_shape else prior
    if prior.shape() == ():
        return prior.expand(shape).to_event(len(shape))
    raise ArgumentError(
        f"The prior of {name!r} has shape {prior.shape()}: expected one of shape () for every coefficient."
    )
