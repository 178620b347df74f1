"""Bring a structured flow closer to its target by regressions of the score, in place of many steps of training.

Pulled back to the noise z of the flow, x = T(z), the target is nearly standard normal, and the residual

    r(z) = grad [log p(T(z)) + log |dT/dz|] + z

is zero where the flow is exact. Replacing z by z + d(z), where d_i is a small function of z_1..z_i, changes the ELBO by

    E[r . d] - 1/2 E[|d|^2 + sum_i (d d_i / d z_i)^2].

The best displacement in a family of functions is therefore a projection of r: a function of the earlier dimensions
times the Hermite polynomial He_k(z_i) gets 1 / (k + 1) of its least-squares coefficient. Among the functions are
products of two earlier dimensions (`flows.bend`). Globals can be far from
Gaussian at first, so their mean and covariance take damped Newton steps: by Stein's identity the expected Hessian is
E[r z^T] - I. A round takes one gradient at each of a few thousand draws; training steps need many times as many.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.background import Effort, background_jit
from bernflow.diagnostics import importance
from bernflow.diagnostics.margins import margins
from bernflow.diagnostics.verdict import judge
from bernflow.fit.deadline import Deadline
from bernflow.fit.products import find_products, shrunk
from bernflow.fit.skewed import displaced_shapes
from bernflow.fit.tally import count
from bernflow.fit.train.divergence import distance
from bernflow.flows.autoregressive import FIRST_INCREMENT, LOG_SCALE, SHIFT, BernsteinFlow
from bernflow.flows.base import inlined
from bernflow.flows.structured import StructuredBernsteinFlow
from bernflow.keys import generator, nth
from bernflow.placement import placed
from bernflow.posterior import sampling
from bernflow.target import Target

# Draws of a round, in blocks of one compiled shape, and the most rounds. With quadratic terms of noise, of which there
# are many, rounds that gain nothing any more are followed by others with more draws.
NUM_DRAWS, MANY_DRAWS, BLOCK, MAX_ROUNDS = 2000, 8000, 250, 20
# Share of a displacement that is applied, and the least after it was halved because the ELBO fell.
SHARE, LEAST_SHARE = 0.7, 0.1
# Rounds end after two in a row that raise the ELBO by less than this, in standard errors or in nats.
MIN_GAIN, MIN_GAIN_ERRORS = 0.02, 2.0
# Most that one round changes: precisions by this factor, means, log scales, and coefficients of He_2 and He_3.
MAX_FACTOR, MAX_SHIFT, MAX_LOG_SCALE, MAX_BEND = 4.0, 1.0, 0.5, (0.12, 0.04)
# Residuals beyond so many times their median size, plus a constant, are cut off: heavy tails would decide all.
CUT_OFF, CUT_OFF_CONSTANT = 4.0, 3.0
# Coefficients with fewer standard errors than this are noise: of pairs of globals, and of single locals.
MIN_ERRORS_OF_PAIR, MIN_ERRORS = 3.0, 2.0
# Directions of the features with a smaller singular value than this share of the largest are left out.
LEAST_SIZE = 0.01
# Nearer to the target than this share of the tolerance, and with errors of moments below this share of what is allowed,
# nothing is left to do.
NEAR, CLEARLY = 0.8, 0.7
# Under a time limit, the least share of it that must be left for another round.
LEFT_FOR_ROUND = 0.4


class Residuals(NamedTuple):
    """Draws x of a flow: noise, residuals r, log weights, and the features of globals that locals depend on."""

    z: Float[np.ndarray, "s p"]
    r: Float[np.ndarray, "s p"]
    log_weights: Float[np.ndarray, " s"]
    features: Float[np.ndarray, "s f"]
    x: Float[np.ndarray, "s p"]

    def is_near(self, tolerance: float) -> bool:
        """Tell whether the flow is good, and within this distance of the target, so clearly that more draws agree."""
        if distance(self.log_weights) >= tolerance or judge(self.log_weights, draws=self.x).verdict != "good":
            return False
        return margins(self.x, self.log_weights).moments_are_within(CLEARLY)

    def elbo(self) -> tuple[float, float]:
        """Return the ELBO and its standard error; minus infinity where a number is not finite."""
        is_sound = np.isfinite(self.log_weights).all() and np.isfinite(self.r).all()
        return importance.elbo(self.log_weights) if is_sound else (-np.inf, np.inf)


@background_jit(Effort.LIGHT)
def _residuals(flow: StructuredBernsteinFlow, target: Target, z: Float[Array, "s p"]) -> tuple[Array, ...]:
    def pulled_back(z):
        x, log_det = flow.transform_and_log_det(z)
        return target.log_density(x) + log_det, x

    def one(z):
        (value, x), score = jax.value_and_grad(pulled_back, has_aux=True)(z)
        features = flow.features(x)
        return score + z, value - flow.base_log_prob(z), features, x

    with inlined(flow):
        return jax.lax.map(one, z, batch_size=sampling.draws_at_once(sampling.num_rows(target), len(z)))


def prepare(flow: StructuredBernsteinFlow, target: Target) -> None:
    """Begin to compile what a round needs; only shapes matter."""
    _residuals.prepare(flow, target, np.zeros((BLOCK, target.dim)))


def regress_score(
    flow: StructuredBernsteinFlow,
    target: Target,
    key: Key[Array, ""],
    deadline: Deadline,
    tolerance: float = 0.0,
    num_draws: Sequence[int] = (NUM_DRAWS, MANY_DRAWS),
) -> StructuredBernsteinFlow:
    """Return a flow with a higher ELBO, or the same one. Its base noise must be normal.

    Args:
        flow: at its start, not stacked.
        target: what it is fitted to.
        key: a random key.
        deadline: ends the rounds early.
        tolerance: distance from the target, in nats, that is asked for.
        num_draws: draws of a round; after the first number only to find quadratic terms.
    """
    best, number = flow, 0
    for num in num_draws if flow.bend is not None else num_draws[:1]:
        trial, share, in_vain = best, SHARE, 0
        elbo, seen = -np.inf, None
        while number < MAX_ROUNDS and in_vain < 2 and share >= LEAST_SHARE:
            there = look(trial, target, nth(key, number), num)
            number += 1
            value, error = there.elbo()
            if value > elbo:
                in_vain = 0 if value > elbo + max(MIN_GAIN, MIN_GAIN_ERRORS * error) else in_vain + 1
                best, elbo, seen, share = trial, value, there, min(SHARE, 2.0 * share)
            else:
                in_vain, share = in_vain + 1, 0.5 * share
            if seen is None or not deadline.has_left(LEFT_FOR_ROUND) or seen.is_near(NEAR * tolerance):
                return best
            trial = _displaced(best, seen, share)
    return best


def look(flow: StructuredBernsteinFlow, target: Target, key: Key[Array, ""], num: int = NUM_DRAWS) -> Residuals:
    """Evaluate residuals at draws of a flow, in pairs of opposite noise."""
    half = generator(key).standard_normal((num // 2, flow.dim))
    z = np.concatenate([half, -half])
    count(len(z))
    parts = [_residuals(flow, target, z[i : i + BLOCK]) for i in range(0, len(z), BLOCK)]
    return Residuals(z, *(np.concatenate([np.asarray(part) for part in column]) for column in zip(*parts, strict=True)))


def _displaced(flow: StructuredBernsteinFlow, seen: Residuals, share: float) -> StructuredBernsteinFlow:
    """Return the flow with its noise displaced by a share of what the residuals ask for."""
    num, seen = flow.structure.num_leaders, seen._replace(r=cut_off(seen.r))
    first = seen._replace(z=seen.z[:, :num], r=seen.r[:, :num])
    rest = seen._replace(z=seen.z[:, num:], r=seen.r[:, num:])
    basis = Basis.of(seen.features)
    leaders = _displaced_globals(flow.leaders, first, share)
    locals_ = _displaced_locals(flow.locals, rest, basis, share)
    flow = eqx.tree_at(lambda f: (f.leaders, f.locals), flow, (leaders, locals_))
    if flow.bend is None:
        return flow
    # Locals see quadratic terms of the globals in the features, too.
    left = np.concatenate([first.r, rest.r - basis.left @ _coefficients(basis.left, rest.r)], 1)
    found = find_products(seen.z, left, flow.structure, flow.bend.num_neighbors)
    return eqx.tree_at(lambda f: f.bend, flow, placed(flow.bend.adding(found.times(share))))


def _displaced_globals(flow: BernsteinFlow, seen: Residuals, share: float) -> BernsteinFlow:
    """Return the flow of the globals after a damped Newton step, with scales that depend on other globals, and shapes.

    With e_j = s_j + H_j(z_j), the location is Lambda e, Lambda = diag(exp(r)) (I + S), and log scales are R e.
    """
    z, r = seen.z, seen.r
    shift, tril = newton_step(z, r, share)
    r = r / _curvature(z, r)
    second, third = _bends(z, r, share)
    bias, skip = np.array(flow.bias), flow.skip
    raw, moved = displaced_shapes(bias[:, FIRST_INCREMENT:], second, third, flow.noise)
    if skip is None:  # a single global
        bias[:, SHIFT] = (bias[:, SHIFT] + shift) / tril[0, 0] + moved
        bias[:, LOG_SCALE] += np.log(tril[0, 0])
        bias[:, FIRST_INCREMENT:] = raw
        return eqx.tree_at(lambda f: f.bias, flow, placed(bias))
    scales = np.tril(np.asarray(skip.log_scale), -1)
    location = np.exp(bias[:, LOG_SCALE])[:, None] * (np.eye(len(bias)) + np.tril(np.asarray(skip.shift), -1))
    pairs = share * 0.5 * _significant((r * z).T, z, MIN_ERRORS_OF_PAIR)
    pairs = np.clip(np.tril(pairs, -1), -MAX_LOG_SCALE, MAX_LOG_SCALE)
    # Lambda (s + M z + m) = Lambda M (s' + z); log scales see e_k = s'_k + z_k in place of s_k + (M z + m)_k.
    before = bias[:, SHIFT] + shift
    after = np.linalg.solve(tril, before)
    location = location @ tril
    new_scales = scales * np.diag(tril)
    log_scale = np.log(np.diag(location)) + scales @ before - (new_scales + pairs) @ after
    bias = np.concatenate([(after + moved)[:, None], log_scale[:, None], raw], 1)
    lower = location / np.diag(location)[:, None] - np.eye(len(bias))
    return eqx.tree_at(
        lambda f: (f.bias, f.skip.shift, f.skip.log_scale), flow, placed((bias, lower, new_scales + pairs))
    )


class Basis(NamedTuple):
    """Functions of the globals, orthonormal over the draws.

    Attributes:
        left: their values.
        back: maps their coefficients to those of a constant and the features.
    """

    left: Float[np.ndarray, "s b"]
    back: Float[np.ndarray, "f b"]

    @classmethod
    def of(cls, features: Float[np.ndarray, "s f"]) -> "Basis":
        """Return the functions that a constant and the features span."""
        columns = np.concatenate([np.ones((len(features), 1)), features], 1)
        left, sizes, right = np.linalg.svd(columns, full_matrices=False)
        kept = sizes > LEAST_SIZE * sizes[0]
        return cls(left[:, kept], right[kept].T / sizes[kept])


def _displaced_locals(conditional: Any, seen: Residuals, basis: Basis, share: float) -> Any:
    """Return the conditional flow with other shapes, and with shift and log scale of its noise by regression."""
    z, r, drift = seen.z, seen.r, conditional.drift
    left, back = basis
    curvature = _curvature(z, r)
    r = r / curvature
    shift = share * back @ _coefficients(left, r)
    log_scale = share * 0.5 * back @ _coefficients(left, r * z - np.mean(r * z, 0))
    log_scale[0] -= share * 0.5 * np.log(curvature)
    log_scale = np.clip(log_scale, -MAX_LOG_SCALE, MAX_LOG_SCALE)
    raw, moved = displaced_shapes(np.asarray(conditional.raw), *_bends(z, r, share), conditional.noise)
    new = {
        "shift": drift.shift + shift[0] + moved,
        "shift_out": drift.shift_out + shift[1:].T,
        "log_scale": drift.log_scale + log_scale[0],
        "log_scale_out": drift.log_scale_out + log_scale[1:].T,
    }
    drift = eqx.tree_at(
        lambda d: [getattr(d, name) for name in new], drift, [placed(np.asarray(value)) for value in new.values()]
    )
    return eqx.tree_at(lambda c: (c.raw, c.drift), conditional, (placed(raw), drift))


def newton_step(
    z: Float[np.ndarray, "s c"],
    r: Float[np.ndarray, "s c"],
    share: float,
    longest: float = MAX_SHIFT,
    most: float = MAX_FACTOR,
) -> tuple[Float[np.ndarray, " c"], Float[np.ndarray, "c c"]]:
    """Return mean and triangular factor of the Gaussian, in units of z, that a damped Newton step leads to.

    Args:
        z: noise.
        r: residuals.
        share: of the step that is taken.
        longest: the most by which a mean changes, before its share is taken.
        most: the largest factor by which a precision changes.
    """
    num = len(z)
    products, squares = r.T @ z / num, (r**2).T @ z**2 / num**2
    hessian = shrunk(0.5 * (products + products.T), 0.25 * (squares + squares.T)) - np.eye(z.shape[1])
    values, vectors = np.linalg.eigh(-hessian)
    covariance = (vectors * np.clip(values, 1.0 / most, most) ** -share) @ vectors.T
    mean = covariance @ shrunk(np.mean(r, 0), np.var(r, 0) / num)
    return np.clip(mean, -longest, longest) * share, np.linalg.cholesky(covariance)


def _curvature(z: Float[np.ndarray, "s n"], r: Float[np.ndarray, "s n"]) -> Float[np.ndarray, " n"]:
    """Return the expected curvature of the target along every dimension of the noise; one where the flow is exact."""
    products = r * z
    curvature = 1.0 - shrunk(np.mean(products, 0), np.var(products, 0) / len(z))
    return np.clip(curvature, 1.0 / MAX_FACTOR, MAX_FACTOR)


def _bends(
    z: Float[np.ndarray, "s n"], r: Float[np.ndarray, "s n"], share: float
) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
    """Return the coefficients of He_2 and He_3 of the own noise."""
    hermite = (z**2 - 1.0, 2.0), (z**3 - 3.0 * z, 6.0)
    found = []
    for degree, ((polynomial, square), most) in enumerate(zip(hermite, MAX_BEND, strict=True), 2):
        products = r * polynomial
        mean, variance = np.mean(products, 0), np.var(products, 0) / len(z)
        mean = np.where(mean**2 > MIN_ERRORS**2 * variance, shrunk(mean, variance), 0.0)
        found.append(np.clip(share * mean / (square * (degree + 1)), -most, most))
    return found[0], found[1]


def _coefficients(basis: Float[np.ndarray, "s f"], response: Float[np.ndarray, "s n"]) -> Float[np.ndarray, "f n"]:
    """Return least-squares coefficients of an orthonormal basis that are large beside their noise."""
    found = basis.T @ response
    variance = np.var(response - basis @ found, 0)
    return np.where(found**2 > MIN_ERRORS**2 * variance, shrunk(found, variance), 0.0)


def _significant(
    left: Float[np.ndarray, "c s"], right: Float[np.ndarray, "s c"], errors: float
) -> Float[np.ndarray, "c c"]:
    """Return means of products that are large beside their standard errors, and zeros."""
    num = len(right)
    mean, variance = left @ right / num, left**2 @ right**2 / num**2
    return np.where(mean**2 > errors**2 * variance, shrunk(mean, variance), 0.0)


def cut_off(r: Float[np.ndarray, "s n"]) -> Float[np.ndarray, "s n"]:
    """Return residuals without their far tails."""
    most = CUT_OFF * np.median(np.abs(r), 0) + CUT_OFF_CONSTANT
    return np.clip(r, -most, most)
