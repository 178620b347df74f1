"""Named draws of a posterior: from its flow, optionally importance-resampled, or from its file."""

import math
import warnings
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from bernflow.errors import ArgumentError, BernflowError, ModelError
from bernflow.keys import as_key, generator
from bernflow.models.base import AbstractModel
from bernflow.posterior import sampling
from bernflow.posterior.arguments import check_count
from bernflow.posterior.stored import MAX_COORDINATES, MAX_DERIVED, NUM_TRIED, SavedLayout, Stored, Trial, num_stored
from bernflow.posterior.weighting import AUTO, Weighted, is_weighted
from bernflow.precision import use_precision
from bernflow.user import user_level

if TYPE_CHECKING:
    from bernflow.posterior.parts import PosteriorParts

# The default key of `Posterior.draws`, also used for the draws in a file.
KEY = 1
TRIAL_KEY = 0x7472


class Sample(NamedTuple):
    """Draws on the constrained scale, with their log densities.

    Attributes:
        theta: parameters and derived quantities, (num, *shape) each.
        stats: log_q, and with the model lp and log_weight, (num,) each.
        weighted: whether they are importance-resampled.
    """

    theta: dict[str, np.ndarray]
    stats: dict[str, np.ndarray]
    weighted: bool


def draw(
    posterior: "PosteriorParts",
    num: int,
    key: Any,
    weighted: Weighted,
    deterministic: bool | Collection[str] = True,
    stats: bool = False,
) -> Sample:
    """Draw from a posterior.

    Args:
        posterior: the posterior.
        num: number of draws.
        key: integer seed or `jax.random.key`.
        weighted: resample by importance weights; "auto" if the verdict says that they correct the fit.
        deterministic: all derived quantities, none, or those with the given names.
        stats: also return the log densities.
    """
    num = check_count(num)
    use = is_weighted(posterior, weighted)
    rows = _stored_rows(posterior, num, key, weighted, use)
    if rows is not None:
        theta, densities = posterior.stored.take(rows)  # type: ignore[union-attr]
        wanted = _names(deterministic, theta)
        kept = {name: v for name, v in theta.items() if name in posterior.names or name in wanted}
        return Sample(kept, densities if stats else {}, use)
    model = posterior.model
    if model is None and deterministic is True:
        _warn_of_omitted(posterior)
    with use_precision(posterior.precision):
        x, log_q = points(posterior, num, key, use)
        theta = sampling.constrain(posterior.layout, None if deterministic is False else model, x, _only(deterministic))
        found = {"log_q": log_q} if stats else {}
        if stats and model is not None:
            found["lp"] = sampling.log_density(posterior.layout, model, x)
            found["log_weight"] = difference(found["lp"], log_q)
    return Sample(theta, found, use)


def points(posterior: "PosteriorParts", num: int, key: Any, weighted: bool) -> tuple[np.ndarray, np.ndarray]:
    """Draw points in R^p with their log q, optionally importance-resampled."""
    key = as_key(key)
    if not weighted:
        return sampling.sample(posterior.distribution, key, num)
    model = need_model(posterior, "weighted=True")
    x, log_q = sampling.sample(posterior.distribution, key, sampling.OVERSAMPLING * num)
    log_weights = difference(sampling.log_density(posterior.layout, model, x), log_q)
    if not np.any(log_weights > -np.inf):
        raise ArgumentError(
            "weighted=True: the posterior density is zero at every draw. Use weighted=False, and see "
            "post.diagnostics.status."
        )
    chosen = sampling.resample(key, log_weights, num)
    return x[chosen], log_q[chosen]


def need_model(posterior: "PosteriorParts", what: str) -> AbstractModel:
    """Return the model; raise an error if it is missing."""
    if posterior.model is None:
        raise ArgumentError(f"{what} needs the model, which is not in the file: pass it to bf.load(path, model=...).")
    return posterior.model


def num_available(posterior: "PosteriorParts", num: int, deterministic: bool = False) -> int:
    """Return how many of `num` draws there are, with derived quantities or without: maybe only those in the file."""
    if posterior.model is not None or posterior.stored is None:
        return num
    in_file = _needs_file(posterior, is_weighted(posterior)) or (deterministic and derived_sizes(posterior))
    return min(num, posterior.stored.num) if in_file else num


def difference(log_density: np.ndarray, log_q: np.ndarray) -> Float[np.ndarray, " num"]:
    """Return log p - log q in double precision; -inf if the density is zero, whatever log q is."""
    with np.errstate(invalid="ignore"):
        result = np.asarray(log_density, np.float64) - np.asarray(log_q, np.float64)
    return np.where(np.isneginf(log_density), -np.inf, result)


