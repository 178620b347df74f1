"""What kinds of outcome there are: the check of y, the priors, and the distribution of y given table and network."""

import contextlib
import dataclasses
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
from bernflow.semistructured.orthogonal import residual

OUTCOMES = ("bernoulli", "gaussian", "poisson", "ordinal", "categorical")
PRIOR_SCALE = 2.5
CUTPOINT_SCALE = 5.0
SIGMA, CUTPOINTS = "sigma", "cutpoints"
# What exp(beta) is.
RATIOS = {"bernoulli": "odds_ratio", "ordinal": "odds_ratio", "categorical": "odds_ratio", "poisson": "rate_ratio"}
RESERVED = ("y", SIGMA, CUTPOINTS)


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


@dataclasses.dataclass(frozen=True)
class Likelihood:
    """The distribution of y given eta = X beta + h; compared by value, so that equal models share their compilation.

    Attributes:
        outcome: kind of the outcome.
        names: names of the parameters that are the coefficients, in the order of the columns.
        keep_level: with orthogonalization: leave the network its mean.
    """

    outcome: str
    names: tuple[str, ...]
    keep_level: bool

    def __call__(self, theta: Theta, x: dict[str, Array], h: Array) -> Distribution:
        """Return the distribution of the rows of a batch, or of all rows of the training."""
        h = residual(h, x["basis"], self.keep_level) if "basis" in x else h
        return self.distribution(theta, x["table"], h)

    def distribution(self, theta: Theta, table: Array, h: Array) -> Distribution:
        """Return the distribution given the matrix of the table and the output of the network."""
        beta = jnp.stack([theta[name] for name in self.names])
        eta = table @ beta + h.reshape(table.shape[0], *beta.shape[1:])
        if self.outcome == "bernoulli":
            return dist.Bernoulli(logits=eta)
        if self.outcome == "gaussian":
            return dist.Normal(eta, theta[SIGMA])
        if self.outcome == "poisson":
            return dist.Poisson(jnp.exp(eta))
        if self.outcome == "ordinal":
            return dist.OrderedLogistic(eta, theta[CUTPOINTS])
        return dist.Categorical(logits=jnp.concatenate([jnp.zeros_like(eta[:, :1]), eta], 1))

    def mean(self, fn: Distribution) -> Array:
        """Return what is predicted: the mean, or the probabilities of all classes."""
        return fn.probs if self.outcome in ("bernoulli", "ordinal", "categorical") else fn.mean  # type: ignore[attr-defined]


def site_names(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Name the coefficients like their columns, except where a name is taken."""
    return tuple(f"beta_{name}" if name in RESERVED else name for name in columns)


def check_outcome(outcome: Any) -> str:
    """Refuse an unknown kind of outcome."""
    if outcome not in OUTCOMES:
        raise ArgumentError(f"outcome={outcome!r} is unknown: expected one of {', '.join(map(repr, OUTCOMES))}.")
    return outcome


def check_y(outcome: str, y: Any, where: str = "y", num_classes: int | None = None) -> np.ndarray:
    """Return y as the outcome needs it, or say why it cannot be such an outcome.

    Args:
        outcome: kind of the outcome.
        y: what the user gave.
        where: how the user calls it.
        num_classes: number of classes of the training; None in the training itself.
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


def make_prior(
    outcome: str, columns: tuple[str, ...], given: Any, y: np.ndarray, num_classes: int
) -> dict[str, Distribution]:
    """Return the priors of all parameters by name."""
    by_column = given if isinstance(given, Mapping) else dict.fromkeys(columns, given)
    unknown = [name for name in by_column if name not in columns]
    if unknown:
        raise ArgumentError(
            f"prior has the name {unknown[0]!r}, which is no column of the formula: expected some of "
            f"{', '.join(map(repr, columns))}."
        )
    shape = (num_classes - 1,) if outcome == "categorical" else ()
    priors: dict[str, Distribution] = {
        site: _one_prior(name, by_column.get(name), shape)
        for site, name in zip(site_names(columns), columns, strict=True)
    }
    if outcome == "gaussian":
        priors[SIGMA] = dist.HalfNormal(float(np.std(y)))
    if outcome == "ordinal":
        priors[CUTPOINTS] = OrderedNormal(CUTPOINT_SCALE, num_classes - 1)
    return priors


def check_prior(prior: Any) -> None:
    """Refuse what is neither a distribution nor a dict of them."""
    for value in prior.values() if isinstance(prior, Mapping) else [prior]:
        if value is not None and not isinstance(value, Distribution):
            raise ArgumentError(
                f"prior has {value!r}: expected a NumPyro distribution for all coefficients, such as dist.Normal(0, "
                "1) (or a dict of them by column)."
            )


def _one_prior(name: str, prior: Distribution | None, shape: tuple[int, ...]) -> Distribution:
    prior = dist.Normal(0.0, PRIOR_SCALE) if prior is None else prior
    if prior.shape() == shape:
        return prior
    if prior.shape() == ():
        return prior.expand(shape).to_event(len(shape))
    raise ArgumentError(
        f"The prior of {name!r} has shape {prior.shape()}: expected one of shape () for every coefficient."
    )
