"""Comparison of posteriors: fits, NUTS runs, ArviZ trees and dicts of draws."""

from bernflow.compare.api import compare
from bernflow.compare.models import compare_models
from bernflow.compare.result import Comparison

__all__ = ["Comparison", "compare", "compare_models"]
