"""The Bernstein flow in two parts: the core, and the affine map of its location and scale."""

from functools import partial

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from bernflow.compiled import jit
from bernflow.flows import FAMILIES
from bernflow.flows.affine import TriangularAffine
from bernflow.flows.autoregressive import BernsteinFlow
from bernflow.flows.families import Spec


@partial(jit, static_argnums=0)
def new_core(spec: Spec, key: Key[Array, ""]) -> BernsteinFlow:
    """Build a flow without its outer affine map."""
    flow = FAMILIES["bernstein"].build(key, spec, jnp.zeros(spec.dim), jnp.eye(spec.dim))
    return eqx.tree_at(lambda flow: flow.outer, flow, None)


def complete(core: BernsteinFlow, loc: Float[Array, " p"], tril: Float[Array, "p p"]) -> BernsteinFlow:
    """Add the outer map x = loc + tril y to a flow without one.

    Location and scale are trained directly, not as a correction to a fixed start: the start of a guide is random, and
    the same parameters must define the same posterior in another guide.
    """
    outer = eqx.tree_at(
        lambda affine: (affine.shift, affine.log_diagonal, affine.lower),
        TriangularAffine(jnp.zeros_like(loc), jnp.eye(loc.shape[0], dtype=loc.dtype)),
        (loc, jnp.log(jnp.diagonal(tril)), tril),
    )
    return eqx.tree_at(lambda flow: flow.outer, core, outer, is_leaf=lambda leaf: leaf is None)
