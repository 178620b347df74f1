"""Flows of flowjax: named families, a user's own flowjax object, and bernflow's flows as flowjax bijections.

flowjax is an optional dependency and imported only when it is needed.
"""

import functools
import importlib
import sys
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.errors import ArgumentError
from bernflow.flows.base import AbstractFlow
from bernflow.precision import float_dtype

# The sizes in the paper's comparison.
PLANAR_LAYERS = 10
COUPLING_LAYERS = 8
COUPLING_WIDTH = 32
NAMES = ("planar", "realnvp")


class FlowjaxFlow(AbstractFlow):
    """A flowjax bijection of noise without trained parameters.

    Attributes:
        base: a flowjax distribution; its parameters are not trained, because noise is drawn before gradients are taken.
        bijection: a flowjax bijection; all but its `paramax.NonTrainable` parts is trained.
        name: the name of the family, or None for a user's own object.
    """

    base: Any
    bijection: Any
    name: str | None = eqx.field(static=True)
    dim: int = eqx.field(static=True)

    def __init__(self, base: Any, bijection: Any, name: str | None = None):
        self.base = _import("paramax").non_trainable(_in_our_precision(base))
        self.bijection = _in_our_precision(bijection)
        self.name = name
        self.dim = bijection.shape[0]

    def sample_base(self, key: Key[Array, ""], num: int) -> Float[Array, "s p"]:
        """Draw base noise."""
        return self.base.sample(key, (num,))

    def base_log_prob(self, z: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate the log density of the base noise."""
        return self.base.log_prob(z)

    def transform_and_log_det(self, z: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map noise to a parameter vector; return x and log |dx/dz|."""
        # flowjax unwraps paramax's wrappers in its public methods.
        return self.bijection.transform_and_log_det(z)

    def inverse_and_log_det(self, x: Float[Array, " p"]) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Map a parameter vector to its noise; return z and log |dz/dx|."""
        try:
            return self.bijection.inverse_and_log_det(x)
        except NotImplementedError as error:
            raise ArgumentError(
                f"flowjax cannot invert the {self.name or 'given'} flow, so its density is known only at its draws: "
                "choose another family to evaluate log_prob elsewhere. Draws, weights and diagnostics work."
            ) from error

    def to_flowjax(self) -> Any:
        """Return the flow as a `flowjax.distributions.Transformed`."""
        return _import("flowjax.distributions").Transformed(self.base, self.bijection)

    def recipe(self) -> dict[str, Any]:
        """Describe the structure, so that a saved flow can be rebuilt."""
        if self.name is None:
            raise ArgumentError(
                f"A posterior fitted with your own flowjax object ({type(self.bijection).__name__}) cannot be saved: "
                "rebuilding it would execute code from the file. Save its draws with post.to_arviz().to_netcdf(path), "
                "or fit a named family."
            )
        return {"kind": "flowjax", "name": self.name, "dim": self.dim}


def named_flow(key: Key[Array, ""], name: str, dim: int) -> FlowjaxFlow:
    """Build a named flow with flowjax, on standard normal noise; must be called outside jit."""
    check_named(name, dim)
    bijection = eqx.combine(eqx.filter(_bijection(key, name, dim), eqx.is_array), _structure(name, dim))
    return FlowjaxFlow(_import("flowjax.distributions").StandardNormal((dim,)), bijection, name)


def check_named(name: str, dim: int) -> None:
    """Raise an error if a named flow cannot be built for `dim` dimensions."""
    _import("flowjax.flows")
    if name == "realnvp" and dim < 2:
        raise ArgumentError(
            "family='realnvp' needs at least 2 dimensions, and this posterior has 1. Use another family, such as "
            "'planar' or 'bernstein'."
        )


def is_flowjax(thing: Any) -> bool:
    """Tell whether something is a distribution or a bijection of flowjax."""
    if "flowjax" not in sys.modules:  # nothing can be one before flowjax is imported
        return False
    return isinstance(thing, _import("flowjax.distributions").AbstractDistribution) or _is_bijection(thing)


def given_name(source: Any) -> str:
    """Name a user's own flowjax object."""
    return f"flowjax:{type(source).__name__}"


def given_flow(source: Any) -> FlowjaxFlow:
    """Wrap a user's own flowjax distribution or bijection; a bijection gets standard normal noise."""
    distributions = _import("flowjax.distributions")
    source = _freeze_arrays(source)
    if _is_bijection(source):
        return FlowjaxFlow(distributions.StandardNormal(source.shape), source)
    if not isinstance(source, distributions.AbstractTransformed):
        return FlowjaxFlow(source, _import("flowjax.bijections").Identity(source.shape))
    # Use parameter-free noise where possible: the parameters of a Normal are trained as an affine bijection.
    merged = source.merge_transforms()
    return FlowjaxFlow(merged.base_dist, merged.bijection)


def check_given(source: Any, dim: int) -> None:
    """Raise an error if a user's own flowjax object cannot be fitted to a posterior of `dim` dimensions."""
    source, name = _freeze_arrays(source), given_name(source)
    if source.cond_shape is not None:
        raise ArgumentError(
            f"family={name} is conditional, with a condition of shape {source.cond_shape}: expected an unconditional "
            "distribution or bijection (cond_shape None)."
        )
    if source.shape != (dim,):
        raise ArgumentError(f"family={name} has shape {source.shape}; this posterior needs shape {(dim,)}.")
    flow = given_flow(source)
    if not jax.tree.leaves(eqx.filter(flow.bijection, eqx.is_inexact_array, is_leaf=_is_frozen)):
        raise ArgumentError(f"family={name} has nothing to train: expected a bijection with trainable parameters.")
    z = flow.sample_base(jax.random.key(0), 8)
    # Training draws noise in antithetic pairs.
    if not np.allclose(flow.base.log_prob(z), flow.base.log_prob(-z), rtol=1e-4):
        raise ArgumentError(
            f"family={name} has base noise {type(flow.base).__name__}, which is not symmetric about zero: expected "
            "noise such as StandardNormal, Laplace or StudentT. Move its asymmetry into the bijection."
        )
    try:
        eqx.filter_eval_shape(flow.transform_and_log_det, z[0])
    except NotImplementedError as error:
        raise ArgumentError(
            f"family={name} cannot be sampled, since its bijection has no forward transform: build it with "
            "invert=False."
        ) from error


def as_flowjax(flow: AbstractFlow) -> Any:
    """Wrap one of bernflow's flows as a flowjax bijection of shape (p,).

    Example:
        >>> from flowjax.distributions import StandardNormal, Transformed
        >>> q = post.distribution  # doctest: +SKIP
        >>> Transformed(StandardNormal((q.dim,)), as_flowjax(q))  # doctest: +SKIP

    The base distribution must be the flow's own noise: standard normal by default, Logistic for `base="logistic"`, and
    StudentT for the family "student-t".
    """
    if not isinstance(flow, AbstractFlow):
        raise ArgumentError(f"as_flowjax({type(flow).__name__}): expected one flow, such as post.distribution.")
    return _bijection_class()(flow, (flow.dim,))


@functools.cache
def _bijection_class() -> type:
    class FlowBijection(_import("flowjax.bijections").AbstractBijection):  # type: ignore[name-defined]
        """A flow of bernflow as a bijection of flowjax."""

        flow: AbstractFlow
        shape: tuple[int, ...]
        cond_shape: ClassVar[None] = None

        def transform_and_log_det(self, x, condition=None):
            return self.flow.transform_and_log_det(x)

        def inverse_and_log_det(self, y, condition=None):
            return self.flow.inverse_and_log_det(y)

    return FlowBijection


def _bijection(key: Key[Array, ""], name: str, dim: int) -> Any:
    flows = _import("flowjax.flows")
    base = _import("flowjax.distributions").StandardNormal((dim,))
    # Always in single precision: functions inside the flow hold constants of the precision in which they were built.
    with jax.enable_x64(False):
        if name == "planar":
            return flows.planar_flow(key, base_dist=base, flow_layers=PLANAR_LAYERS, invert=False).bijection
        sizes = {"flow_layers": COUPLING_LAYERS, "nn_width": COUPLING_WIDTH}
        return flows.coupling_flow(key, base_dist=base, **sizes, invert=False).bijection


@functools.cache
def _structure(name: str, dim: int) -> Any:
    """Return all but the arrays of a flow, as the same object for all fits, so that nothing is recompiled."""
    return eqx.filter(_bijection(jax.random.key(0), name, dim), eqx.is_array, inverse=True)


def _in_our_precision(tree: Any) -> Any:
    """Convert arrays to the precision in use; indices have 32 bits in both, so that saved files fit both."""

    def convert(leaf):
        if eqx.is_inexact_array(leaf):
            return jnp.asarray(leaf, float_dtype())
        if eqx.is_array(leaf) and leaf.dtype == np.int64:
            return jnp.asarray(leaf, np.int32)
        return leaf

    return jax.tree.map(convert, tree)


def _freeze_arrays(source: Any) -> Any:
    """Mark arrays as not trained instead of whole parts of a flow, so that the parts stay accessible."""
    freeze = _import("paramax").non_trainable
    return jax.tree.map(lambda node: freeze(node.tree) if _is_frozen(node) else node, source, is_leaf=_is_frozen)


def _is_frozen(node: Any) -> bool:
    return isinstance(node, _import("paramax").NonTrainable)


def _is_bijection(thing: Any) -> bool:
    return isinstance(thing, _import("flowjax.bijections").AbstractBijection)


def _import(module: str) -> Any:
    """Import a module of the optional packages."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ArgumentError(
            "This family needs the package flowjax, which is not installed: pip install 'bernflow[peers]'."
        ) from error
