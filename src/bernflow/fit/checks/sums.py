"""Sums of exponentials in a density, and the density with one term of each.

They are found in the computation that JAX has traced: `logsumexp` and `logaddexp` of values that depend on the
parameters, also those of NumPyro's and PyMC's mixtures. A maximum along some axes, with exponentials that are summed
along the same axes later, is a `logsumexp`; where all values but one are -inf before that maximum, the rest of the
computation returns this one. Sums inside of loops stay as they are.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from bernflow.errors import BernflowError
from bernflow.target import Target

# Functions inside of which nothing is selected: the normalizer of a softmax is subtracted, and not summed out.
NORMALIZERS = ("softmax", "log_softmax")


class Sum(NamedTuple):
    """A sum of exponentials: the number of terms, and the shape of its values."""

    num: int
    shape: tuple[int, ...]


def sums_of(target: Target) -> tuple[Sum, ...]:
    """Return the sums of exponentials in a density that depend on the parameters.

    Example:
        >>> import bernflow as bf
        >>> log_density = lambda x: jnp.logaddexp(-jnp.sum(x**2), -jnp.sum((x - 9.0)**2))
        >>> sums_of(Target(bf.from_log_density(log_density, init=jnp.zeros(3))))
        (Sum(num=2, shape=()),)
    """
    selection, x = Selection(None), np.zeros(target.dim)
    try:
        if not _has_sums(jax.make_jaxpr(target.log_density)(x).jaxpr):
            return ()
        jax.eval_shape(jax.grad(lambda x: selected(target, x, selection)), x)
    except BernflowError:
        raise
    except Exception:  # of JAX: what cannot be traced in parts is not taken apart
        return ()
    return tuple(selection.found)


class Selection:
    """Replaces every sum of exponentials by one of its terms, and counts the sums."""

    def __init__(self, terms: Sequence[Any] | None):
        self._terms = terms
        self.found: list[Sum] = []

    def among(self, values: Array, axes: Sequence[int]) -> Array:
        """Return values along axes that are summed, without all but one of them."""
        sizes = [values.shape[axis] for axis in axes]
        term = self._next(math.prod(sizes), tuple(n for i, n in enumerate(values.shape) if i not in axes))
        if term is None:
            return values
        position, step = jnp.zeros(values.shape, int), 1
        for axis, size in zip(axes, sizes, strict=True):
            position += step * jax.lax.broadcasted_iota(int, values.shape, axis)
            step *= size
        return jnp.where(position == jnp.expand_dims(term, tuple(axes)), values, -jnp.inf)

    def between(self, first: Array, second: Array) -> Array:
        """Return one of two summands."""
        term = self._next(2, first.shape)
        return jnp.logaddexp(first, second) if term is None else jnp.where(term == 0, first, second)

    def _next(self, num: int, shape: tuple[int, ...]) -> Any:
        self.found.append(Sum(num, shape))
        return None if self._terms is None else self._terms[len(self.found) - 1]


def selected(target: Target, x: Float[Array, " p"], selection: Selection) -> Float[Array, ""]:
    """Evaluate the log density with the sums that a selection has replaced."""
    closed = jax.make_jaxpr(target.log_density)(x)
    (value,) = _evaluate(closed.jaxpr, closed.consts, [x], [True], selection)[0]
    return value


def _evaluate(
    jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], depends: Sequence[bool], selection: Selection
) -> tuple[list[Any], list[bool]]:
    """Evaluate a traced function; return its values, and whether each depends on the parameters."""
    known: dict[Any, tuple[Any, bool]] = {}

    def read(variable: Any) -> tuple[Any, bool]:
        return (variable.val, False) if hasattr(variable, "val") else known[variable]

    known.update(zip(jaxpr.constvars, ((const, False) for const in consts), strict=True))
    known.update(zip(jaxpr.invars, zip(args, depends, strict=True), strict=True))
    for equation in jaxpr.eqns:
        if equation.primitive.name == "reduce_max" and read(equation.invars[0])[1] and _is_summed(jaxpr, equation):
            # The maximum is subtracted before the sum: from here on there is only one term.
            operand = equation.invars[0]
            known[operand] = selection.among(read(operand)[0], equation.params["axes"]), True
        operands = [read(variable) for variable in equation.invars]
        out, out_depends = _apply(equation, [value for value, _ in operands], [d for _, d in operands], selection)
        known.update(zip(equation.outvars, zip(out, out_depends, strict=True), strict=True))
    read_out = [read(variable) for variable in jaxpr.outvars]
    return [value for value, _ in read_out], [dependent for _, dependent in read_out]


def _apply(equation: Any, values: list[Any], depends: list[bool], selection: Selection) -> tuple[list[Any], list[bool]]:
    inner = _inner(equation)
    if any(depends) and inner is not None:
        if _is_logaddexp(inner) and all(np.shape(value) == inner.invars[0].aval.shape for value in values):
            return [selection.between(*values)], [True]
        if _has_sums(inner) and equation.params.get("name") not in NORMALIZERS:
            closed = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
            return _evaluate(inner, getattr(closed, "consts", ()), values, depends, selection)
    out = equation.primitive.bind(*values, **equation.primitive.get_bind_params(equation.params))
    out = list(out) if equation.primitive.multiple_results else [out]
    return out, [any(depends)] * len(out)


# Functions that are evaluated once, with the same arguments: their equations may be evaluated in their place.
_CALLS = ("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint")


def _inner(equation: Any) -> Any:
    """Return the equations of a function that is called once; None for other equations."""
    if equation.primitive.name not in _CALLS:
        return None
    closed = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    return getattr(closed, "jaxpr", closed)


def _has_sums(jaxpr: Any) -> bool:
    inner = filter(None, map(_inner, jaxpr.eqns))
    return any(_is_summed(jaxpr, each) for each in jaxpr.eqns) or any(
        _is_logaddexp(each) or _has_sums(each) for each in inner
    )


def _is_summed(jaxpr: Any, equation: Any) -> bool:
    """Tell whether an equation is the maximum along axes over which exponentials are summed later."""
    if equation.primitive.name != "reduce_max":
        return False
    axes, size = equation.params["axes"], math.prod(equation.invars[0].aval.shape[i] for i in equation.params["axes"])
    following = jaxpr.eqns[jaxpr.eqns.index(equation) :]
    names = {each.primitive.name for each in following}
    return (
        size > 1
        and "exp" in names
        and any(each.primitive.name == "reduce_sum" and each.params["axes"] == axes for each in following)
    )


def _is_logaddexp(jaxpr: Any) -> bool:
    names = [equation.primitive.name for equation in jaxpr.eqns]
    return (
        len(jaxpr.invars) == 2 and len(jaxpr.outvars) == 1 and {"max", "exp", "log1p"} <= set(names) and len(names) < 12
    )
