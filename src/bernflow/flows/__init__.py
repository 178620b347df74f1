"""Trainable distributions on R^p."""

from bernflow.flows.base import AbstractDistribution, AbstractFlow, AbstractScoredFlow
from bernflow.flows.families import FAMILIES

__all__ = ["FAMILIES", "AbstractDistribution", "AbstractFlow", "AbstractScoredFlow"]
