"""Programs that the user compiled with BridgeStan, called from Python row by row."""

import hashlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from bernflow.errors import BernflowError
from bernflow.models.stan.instance import Operation

METHODS = (
    "param_names",
    "param_unc_names",
    "param_unc_num",
    "log_density",
    "log_density_gradient",
    "param_constrain",
    "param_unconstrain",
    "new_rng",
)


class BridgeEngine:
    """Evaluates BridgeStan models, which are identified by handles."""

    name = "bridgestan"
    target = None

    def __init__(self) -> None:
        self._models: dict[int, Any] = {}
        self._messages: dict[int, str] = {}
        self._numbers = itertools.count(1)
        # Threads share one autodiff tape in models compiled without STAN_THREADS.
        self._lock = threading.Lock()

    def new(self, model: Any) -> int:
        """Register a model; return its handle."""
        handle = next(self._numbers)
        self._models[handle] = model
        return handle

    def free(self, handle: int) -> None:
        """Release a model."""
        self._models.pop(handle, None)
        self._messages.pop(handle, None)

    def names(self, handle: int, which: int) -> list[str]:
        """Return names of components: 0 parameters, 1 with transformed ones, 2 with generated quantities, 3 on R^p."""
        model = self._models[handle]
        if which == 3:
            return list(model.param_unc_names())
        return list(model.param_names(include_tp=which >= 1, include_gq=which >= 2))

    def message(self, handle: int) -> str:
        """Return the message of the last evaluation that failed."""
        return self._messages.get(handle, "")

    def evaluate(
        self, operation: int, handles: np.ndarray, rows: np.ndarray, keys: np.ndarray, num_out: int
    ) -> np.ndarray:
        """Evaluate an operation on rows, (num, n) -> (num, num_out)."""
        out = np.empty((len(rows), num_out))
        compute = _OPERATIONS[Operation(operation)]
        on_failure = np.full(num_out, np.nan)
        if operation in (Operation.VALUE, Operation.GRADIENT):
            on_failure[:] = 0.0
            on_failure[0] = -np.inf
        with self._lock:
            for i, (handle, row) in enumerate(zip(handles, np.asarray(rows, np.float64), strict=True)):
                if int(handle) not in self._models:
                    raise BernflowError(
                        "The Stan model was freed together with its Python object: keep a reference to the model as "
                        "long as functions use it."
                    )
                try:
                    out[i] = compute(self._models[int(handle)], row, keys[i] if keys.size else keys, num_out)
                except RuntimeError as error:  # BridgeStan raises it for every exception of a program
                    self._messages[int(handle)] = str(error)
                    out[i] = on_failure
                if np.isneginf(on_failure[0]) and not out[i, 0] > -np.inf:
                    out[i] = on_failure
        return out


ENGINE = BridgeEngine()


def is_bridgestan(model: Any) -> bool:
    """Tell whether an object has the methods of a bridgestan.StanModel."""
    return not isinstance(model, type) and all(callable(getattr(model, method, None)) for method in METHODS)


def origin_of(model: Any) -> tuple[Any, ...]:
    """Return what BridgeStan reveals about program and data, which may be incomplete."""
    attributes = [getattr(model, name, None) for name in ("data_path", "model_data", "seed")]
    name = model.name() if callable(getattr(model, "name", None)) else None
    return tuple(value for value in (name, *attributes) if isinstance(value, str | int))


# Fourth-order finite differences; shim.cpp has a C++ version.


def difference_jacobian(f: Callable[[np.ndarray], np.ndarray], x: np.ndarray, steps: np.ndarray) -> np.ndarray:
    """Differentiate f at x, (p,) -> (n, p)."""

    def column(j: int, step: float) -> np.ndarray:
        # Take differences before weighting, so that the derivative of a constant is exactly 0.
        near, far = (f(_moved(x, j, width)) - f(_moved(x, j, -width)) for width in (step, 2.0 * step))
        return (8.0 * near - far) / (12.0 * step)

    return np.stack([column(j, step) for j, step in enumerate(steps)], axis=1)


def difference_hessian(gradient: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """Differentiate a gradient at x, with steps scaled by the curvature for invariance to units."""
    size = np.maximum(1.0, np.abs(x))
    here = gradient(x)
    probes = [_moved(x, j, 1e-7 * size[j]) for j in range(len(x))]
    curvature = np.array([abs((gradient(y)[j] - here[j]) / (y[j] - x[j])) for j, y in enumerate(probes)])
    steps = np.clip(1e-3 / np.sqrt(curvature + 1e-300), 1e-8 * size, 1e-2 * size)
    matrix = difference_jacobian(gradient, x, steps)
    return 0.5 * (matrix + matrix.T)


def _moved(x: np.ndarray, j: int, by: float) -> np.ndarray:
    y = x.copy()
    y[j] += by
    return y


def _gradient(model: Any, x: np.ndarray, jacobian: bool = True) -> tuple[float, np.ndarray]:
    value, gradient = model.log_density_gradient(x, propto=False, jacobian=jacobian)
    return float(value), np.array(gradient)


def _value(model: Any, x: np.ndarray, key: np.ndarray, num: int) -> np.ndarray:
    return np.array([model.log_density(x, propto=False, jacobian=True)])


def _value_and_gradient(model: Any, x: np.ndarray, key: np.ndarray, num: int) -> np.ndarray:
    value, gradient = _gradient(model, x)
    return np.concatenate([[value], gradient])


def _hessian(model: Any, x: np.ndarray, key: np.ndarray, num: int) -> np.ndarray:
    return difference_hessian(lambda y: _gradient(model, y)[1], x).ravel()


def _log_jacobian(model: Any, x: np.ndarray, key: np.ndarray, num: int) -> np.ndarray:
    (with_, slopes), (without, others) = (_gradient(model, x, jacobian) for jacobian in (True, False))
    return np.concatenate([[with_ - without], slopes - others])[:num]


def _constrain(model: Any, x: np.ndarray, key: np.ndarray, num: int) -> np.ndarray:
    return np.array(model.param_constrain(x))


def _constrain_slopes(model: Any, x: np.ndarray, key: np.ndarray, num: int) -> np.ndarray:
    return difference_jacobian(lambda y: np.array(model.param_constrain(y)), x, np.full(len(x), 1e-3)).ravel()


def _unconstrain(model: Any, theta: np.ndarray, key: np.ndarray, num: int) -> np.ndarray:
    return np.array(model.param_unconstrain(theta))


def _derived(model: Any, x: np.ndarray, key: np.ndarray, num: int) -> np.ndarray:
    # A pure function of x and the key: the seed is a hash of both.
    seed = int.from_bytes(hashlib.blake2b(x.tobytes() + key.tobytes(), digest_size=4).digest(), "little")
    return np.array(model.param_constrain(x, include_tp=True, include_gq=True, rng=model.new_rng(seed)))[-num:]


_OPERATIONS: dict[Operation, Callable[[Any, np.ndarray, np.ndarray, int], np.ndarray]] = {
    Operation.VALUE: _value,
    Operation.GRADIENT: _value_and_gradient,
    Operation.HESSIAN: _hessian,
    Operation.LOG_JACOBIAN: _log_jacobian,
    Operation.CONSTRAIN: _constrain,
    Operation.CONSTRAIN_SLOPES: _constrain_slopes,
    Operation.UNCONSTRAIN: _unconstrain,
    Operation.DERIVED: _derived,
}
