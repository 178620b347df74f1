"""Many independent fits, in this process or on the workers of an executor."""

from bernflow.many.api import FitResult, map_fits

__all__ = ["FitResult", "map_fits"]
