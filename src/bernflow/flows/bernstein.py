"""Increasing Bernstein polynomials: value, slope and inverse.

With coefficients theta_0 < ... < theta_M and increments d_i = theta_{i+1} - theta_i > 0,

    f(t)  = sum_i theta_i B_{i,M}(t)                     (the paper's eq. 1)
    f'(t) = M sum_i d_i B_{i,M-1}(t).

Since B_{i,M} = (1-t) B_{i,M-1} + t B_{i-1,M-1}, the basis b of order M-1 alone gives both:
f = sum_{i<M} theta_i b_i + t sum_i d_i b_i. The coefficients are a constant linear map of the increments, so
f = sum_i d_i (E_i + t b_i), where E is one product of b with a constant matrix. Functions are vectorized over
leading dimensions.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# Keeps the polynomial strictly increasing where softplus underflows.
MIN_INCREMENT = 1e-9
# At this distance from an end of [0, 1] the basis is frozen and the linear continuation takes over.
EDGE = {"float32": 1e-6, "float64": 1e-12}
INVERSE_ITERATIONS = 48
# Newton iterations stop when a step is smaller than this power of the machine epsilon: convergence is quadratic, so the
# next step would be below the precision.
CONVERGENCE_POWER = 2.0 / 3.0
# Up to this degree the binomials and the powers stay inside the range of single precision.
MAX_DEGREE_BY_PRODUCTS = 100


@lru_cache
def log_binomials(degree: int) -> np.ndarray:
    """Return log C(degree, i) for i = 0..degree in double precision."""
    lgamma = math.lgamma
    return np.array([lgamma(degree + 1) - lgamma(i + 1) - lgamma(degree - i + 1) for i in range(degree + 1)])


@lru_cache
def centering(order: int) -> np.ndarray:
    """Return the matrix C (M x M+1) with theta = d C for the polynomial that vanishes at t = 1/2.

    Anchoring the middle rather than the left end keeps a change of one increment from shifting the whole bulk.
    """
    cumulative = np.tril(np.ones((order + 1, order)), -1).T
    middle = np.exp(log_binomials(order) - order * math.log(2.0))
    return cumulative - (cumulative @ middle)[:, None]


def increments(raw: Float[Array, "... m"]) -> Float[Array, "... m"]:
    """Map unrestricted numbers to positive increments of the coefficients (softplus)."""
    small = jnp.exp(-jnp.abs(raw))
    # In double precision the rounding error of 1 + small is far below MIN_INCREMENT, and log is twice as fast as log1p.
    log_term = jnp.log(1.0 + small) if small.dtype == jnp.float64 else jnp.log1p(small)
    return jnp.maximum(raw, 0.0) + log_term + MIN_INCREMENT


def increments_by_raw(raw: Float[Array, "... m"]) -> Float[Array, "... m"]:
    """Evaluate the derivative of `increments`."""
    small = jnp.exp(-jnp.abs(raw))
    return jnp.where(raw < 0.0, small, 1.0) / (1.0 + small)


def inverse_increments(increment: np.ndarray) -> np.ndarray:
    """Invert `increments`, to start from chosen coefficients."""
    return np.log(np.expm1(increment - MIN_INCREMENT))


def basis(t: Float[Array, "..."], degree: int) -> Float[Array, "... n"]:
    """Evaluate B_{i,degree}(t), i = 0..degree, inside (0, 1)."""
    if degree <= MAX_DEGREE_BY_PRODUCTS:
        return _basis_by_products(t, degree)
    return basis_from_logs(jnp.log(t), jnp.log1p(-t), degree)


def basis_from_logs(log_t: Float[Array, "..."], log_1mt: Float[Array, "..."], degree: int) -> Float[Array, "... n"]:
    """Evaluate the basis from log t and log(1-t), which never under- or overflows."""
    i = np.arange(degree + 1)
    log_c = jnp.asarray(log_binomials(degree), log_t.dtype)
    return jnp.exp(log_c + i * log_t[..., None] + (degree - i) * log_1mt[..., None])


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _basis_by_products(t: Float[Array, "..."], degree: int) -> Float[Array, "... n"]:
    """Evaluate the basis by products of t, t^2, t^4, ... chosen by the bits of i: no exponential per element."""
    i = np.arange(degree + 1)
    out = jnp.broadcast_to(jnp.asarray(np.exp(log_binomials(degree)), t.dtype), (*t.shape, degree + 1))
    power, complement = t[..., None], 1.0 - t[..., None]
    for bit in range(degree.bit_length()):
        out = out * jnp.where((i >> bit) & 1, power, 1.0) * jnp.where(((degree - i) >> bit) & 1, complement, 1.0)
        power, complement = power * power, complement * complement
    return out


@_basis_by_products.defjvp
def _basis_by_products_jvp(degree, primals, tangents):
    (t,), (dt,) = primals, tangents
    i = np.arange(degree + 1)
    b = _basis_by_products(t, degree)
    # Written as a product with a constant matrix, so that its transpose is one, too, and not a slow sum over the basis.
    return b, b * (jnp.stack([dt / t, -dt / (1.0 - t)], -1) @ jnp.asarray(np.stack([i, degree - i]), t.dtype))


def polynomial(
    increment: Float[Array, "... m"], t: Float[Array, "..."], b: Float[Array, "... m"], matrix: np.ndarray
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Evaluate f and f' from the basis of order M-1 at t; `matrix` maps the increments to the coefficients."""
    return Terms(t, b, _effects(t, b, matrix)).value_and_slope(increment)


