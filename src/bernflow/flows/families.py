"""Families of flows: how each is built and trained, and how a saved one is rebuilt."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from bernflow.errors import ArgumentError, FileFormatError
from bernflow.flows import external
from bernflow.flows.affine import Affine, DiagonalAffine, LowRankAffine, TriangularAffine
from bernflow.flows.autoregressive import BernsteinFlow
from bernflow.flows.base import AbstractDistribution, AbstractFlow
from bernflow.flows.factors import BORDER, LowRankFactor, as_factor, unit_low_rank
from bernflow.flows.gaussian import LocationScale
from bernflow.flows.mixture import Mixture
from bernflow.flows.noise import NOISES
from bernflow.flows.paper import PaperFlow
from bernflow.flows.structure import Structure
from bernflow.flows.structured import StructuredBernsteinFlow
from bernflow.flows.views import views_from_json
from bernflow.flows.wide import WideBernsteinFlow
from bernflow.nearest import nearest

STUDENT_DEGREES_OF_FREEDOM = 5.0
PAPER_LEARNING_RATE = 1e-3
# Up to MAX_DIM_FULL dimensions each is conditioned on all before it; above, only on the first MAX_CONTEXT.
MAX_DIM_FULL = 64
MAX_CONTEXT = BORDER
# In more dimensions the matrix of a full-rank Gaussian, its gradient and the optimizer state do not fit into memory.
MAX_DIM_MATRIX = 20_000


@dataclass(frozen=True)
class Spec:
    """The sizes and options of a family.

    Attributes:
        dim: number of dimensions p.
        order: polynomial order M; ignored by families without a polynomial.
        noise: base noise of the Bernstein families.
        width: hidden units per layer of the conditioner.
        num_scales: number of positive parameters, which come first; only the paper's flow asks for it.
    """

    dim: int
    order: int
    noise: str
    width: int
    num_scales: int = 0


# A factor is a triangular matrix or, in very many dimensions, a `LowRankFactor`.
Build = Callable[[Key[Array, ""], Spec, Float[Array, " p"], Any], AbstractFlow]


def any_dim(dim: int) -> None:
    """Accept any number `dim` of dimensions."""


@dataclass(frozen=True)
class Family:
    """A family of flows, for `family=` of `bernflow.fit`: how a flow is built, and how it is trained.

    The named families are the values of `bernflow.flows.FAMILIES`. `dataclasses.replace` makes a new family of one of
    them, with a name of its own.

    Attributes:
        name: its name in messages and in `Posterior.settings`.
        build: builds a flow from a key, a spec, and the location and factor of the start.
        default_order: default polynomial order, or None without a polynomial.
        has_tails: whether the support is the whole space and the tails can be refined.
        paper_recipe: whether to train as in the paper (RMSprop, constant learning rate, ten particles, own start).
        use_start: whether to start from the mode and the curvature of the target.
        use_score: whether to train by path gradients if the flow has a score.
        cover: whether to end training with the forward KL where q has too little mass, which improves the tails.
        check: raises an error for an unsupported number of dimensions.
        one_start: the reason why only one start is possible, or None if restarts are possible.
        compiled: whether it can be built inside jit.
        mixes: whether to fit a mixture automatically if one flow is not enough.
        learning_rate: peak of the schedule, or the constant learning rate of the paper's recipe.

    Example:
        >>> import dataclasses
        >>> from bernflow.flows import FAMILIES
        >>> plain = dataclasses.replace(FAMILIES["bernstein"], name="bernstein-plain-start", use_start=False)
        >>> bf.fit(model, y, family=plain, steps=100, progress=False).settings["family"]
        'bernstein-plain-start'
    """

    name: str
    build: Build
    default_order: int | None = None
    has_tails: bool = False
    paper_recipe: bool = False
    use_start: bool = True
    use_score: bool = True
    cover: bool = True
    check: Callable[[int], None] = any_dim
    one_start: str | None = None
    compiled: bool = True
    mixes: bool = False
    learning_rate: float = 2e-2


def _mean_field(loc: Float[Array, " p"], factor: Any) -> DiagonalAffine:
    """Start a mean-field family from the conditional scales, the optimum of the reverse KL for a Gaussian."""
    return DiagonalAffine(loc, as_factor(factor).conditional_scales())


def _correlated(loc: Float[Array, " p"], factor: Any) -> TriangularAffine | LowRankAffine:
    return LowRankAffine(loc, factor) if isinstance(factor, LowRankFactor) else TriangularAffine(loc, factor)


def _check_matrix(dim: int) -> None:
    if dim > MAX_DIM_MATRIX:
        raise ArgumentError(
            f"family='gaussian-fullrank' trains a matrix of {dim:,} rows and columns, which does not fit into memory: "
            f"expected at most {MAX_DIM_MATRIX:,} dimensions. Use 'bernstein', whose memory is linear in the number of "
            "dimensions, or 'gaussian'."
        )


def build_bernstein(key, spec, loc, factor, *, full_rank: bool = True, **structure: bool):
    """Build the default flow; options leave out a part of it: the full-rank outer map, or see `BernsteinFlow`."""
    if spec.dim > MAX_DIM_FULL and not structure:
        outer = _correlated(loc, factor) if full_rank else _mean_field(loc, factor)
        return WideBernsteinFlow(key, outer, order=spec.order, width=spec.width, noise=spec.noise, context=MAX_CONTEXT)
    # The score of a fully autoregressive flow needs a triangular outer map.
    inner = TriangularAffine(loc, as_factor(factor).matrix()) if full_rank else _mean_field(loc, factor)
    return BernsteinFlow(key, inner, order=spec.order, width=spec.width, noise=spec.noise, **structure)


def build_paper(key, spec, loc, factor, **options: Any):
    """Build the paper's flow; options are those of `PaperFlow`."""
    return PaperFlow(key, spec.dim, order=spec.order, num_scales=spec.num_scales, **options)


