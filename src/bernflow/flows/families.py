"""The named families: how each is built and trained, and how a saved one is rebuilt."""

from collections.abc import Callable
from dataclasses import dataclass, replace
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
from bernflow.flows.paper import VARIANTS, PaperFlow
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
        variant: the ablation of the paper's family.
    """

    dim: int
    order: int
    noise: str
    width: int
    variant: str = "f1"


# A factor is a triangular matrix or, in very many dimensions, a `LowRankFactor`.
Build = Callable[[Key[Array, ""], Spec, Float[Array, " p"], Any], AbstractFlow]


@dataclass(frozen=True)
class Family:
    """A named family.

    Attributes:
        build: builds a flow from a key, a spec, and the location and factor of the start.
        default_order: default polynomial order, or None where there is no polynomial.
        has_tails: whether the support is the whole space and the tails can be refined.
        paper_recipe: whether to train as in the paper (RMSprop, constant learning rate, ten particles, own start).
        use_start: whether to start from the mode and the curvature of the target.
        use_score: whether to train by path gradients if the flow has a score.
        cover: whether to end training with the forward KL where q has too little mass, which improves the tails.
        check: raises an error for an unsupported number of dimensions.
        one_start: the reason why only one start is possible, or None where restarts are possible.
        compiled: whether it can be built inside jit.
        mixes: whether to fit a mixture automatically where one flow is not enough.
        learning_rate: peak of the schedule, or the constant learning rate of the paper's recipe.
    """

    build: Build
    default_order: int | None
    has_tails: bool = False
    paper_recipe: bool = False
    use_start: bool = True
    use_score: bool = True
    cover: bool = True
    check: Callable[[int], None] = lambda dim: None
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


def _bernstein(key, spec, loc, factor, *, full_rank: bool = True, **structure: bool):
    if spec.dim > MAX_DIM_FULL and not structure:
        outer = _correlated(loc, factor) if full_rank else _mean_field(loc, factor)
        return WideBernsteinFlow(key, outer, order=spec.order, width=spec.width, noise=spec.noise, context=MAX_CONTEXT)
    # The score of a fully autoregressive flow needs a triangular outer map.
    inner = TriangularAffine(loc, as_factor(factor).matrix()) if full_rank else _mean_field(loc, factor)
    return BernsteinFlow(key, inner, order=spec.order, width=spec.width, noise=spec.noise, **structure)


def _rival(name: str) -> Family:
    """Return a flow of flowjax, trained by the paper's recipe."""
    return Family(
        lambda key, spec, loc, factor: external.named_flow(key, name, spec.dim),
        default_order=None,
        paper_recipe=True,
        learning_rate=PAPER_LEARNING_RATE,
        use_start=False,
        check=lambda dim: external.check_named(name, dim),
        one_start="restarts are compared by their densities at each other's draws, and flowjax cannot invert this flow"
        if name == "planar"
        else None,
        compiled=False,
    )


def _paper(key, spec, loc, factor):
    variant, _, reach = spec.variant.partition("@")
    start = {"start_range": float(reach)} if reach else {}
    return PaperFlow(key, spec.dim, order=spec.order, variant=variant, **start)


def _is_paper_variant(text: str) -> bool:
    variant, at, reach = text.partition("@")
    return variant in VARIANTS and (not at or reach.replace(".", "", 1).isdigit())


def _flowjax_family(source: Any) -> Family:
    """Return the family of one of the user's flowjax objects, whose parameters are the start."""
    return Family(
        lambda key, spec, loc, factor: external.given_flow(source),
        default_order=None,
        use_start=False,
        check=lambda dim: external.check_given(source, dim),
        one_start="all restarts would begin with the same given flow",
        compiled=False,
        # Lower than the default, because there are no path gradients, whose noise vanishes near the posterior.
        learning_rate=1e-2,
    )


FAMILIES: dict[str, Family] = {
    "bernstein": Family(_bernstein, default_order=20, has_tails=True, mixes=True),
    "bernstein-meanfield": Family(
        partial(_bernstein, full_rank=False, conditional=False), default_order=20, has_tails=True
    ),
    "bernstein-paper": Family(
        _paper,
        default_order=50,
        paper_recipe=True,
        learning_rate=PAPER_LEARNING_RATE,
        use_start=False,
    ),
    "gaussian": Family(lambda key, spec, loc, factor: LocationScale(_mean_field(loc, factor)), default_order=None),
    "gaussian-fullrank": Family(
        lambda key, spec, loc, factor: LocationScale(TriangularAffine(loc, as_factor(factor).matrix())),
        default_order=None,
        check=_check_matrix,
    ),
    "student-t": Family(
        lambda key, spec, loc, factor: LocationScale(_mean_field(loc, factor), STUDENT_DEGREES_OF_FREEDOM),
        default_order=None,
    ),
    **{name: _rival(name) for name in external.NAMES},
}

_DEFAULT = replace(FAMILIES["bernstein"], mixes=False)
# The default without one of its parts, to measure the effect of that part. `cover` needs path gradients.
ABLATIONS: dict[str, Family] = {
    "no-outer": replace(_DEFAULT, build=partial(_bernstein, full_rank=False)),
    "no-skip": replace(_DEFAULT, build=partial(_bernstein, skip=False)),
    "no-tails": replace(_DEFAULT, build=partial(_bernstein, bounded=True)),
    "no-start": replace(_DEFAULT, use_start=False),
    "no-score": replace(_DEFAULT, use_score=False, cover=False),
    "no-cover": replace(_DEFAULT, cover=False),
}


def get_family(name: Any) -> tuple[Family, str]:
    """Look up a family; ablations are written after a colon: `bernstein-paper:f2`, `bernstein:no-skip`.

    The paper does not specify the initial range of the polynomials: `bernstein-paper:f1@3` starts them on [-3, 3]
    instead of [-10, 10]. A distribution or bijection of flowjax is its own family.
    """
    if external.is_flowjax(name):
        return _flowjax_family(name), VARIANTS[0]
    base, _, variant = str(name).partition(":")
    if base == "bernstein" and variant in ABLATIONS:
        return ABLATIONS[variant], variant
    known = base in FAMILIES and (not variant or (base == "bernstein-paper" and _is_paper_variant(variant)))
    if not known:
        variants = [*(f"bernstein-paper:{v}" for v in VARIANTS[1:]), *(f"bernstein:{v}" for v in ABLATIONS)]
        every = [*FAMILIES, *variants]
        guess = nearest(str(name), every)
        raise ArgumentError(f"family={name!r} is unknown: expected one of {', '.join(every)}.{guess}")
    return FAMILIES[base], variant or VARIANTS[0]


def build(recipe: dict[str, Any]) -> AbstractDistribution:
    """Rebuild the skeleton of a saved distribution; its arrays are then replaced by the saved ones."""
    key = jax.random.key(0)
    match recipe:
        case {"kind": "mixture", "components": parts}:
            return Mixture(tuple(build(part) for part in parts), jnp.zeros(len(parts)))
        case {"kind": "bernstein-paper", "dim": dim, "order": order, "variant": variant}:
            return PaperFlow(key, dim, order=order, variant=variant)
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
            sizes["bounded"] = tuple(map(int, recipe.get("bounded", ())))
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