def derived_sizes(posterior: "PosteriorParts") -> dict[str, int]:
    """Return the size of every derived quantity without computing it."""
    model = posterior.model
    if model is None:
        stored = posterior.stored or Stored()
        derived = stored.draws.keys() - set(posterior.names)
        return {name: math.prod(stored.draws[name].shape[1:]) for name in derived}
    with use_precision(posterior.precision):
        x = jnp.zeros(posterior.layout.dim)
        shapes = jax.eval_shape(lambda x: model.deterministic(posterior.layout.constrain(x)[0]), x)
    return {name: math.prod(leaf.shape) for name, leaf in shapes.items() if name not in posterior.names}


def small_derived(posterior: "PosteriorParts") -> tuple[str, ...]:
    """Return the names of the derived quantities that are small enough to print and save."""
    return tuple(name for name, size in derived_sizes(posterior).items() if size <= MAX_DERIVED)


def to_store(posterior: "PosteriorParts") -> Stored:
    """Return the content of the file of a posterior besides its flow."""
    if posterior.model is None:
        return posterior.stored or Stored()
    derived = small_derived(posterior)
    axes, roles, trial = posterior.axes, posterior.roles, try_density(posterior, posterior.model)
    weighted = is_weighted(posterior)
    # Otherwise the flow and the supports are sufficient.
    if not (derived or weighted or posterior.layout.model is not None):
        return Stored(axes=axes, roles=roles, trial=trial)
    sizes = derived_sizes(posterior)
    per_draw = sum(math.prod(site.shape) for site in posterior.layout.sites) + sum(sizes[name] for name in derived)
    try:
        sample = draw(posterior, num_stored(per_draw), KEY, AUTO, derived, stats=True)
    except BernflowError:  # save the fit even if the user's derived quantities fail
        return Stored(axes=axes, roles=roles, trial=trial)
    return Stored(sample.theta, sample.stats, sample.weighted, axes, roles, trial)


def try_density(posterior: "PosteriorParts", model: AbstractModel, trial: Trial | None = None) -> Trial:
    """Evaluate the log density of a model in double precision at the points of a trial, or at new ones."""
    with use_precision("float64"):
        if trial is None:
            num = max(1, min(NUM_TRIED, MAX_COORDINATES // posterior.layout.dim))
            x, _ = sampling.sample(posterior.distribution, as_key(TRIAL_KEY), num)
        else:
            x = trial.x
        x = np.asarray(x, np.float64)
        return Trial(x, np.asarray(sampling.log_density(posterior.layout, model, x), np.float64))


def _stored_rows(
    posterior: "PosteriorParts", num: int, key: Any, asked: Weighted, weighted: bool
) -> Float[np.ndarray, " num"] | None:
    """Return the indices of the stored draws to use for a call; None to draw from the flow."""
    stored = posterior.stored
    if posterior.model is not None or stored is None:
        return None
    fits = stored.num > 0 and weighted == stored.weighted
    is_default = not isinstance(key, jax.Array) and key == KEY
    if not _needs_file(posterior, weighted):
        return np.arange(num) if fits and is_default and num <= stored.num else None
    if not fits:
        if weighted and not stored.weighted:
            need_model(posterior, "weighted=True")
        raise ModelError(
            f"weighted={asked!r}: the file contains "
            + ("weighted draws only" if stored.num else "no draws")
            + ", and others need the model: pass it to bf.load(path, model=...)."
        )
    if num > stored.num:
        warnings.warn(
            f"bernflow: the file contains {stored.num:,} draws, and more need the model: {stored.num:,} are returned "
            f"instead of {num:,}. Pass the model to bf.load(path, model=...).",
            UserWarning,
            stacklevel=user_level(),
        )
        num = stored.num
    if is_default:
        return np.arange(num)
    return generator(as_key(key)).permutation(stored.num)[:num]


def _warn_of_omitted(posterior: "PosteriorParts") -> None:
    """Warn that new draws of the flow lack the derived quantities, which only the model can compute."""
    omitted = sorted(derived_sizes(posterior))
    if omitted:
        stored = posterior.stored.num if posterior.stored is not None else 0
        warnings.warn(
            f"bernflow: these draws lack {', '.join(omitted)}, which the file contains for its own {stored:,} draws "
            f"(key={KEY}) only. Pass the model to bf.load(path, model=...).",
            UserWarning,
            stacklevel=user_level(),
        )


def _needs_file(posterior: "PosteriorParts", weighted: bool) -> bool:
    """Tell whether draws without the model can come from the file only: the flow knows no weights and not every map."""
    return weighted or isinstance(posterior.layout, SavedLayout)


def _only(deterministic: bool | Collection[str]) -> tuple[str, ...] | None:
    return None if isinstance(deterministic, bool) else tuple(deterministic)


def _names(deterministic: bool | Collection[str], known: Collection[str]) -> Collection[str]:
    return (known if deterministic else ()) if isinstance(deterministic, bool) else deterministic
