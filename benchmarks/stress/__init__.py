"""Stress targets: posteriors with one difficulty each, taken to the point where approximations break."""

from benchmarks.stress.catalogue import STRESS

__all__ = ["STRESS"]
