"""The named families: what each is made of, how it starts, and how a saved one is rebuilt."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from bernflow.errors import ArgumentError, FileFormatError
from bernflow.flows.affine import DiagonalAffine, TriangularAffine
from bernflow.flows.autoregressive import BernsteinFlow
from bernflow.flows.base import AbstractDistribution, AbstractFlow
from bernflow.flows.gaussian import LocationScale
from bernflow.flows.mixture import Mixture
from bernflow.flows.noise import NOISES
from bernflow.flows.paper import VARIANTS, PaperFlow

STUDENT_DEGREES_OF_FREEDOM = 5.0


@dataclass(frozen=True)
class Spec:
    """What a user may choose of a family.

    Attributes:
        dim: number of dimensions p.
        order: polynomial order M; ignored by families without a polynomial.
        noise: base noise of the Bernstein families.
        width: hidden units per layer of the conditioner.
        variant: the ablation of the paper's family.
    """

    dim: int
    order: int
    noise: str
    width: int
    variant: str = "f1"


Build = Callable[[Key[Array, ""], Spec, Float[Array, " p"], Float[Array, "p p"]], AbstractFlow]


@dataclass(frozen=True)
class Family:
    """A named family.

    Attributes:
        build: makes a flow from a key, a spec and the start's location and triangular factor.
        default_order: polynomial order when the user chose none, or None where there is no polynomial.
        has_tails: its support is the whole space and its tails are worth polishing.
        paper_recipe: trained as in the paper (RMSprop, constant rate, ten particles).
    """

    build: Build
    default_order: int | None
    has_tails: bool = False
    paper_recipe: bool = False


def _mean_field(loc: Float[Array, " p"], tril: Float[Array, "p p"]) -> DiagonalAffine:
    """Start a mean-field family from the conditional scales, which is where reverse KL ends for a Gaussian."""
    inverse = jax.scipy.linalg.solve_triangular(tril, jnp.eye(loc.shape[0], dtype=loc.dtype), lower=True)
    return DiagonalAffine(loc, 1.0 / jnp.linalg.norm(inverse, axis=0))


def _bernstein(key, spec, loc, tril):
    return BernsteinFlow(key, TriangularAffine(loc, tril), order=spec.order, width=spec.width, noise=spec.noise)


def _bernstein_mean_field(key, spec, loc, tril):
    outer = _mean_field(loc, tril)
    return BernsteinFlow(key, outer, order=spec.order, width=spec.width, noise=spec.noise, conditional=False)


FAMILIES: dict[str, Family] = {
    "bernstein": Family(_bernstein, default_order=20, has_tails=True),
    "bernstein-meanfield": Family(_bernstein_mean_field, default_order=20, has_tails=True),
    "bernstein-paper": Family(
        lambda key, spec, loc, tril: PaperFlow(key, spec.dim, order=spec.order, variant=spec.variant),
        default_order=50,
        paper_recipe=True,
    ),
    "gaussian": Family(lambda key, spec, loc, tril: LocationScale(_mean_field(loc, tril)), default_order=None),
    "gaussian-fullrank": Family(
        lambda key, spec, loc, tril: LocationScale(TriangularAffine(loc, tril)), default_order=None
    ),
    "student-t": Family(
        lambda key, spec, loc, tril: LocationScale(_mean_field(loc, tril), STUDENT_DEGREES_OF_FREEDOM),
        default_order=None,
    ),
}


def get_family(name: str) -> tuple[Family, str]:
    """Look a family up; the paper's ablations are written `bernstein-paper:f2` and `bernstein-paper:f3`."""
    base, _, variant = str(name).partition(":")
    known = base in FAMILIES and (not variant or (base == "bernstein-paper" and variant in VARIANTS))
    if not known:
        choices = ", ".join([*FAMILIES, "bernstein-paper:f2", "bernstein-paper:f3"])
        raise ArgumentError(f"family={name!r} is unknown: expected one of {choices}.")
    return FAMILIES[base], variant or "f1"


def build(recipe: dict[str, Any]) -> AbstractDistribution:
    """Rebuild the skeleton of a saved distribution; its arrays are then replaced by the saved ones."""
    key = jax.random.key(0)
    match recipe:
        case {"kind": "mixture", "components": parts}:
            return Mixture(tuple(build(part) for part in parts), jnp.zeros(len(parts)))
        case {"kind": "bernstein-paper", "dim": dim, "order": order, "variant": variant}:
            return PaperFlow(key, dim, order=order, variant=variant)
        case {"kind": "location-scale", "degrees_of_freedom": nu}:
            return LocationScale(_skeleton(recipe), nu)
        case {"kind": "bernstein", "order": order, "noise": noise, "width": width, "skip": skip} if noise in NOISES:
            flow = {"order": order, "noise": noise, "width": width, "skip": skip, "conditional": width > 0}
            return BernsteinFlow(key, _skeleton(recipe), **flow)
    raise FileFormatError(f"The file describes a distribution that this version does not know: {recipe!r}.")


def _skeleton(recipe: dict[str, Any]) -> TriangularAffine | DiagonalAffine:
    loc = jnp.zeros(recipe["dim"])
    if recipe["outer"] == "diagonal":
        return DiagonalAffine(loc, jnp.ones_like(loc))
    return TriangularAffine(loc, jnp.eye(recipe["dim"]))
