"""Simulation-based calibration: do model and fit recover known parameters?"""

from bernflow.calibrate.api import calibrate
from bernflow.calibrate.result import Calibration

__all__ = ["Calibration", "calibrate"]