def _rival(name: str) -> Family:
    """Return a flow of flowjax, trained by the paper's recipe."""
    return Family(
        name,
        lambda key, spec, loc, factor: external.named_flow(key, name, spec.dim),
        paper_recipe=True,
        learning_rate=PAPER_LEARNING_RATE,
        use_start=False,
        check=lambda dim: external.check_named(name, dim),
        one_start="restarts are compared by their densities at each other's draws, and flowjax cannot invert this flow"
        if name == "planar"
        else None,
        compiled=False,
    )


def _flowjax_family(source: Any) -> Family:
    """Return the family of one of the user's flowjax objects, whose parameters are the start."""
    return Family(
        external.given_name(source),
        lambda key, spec, loc, factor: external.given_flow(source),
        use_start=False,
        check=lambda dim: external.check_given(source, dim),
        one_start="all restarts would begin with the same given flow",
        compiled=False,
        # Lower than the default, because there are no path gradients, whose noise vanishes near the posterior.
        learning_rate=1e-2,
    )


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        Family("bernstein", build_bernstein, default_order=20, has_tails=True, mixes=True),
        Family(
            "bernstein-meanfield",
            partial(build_bernstein, full_rank=False, conditional=False),
            default_order=20,
            has_tails=True,
        ),
        Family(
            "bernstein-paper",
            build_paper,
            default_order=49,  # M = 50 counts coefficients in the published scripts
            paper_recipe=True,
            learning_rate=PAPER_LEARNING_RATE,
            use_start=False,
        ),
        Family("gaussian", lambda key, spec, loc, factor: LocationScale(_mean_field(loc, factor))),
        Family(
            "gaussian-fullrank",
            lambda key, spec, loc, factor: LocationScale(TriangularAffine(loc, as_factor(factor).matrix())),
            check=_check_matrix,
        ),
        Family(
            "student-t",
            lambda key, spec, loc, factor: LocationScale(_mean_field(loc, factor), STUDENT_DEGREES_OF_FREEDOM),
        ),
        *map(_rival, external.NAMES),
    )
}


