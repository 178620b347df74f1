"""Checks before training: starting points with a finite density and gradient."""

from collections import Counter
from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.background import Effort, background_jit
from bernflow.compiled import filter_jit
from bernflow.errors import ModelError
from bernflow.keys import as_key, generator, grid, nth, quick
from bernflow.models.base import Theta
from bernflow.models.inputs import user_code
from bernflow.models.stan.points import NUM_TRIES, RADIUS, shrinking_points
from bernflow.placement import replicated
from bernflow.precision import float_dtype
from bernflow.target import Target


def preflight(target: Target, starts: Float[Array | np.ndarray, "k p"]) -> Float[np.ndarray, "usable p"]:
    """Return the starts where the log density and its gradient are finite.

    Args:
        target: the density on R^p.
        starts: candidate points.

    Raises:
        ModelError: if no start is usable; the message names the sites or parameters at fault.
    """
    return _first_usable(target, [np.asarray(starts)])


def usable_starts(
    target: Target, starts: Float[Array | np.ndarray, "num p"], key: Key[Array, ""]
) -> Float[np.ndarray, "num p"]:
    """Return equally many starts, all with a finite log density and gradient.

    Unusable starts are replaced by usable ones. If there are none, up to 100 more points are tried, uniform on (-2, 2)
    and then increasingly close to zero.

    Args:
        target: the density on R^p.
        starts: candidate points.
        key: seed of the other points.

    Raises:
        ModelError: if no point is usable; the message names the sites or parameters at fault.
    """
    given, num = np.asarray(starts), len(starts)
    # Use batches of the size of the starts, for which the density is already compiled.
    batches = max(1, NUM_TRIES // num)
    others = shrinking_points(generator(nth(as_key(key), 0)), target.dim, batches * num).astype(given.dtype)
    usable = _first_usable(target, [given, *np.split(others, batches)])
    return usable[np.arange(num) % len(usable)]


def _first_usable(target: Target, batches: Sequence[Float[np.ndarray, "k p"]]) -> Float[np.ndarray, "usable p"]:
    """Return the usable points of the first batch that has any."""
    check_output(target)
    finite, gradients = [], []
    for batch in batches:
        values, slopes = map(np.asarray, _values_and_gradients(target, batch))
        finite.append(np.isfinite(values))
        gradients.append(slopes)
        usable = finite[-1] & np.isfinite(slopes).all(axis=1)
        if usable.any():
            return batch[usable]
    if not np.any(finite):
        raise ModelError(_blame_density(target, batches))
    num = sum(map(len, batches))
    raise ModelError(_blame_gradient(target, np.concatenate(gradients)[np.concatenate(finite)], num))


def prepare(target: Target, num: int) -> None:
    """Start compiling the function that draws `num` starts."""
    draw_starts.prepare(target, *_candidates(target.dim, as_key(0), num))


def starting_points(target: Target, key: Key[Array, ""], num: int) -> Float[Array | np.ndarray, "num p"]:
    """Choose candidate starts on the unconstrained scale.

    The user's own start comes first if there is one. Half of the others are uniform on (-2, 2), in antithetic pairs,
    and half are drawn from the prior; prior draws that overflow on the unconstrained scale become uniform ones.
    """
    return _with_initial(target, draw_starts(target, *_candidates(target.dim, as_key(key), num)))


def uniform_points(target: Target, key: Key[Array, ""], num: int) -> Float[np.ndarray, "num p"]:
    """Choose the user's own and uniform candidate starts, without compiling the prior."""
    return np.asarray(_with_initial(target, _candidates(target.dim, as_key(key), num)[0]))


def _with_initial(target: Target, starts: Array | np.ndarray) -> Array | np.ndarray:
    """Replace the first start by the user's own, if there is one."""
    initial = target.model.initial()
    if initial is not None and len(starts):
        x, _ = target.layout.unconstrain(initial)
        if not bool(jnp.all(jnp.isfinite(x))):
            raise ModelError(
                "The start (init) lies on the boundary of a support, so it is infinite on the unconstrained scale. "
                "Give a start in the interior."
            )
        starts = np.concatenate([np.asarray(x)[None], np.asarray(starts)[1:]])
    return starts


def prior_draws(target: Target, key: Key[Array, ""], batch: int, num: int) -> Float[np.ndarray, "n p"] | None:
    """Return the finite draws of the prior on the unconstrained scale; None without a prior.

    Args:
        target: the density on R^p.
        key: seed of the draws.
        batch: size of a batch of candidate starts, for which drawing is already compiled.
        num: number of batches.
    """
    drawn: list[np.ndarray] = []
    for i in range(num):
        uniform, keys = _candidates(target.dim, nth(as_key(key), i), batch)
        points = np.asarray(draw_starts(target, uniform, keys))
        drawn.extend(points[np.any(points != uniform, axis=1)])
        if not drawn:
            return None
    return np.array(drawn) if drawn else None


def check_output(target: Target) -> None:
    """Check, by shapes only, that the log density is one floating-point number."""
    x = jax.ShapeDtypeStruct((target.dim,), float_dtype())
    with user_code("The model's log density"):
        out = eqx.filter_eval_shape(_model_density, target, x)
    if out.shape != () or not jnp.issubdtype(out.dtype, jnp.floating):
        raise ModelError(
            f"The model's log density has shape {out.shape} and dtype {out.dtype}: expected one float of shape (). "
            "Sum over data points and parameters."
        )


def _model_density(target: Target, x: Float[Array, " p"]) -> Array:
    theta, _ = target.layout.constrain(x)
    return jnp.asarray(target.model.log_density(theta))


@background_jit(Effort.LEAST)
def _values_and_gradients(target: Target, starts: Array) -> tuple[Array, Array]:
    return replicated(jax.vmap(jax.value_and_grad(target.log_density))(starts))


@filter_jit
def _terms(target: Target, starts: Array) -> tuple[Theta, Array]:
    def one(x: Array) -> tuple[Theta, Array]:
        theta, log_jacobian = target.layout.constrain(x)
        return target.model.log_terms(theta), log_jacobian

    return jax.vmap(one)(starts)


@background_jit(Effort.LEAST)
def draw_starts(target: Target, uniform: Float[Array, "num p"], keys: Key[Array, " half"]) -> Float[Array, "num p"]:
    """Replace the last uniform points by draws from the prior, one per key, if there is a prior."""
    if not len(keys):
        return uniform

    def unconstrained_prior_draw(key: Key[Array, ""]) -> Array | None:
        with user_code("The model, run to draw from its prior,"):
            theta = target.model.sample_prior(key)
        return None if theta is None else target.layout.unconstrain(theta)[0]

    draws = jax.vmap(unconstrained_prior_draw)(keys)
    if draws is None:
        return uniform
    finite = jnp.all(jnp.isfinite(draws), axis=1, keepdims=True)
    return uniform.at[-len(keys) :].set(jnp.where(finite, draws, uniform[-len(keys) :]))


def _candidates(dim: int, key: Key[Array, ""], num: int) -> tuple[Float[np.ndarray, "num p"], Key[Array, " half"]]:
    """Return uniform points and keys for draws from the prior; by NumPy, which needs no compilation.

    Points come in antithetic pairs, so that of two modes on either side of the origin both are reached.
    """
    half = generator(key).uniform(-RADIUS, RADIUS, ((num + 1) // 2, dim))
    return np.stack([half, -half], 1).reshape(-1, dim)[:num], grid(quick(key), (num // 2,))


def _blame_density(target: Target, batches: Sequence[np.ndarray]) -> str:
    found = [jax.tree.map(np.asarray, _terms(target, jnp.asarray(batch))) for batch in batches]
    terms, log_jacobian = jax.tree.map(lambda *leaves: np.concatenate(leaves), *found)
    num = sum(map(len, batches))
    culprits = []
    for name, values in terms.items():
        bad = values[~np.isfinite(values)]
        if bad.size:
            value = Counter(str(v) for v in bad).most_common(1)[0][0]
            culprits.append(f"the term of {name!r} is {value} at {bad.size} of {num}")
    if not np.isfinite(log_jacobian).all():
        culprits.append("the map from the unconstrained scale overflows")
    reason = "; ".join(culprits) or "every term is finite, but their sum overflows"
    return (
        f"The log density is not finite at any of {num} starting points: {reason}. Check that the observed "
        "values lie in the support of their distribution, that no prior or likelihood gets an invalid parameter (a "
        "negative scale, the logarithm of zero), and that the data are not so large that they overflow: standardize "
        "them."
    )


def _blame_gradient(target: Target, gradients: np.ndarray, num: int) -> str:
    bad = ~np.isfinite(gradients).all(axis=0)
    labels = [label for label, is_bad in zip(target.layout.labels(), bad, strict=True) if is_bad]
    shown = ", ".join(repr(label) for label in labels[:8]) + (f" and {len(labels) - 8} more" if len(labels) > 8 else "")
    return (
        f"The log density is finite, but its gradient is not finite at any of {num} starting points, in the direction "
        f"of {shown}. The usual causes are sqrt or norm at 0, and a jnp.where whose unused branch divides by zero or "
        "takes the logarithm of zero: give that branch a safe argument inside the jnp.where."
    )
