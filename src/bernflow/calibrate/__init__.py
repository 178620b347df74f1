"""Simulation-based calibration: does the whole of model and fit recover parameters that are known?"""

from bernflow.calibrate.api import calibrate
from bernflow.calibrate.result import Calibration

__all__ = ["Calibration", "calibrate"]
