"""Families and options of `bernflow.fit` by JSON values: ablations of the default, starts of the paper's flow."""

import functools
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

import bernflow as bf
from bernflow.flows import FAMILIES, build_bernstein, build_paper

_DEFAULT = replace(FAMILIES["bernstein"], mixes=False)
# The default without one of its parts, to measure the effect of that part. `cover` needs path gradients.
_ABLATIONS = (
    replace(_DEFAULT, name="bernstein:no-outer", build=functools.partial(build_bernstein, full_rank=False)),
    replace(_DEFAULT, name="bernstein:no-skip", build=functools.partial(build_bernstein, skip=False)),
    replace(_DEFAULT, name="bernstein:no-tails", build=functools.partial(build_bernstein, bounded=True)),
    replace(_DEFAULT, name="bernstein:no-start", use_start=False),
    replace(_DEFAULT, name="bernstein:no-score", use_score=False, cover=False),
    replace(_DEFAULT, name="bernstein:no-cover", cover=False),
)
ABLATIONS = {family.name: family for family in _ABLATIONS}
PAPER = "bernstein-paper"
# The transformations of the paper's appendix, all by its text; the first is the one that the paper chose.
VARIANTS = ("f1", "f2", "f3")
TEXT = f"{PAPER}:{VARIANTS[0]}"
# Order M has M + 1 coefficients in the text, and M = 50 is what it says.
ORDER_OF_TEXT = 50
# The published code of the experiments with one parameter trains the inner affine map, as the text has it, and begins
# with M + 1 coefficients on a line from -5 to 5.
ONE_DIMENSIONAL = f"{TEXT}@5"
OPTIONS = tuple(field.name for field in fields(bf.Training))


@functools.cache  # one object per name: compiled functions know a family by its object
def family_named(name: str) -> bf.Family:
    """Return a family of the library, an ablation, or a variant of the paper's flow.

    "bernstein-paper" is the recipe of the published scripts, "bernstein-paper:f1" that of the text, which does not say
    where the polynomials start: there, as in the scripts; "bernstein-paper:f1@3" starts them on a line over [-3, 3].
    """
    if name in FAMILIES:
        return FAMILIES[name]
    if name in ABLATIONS:
        return ABLATIONS[name]
    base, _, options = name.partition(":")
    variant, at, reach = options.partition("@")
    if base != PAPER or variant not in VARIANTS:
        raise ValueError(f"The family {name!r} is unknown: expected one of {', '.join([*FAMILIES, *ABLATIONS])}.")
    start = {"start_range": float(reach)} if at else {}
    build = functools.partial(build_paper, variant=variant, **start)
    return replace(FAMILIES[PAPER], name=name, build=build, default_order=ORDER_OF_TEXT)


def fit_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `bernflow.fit` for flat settings such as {"family": "bernstein:no-skip", "order": 50}."""
    options = dict(settings)
    training = bf.Training(**{name: options.pop(name) for name in OPTIONS if name in options})
    if "family" in options:
        options["family"] = family_named(options["family"])
    return {**options, "training": training}
