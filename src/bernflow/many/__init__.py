"""Many independent fits, in this process or on the workers of any executor."""

from bernflow.many.api import FitResult, map_fits

__all__ = ["FitResult", "map_fits"]