def get_family(family: Any) -> Family:
    """Return a family by its name, or as it was given: a `Family`, or a distribution or bijection of flowjax."""
    if isinstance(family, Family):
        if FAMILIES.get(family.name, family) is not family:
            raise ArgumentError(
                f"family: its name {family.name!r} is that of another family: expected a name of its own, as by "
                "dataclasses.replace(family, name='mine')."
            )
        return family
    if external.is_flowjax(family):
        return _flowjax_family(family)
    if isinstance(family, str) and family in FAMILIES:
        return FAMILIES[family]
    message = f"family={family!r} is unknown: expected one of {', '.join(FAMILIES)}, a bf.Family, or a flow of flowjax."
    if isinstance(family, str) and family.partition(":")[0] in FAMILIES:
        message += (
            " Options of a family are no longer written after a colon: give a bf.Family. Those of the experiments are "
            "in benchmarks/families.py of the repository."
        )
    else:
        message += nearest(str(family), FAMILIES)
    raise ArgumentError(message)


def build(recipe: dict[str, Any]) -> AbstractDistribution:
    """Rebuild the skeleton of a saved distribution; its arrays are then replaced by the saved ones."""
    key = jax.random.key(0)
    match recipe:
        case {"kind": "mixture", "components": parts}:
            return Mixture(tuple(build(part) for part in parts), jnp.zeros(len(parts)))
        case {"kind": "bernstein-paper", "dim": dim, "order": order, "variant": variant}:
            return PaperFlow(key, dim, order=order, variant=variant, num_scales=recipe.get("num_scales", 0))
        case {"kind": "flowjax", "name": name, "dim": dim} if name in external.NAMES:
            return external.named_flow(key, name, dim)
        case {"kind": "location-scale", "degrees_of_freedom": nu}:
            return LocationScale(_skeleton(recipe), nu)
        case {"kind": "bernstein-wide", "order": order, "noise": noise, "width": width, "context": context} if (
            noise in NOISES
        ):
            sizes = {"order": order, "width": width, "noise": noise, "context": context}
            return WideBernsteinFlow(key, _skeleton(recipe), rotated=recipe.get("rotated", False), **sizes)
        case {"kind": "bernstein-structured", "order": order, "noise": noise, "width": width} if noise in NOISES:
            structure = Structure.from_json(recipe)
            num = structure.num_leaders
            sizes = {"order": order, "width": width, "noise": noise, "views": views_from_json(recipe, num)}
            sizes |= {
                "bounded": tuple(map(int, recipe.get("bounded", ()))),
                "num_neighbors": int(recipe.get("num_neighbors", 0)),
            }
            return StructuredBernsteinFlow(key, structure, jnp.zeros(num), jnp.eye(num), **sizes)
        case {"kind": "bernstein", "order": order, "noise": noise, "width": width, "skip": skip} if (
            noise in NOISES and recipe["outer"] != "low-rank"
        ):
            flow = {"order": order, "noise": noise, "width": width, "skip": skip, "conditional": width > 0}
            return BernsteinFlow(key, _skeleton(recipe), bounded=recipe.get("bounded", False), **flow)
    raise FileFormatError(f"The file describes a distribution that this version does not know: {recipe!r}.")


def _skeleton(recipe: dict[str, Any]) -> Affine:
    loc = jnp.zeros(recipe["dim"])
    match recipe:
        case {"outer": "diagonal"}:
            return DiagonalAffine(loc, jnp.ones_like(loc))
        case {"outer": "low-rank", "dim": dim, "border": border, "rank": rank}:
            return LowRankAffine(loc, unit_low_rank(dim, border, rank, jnp))
    return TriangularAffine(loc, jnp.eye(recipe["dim"]))
