"""Fourth-order finite differences for programs that Python calls row by row; shim.cpp has a C++ version."""

from collections.abc import Callable

import numpy as np

Function = Callable[[np.ndarray], np.ndarray]


def jacobian(f: Function, x: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Differentiate f at x, (p,) -> (n, p)."""

    def column(j: int, step: float) -> np.ndarray:
        # Take differences before weighting, so that the derivative of a constant is exactly 0.
        near, far = (f(_moved(x, j, width)) - f(_moved(x, j, -width)) for width in (step, 2.0 * step))
        return (8.0 * near - far) / (12.0 * step)

    return np.stack([column(j, step) for j, step in enumerate(steps)], axis=1)


def hessian(gradient: Function, x: np.ndarray) -> np.ndarray:
    """Differentiate a gradient at x, with steps scaled by the curvature for invariance to units."""
    size = np.maximum(1.0, np.abs(x))
    here = gradient(x)
    probes = [_moved(x, j, 1e-7 * size[j]) for j in range(len(x))]
    curvature = np.array([abs((gradient(y)[j] - here[j]) / (y[j] - x[j])) for j, y in enumerate(probes)])
    steps = np.clip(1e-3 / np.sqrt(curvature + 1e-300), 1e-8 * size, 1e-2 * size)
    matrix = jacobian(gradient, x, steps)
    return 0.5 * (matrix + matrix.T)


def _moved(x: np.ndarray, j: int, by: float) -> np.ndarray:
    y = x.copy()
    y[j] += by
    return y