def _effects(t: Float[Array, "..."], b: Float[Array, "... m"], matrix: np.ndarray) -> Float[Array, "... m"]:
    return b @ jnp.asarray(matrix[:, :-1].T, b.dtype) + t[..., None] * b


class Terms(NamedTuple):
    """The terms of a polynomial at t: f = sum_i d_i effect_i and f' = M sum_i d_i basis_i."""

    inside: Float[Array, "..."]
    basis: Float[Array, "... m"]
    effects: Float[Array, "... m"]

    def value_and_slope(self, increment: Float[Array, "... m"]) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
        """Return f and f' for given increments."""
        return jnp.sum(increment * self.effects, -1), increment.shape[-1] * jnp.sum(increment * self.basis, -1)


def centered_terms(order: int, t: Float[Array, "..."]) -> Terms:
    """Evaluate the terms of polynomials that vanish at t = 1/2 and continue linearly outside [0, 1]."""
    edge = EDGE[jnp.result_type(t).name]
    inside = jnp.clip(t, edge, 1.0 - edge)
    b = basis(inside, order - 1)
    # At an edge b is a unit vector, so multiplying the distance beyond the edge by M gives exactly the end slope.
    return Terms(inside, b, _effects(inside + order * (t - inside), b, centering(order)))


def centered_polynomial(
    increment: Float[Array, "... m"], t: Float[Array, "..."]
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Evaluate f (zero at t = 1/2) and f' on the whole line, continued linearly with the end slopes outside [0, 1]."""
    return centered_terms(increment.shape[-1], t).value_and_slope(increment)


def log_slope_by_t(increment: Float[Array, "... m"], terms: Terms, t: Float[Array, "..."]) -> Float[Array, "..."]:
    """Evaluate the derivative of log f', which is zero where the polynomial is continued linearly."""
    degree = increment.shape[-1] - 1
    shares = increment * terms.basis
    # d b_i / dt = b_i (i - degree t) / (t (1 - t)).
    middle = shares @ jnp.arange(degree + 1, dtype=shares.dtype) / jnp.sum(shares, -1)
    return jnp.where(terms.inside == t, (middle - degree * t) / (terms.inside * (1.0 - terms.inside)), 0.0)


def invert_centered(increment: Float[Array, "... m"], y: Float[Array, "..."]) -> Float[Array, "..."]:
    """Solve f(t) = y on the whole line: closed form in the linear tails, bracketed Newton in between."""
    order = increment.shape[-1]
    matrix = jnp.asarray(centering(order), increment.dtype)
    low, high = increment @ matrix[:, 0], increment @ matrix[:, -1]
    target = jnp.clip(y, low, high)
    t = invert_increasing(centered_polynomial, increment, target, (target - low) / (high - low), jnp.ones_like(target))
    t = jnp.where(y < low, (y - low) / (order * increment[..., 0]), t)
    return jnp.where(y > high, 1.0 + (y - high) / (order * increment[..., -1]), t)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def invert_increasing(
    function: Callable[[Any, Array], tuple[Array, Array]],
    parameters: Any,
    y: Float[Array, "..."],
    start: Float[Array, "..."],
    high: Float[Array, "..."],
) -> Float[Array, "..."]:
    """Solve function(parameters, t)[0] = y for t in [0, high] by Newton steps kept inside a shrinking bracket.

    `function` returns the value and the slope of an increasing function. The solution can be differentiated any number
    of times, forward and in reverse, in the parameters and in y.
    """
    tolerance = jnp.finfo(start.dtype).eps ** CONVERGENCE_POWER * high

    def unconverged(state):
        number, _, _, _, step = state
        return (number < INVERSE_ITERATIONS) & jnp.any(step > tolerance)

    def body(state):
        number, low, high, t, _ = state
        value, slope = function(parameters, t)
        low, high = jnp.where(value < y, t, low), jnp.where(value < y, high, t)
        newton = t - (value - y) / slope
        new = jnp.where((newton >= low) & (newton <= high), newton, 0.5 * (low + high))
        return number + 1, low, high, new, jnp.abs(new - t)

    zeros = jnp.zeros_like(start)
    return jax.lax.while_loop(unconverged, body, (0, zeros, zeros + high, start, zeros + jnp.inf))[3]


@invert_increasing.defjvp
def _invert_increasing_jvp(function, primals, tangents):
    """Differentiate f(parameters, t) = y implicitly, not through the iterations."""
    t = invert_increasing(function, *primals)
    (_, slope), (by_parameters, _) = jax.jvp(lambda parameters: function(parameters, t), primals[:1], tangents[:1])
    return t, (tangents[1] - by_parameters) / slope
