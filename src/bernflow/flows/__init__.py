"""Trainable distributions on R^p, and the families that `bernflow.fit` takes."""

from bernflow.flows.base import AbstractDistribution, AbstractFlow, AbstractScoredFlow
from bernflow.flows.families import FAMILIES, Family, Spec, build_bernstein, build_paper

__all__ = [
    "FAMILIES",
    "AbstractDistribution",
    "AbstractFlow",
    "AbstractScoredFlow",
    "Family",
    "Spec",
    "build_bernstein",
    "build_paper",
]
