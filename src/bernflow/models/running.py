"""Thread-safe execution of NumPyro models.

The handler stack of NumPyro is global to the process. Threads that run models at the same time would apply each other's
handlers, so bernflow holds a lock whenever it runs a model function. Compiled code does not call the function and needs
no lock.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from jaxtyping import Array
from numpyro import handlers
from numpyro.infer.util import compute_log_probs

# Re-entrant, because a model function may evaluate another model.
model_lock = threading.RLock()


def run_model(function: Callable, args: tuple, kwargs: Mapping[str, Any]) -> dict[str, dict]:
    """Run a model and return its sites by name."""
    with model_lock:
        return handlers.trace(function).get_trace(*args, **kwargs)


def log_prob_terms(
    function: Callable, args: tuple, kwargs: dict[str, Any], theta: Mapping[str, Any]
) -> dict[str, Array]:
    """Run a model at theta and return the log probability of every site."""
    with model_lock:
        return compute_log_probs(function, args, kwargs, theta)[0]
