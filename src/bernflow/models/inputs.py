"""User data and functions: which arguments are traced, static or invalid, and errors in user code."""

import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bernflow.errors import BernflowError, ModelError
from bernflow.models.mapped import is_mapped, row_blocks

NUMERIC_KINDS = "biufc"
# Error message of JAX for host callbacks without a vmap_method.
NO_BATCHES = "vmap is only supported for the"
# Error messages of JAX for functions that it cannot differentiate.
NO_DERIVATIVE = re.compile(
    r"do not support JVP|[Dd]ifferentiation (rule|does not work)|not (implemented|supported).*differentiation"
    r"|Can't apply (forward|reverse)-mode|cannot be differentiated",
    re.DOTALL,
)


class Opaque:
    """A static leaf that is compared by identity, for values that cannot be hashed, such as a data frame."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and self.value is other.value

    def __repr__(self) -> str:
        return f"Opaque({type(self.value).__name__})"


def is_data(leaf: Any) -> bool:
    """Tell whether a leaf is a numeric array; only those are traced."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind in NUMERIC_KINDS
    return isinstance(leaf, jax.Array) and not _is_key(leaf)


def pack(tree: Any) -> Any:
    """Convert arrays to NumPy arrays and wrap leaves that cannot be hashed in `Opaque`.

    NumPy arrays keep their 64 bits until JAX uses them, so that the precision is that of the computation and not the
    one in use when the model was built.
    """

    def one(leaf: Any) -> Any:
        if isinstance(leaf, jax.core.Tracer) or _is_key(leaf):
            return leaf
        if is_data(leaf):
            # Keep a memory-mapped file, so that its rows are read when needed.
            return leaf if is_mapped(leaf) else np.asarray(leaf)
        return leaf if _is_hashable(leaf) else Opaque(leaf)

    return jax.tree.map(one, tree)


def freeze(tree: Any) -> Any:
    """Make every leaf static, including arrays, which are compared by identity."""
    return jax.tree.map(
        lambda leaf: leaf if _is_key(leaf) or (_is_hashable(leaf) and not is_data(leaf)) else Opaque(leaf),
        tree,
    )


def unpack(tree: Any) -> Any:
    """Invert `pack`; arrays become JAX arrays, because NumPy arrays cannot be indexed by traced arrays."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Opaque):
            return leaf.value
        return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf

    return jax.tree.map(one, tree)


def bare(tree: Any) -> Any:
    """Invert `pack` but keep NumPy arrays, so that values computed from them alone are concrete under `jit`."""
    return jax.tree.map(lambda leaf: leaf.value if isinstance(leaf, Opaque) else leaf, tree)


def check_values(tree: Any, where: str, *, allow_infinite: bool = False) -> None:
    """Raise an error for missing values in data.

    Args:
        tree: any pytree; only floating-point arrays are checked.
        where: the user's name for it, for the message.
        allow_infinite: accept infinite values, such as the open end of a censored interval.
    """
    # Check masked arrays before a conversion to plain ones exposes their masked values.
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = where + jax.tree_util.keystr(path)
        if isinstance(leaf, np.ma.MaskedArray) and np.ma.is_masked(leaf):
            raise ModelError(
                f"{name} is a masked array with {int(np.ma.count_masked(leaf))} masked values: expected complete "
                "data. Drop or impute the masked values."
            )
        if isinstance(leaf, jax.core.Tracer) or not (is_data(leaf) or hasattr(leaf, "__array__")):
            continue
        if is_mapped(leaf) and leaf.ndim > 0:
            _check_mapped(leaf, name, allow_infinite)
            continue
        value = np.asarray(leaf) if is_data(leaf) else _as_array(leaf)
        # NumPy reports the kind "V" for the floats of ml_dtypes, such as bfloat16.
        if value is None or not jnp.issubdtype(value.dtype, jnp.inexact):
            continue
        bad = _bad(value, allow_infinite)
        if bad.any():
            index = tuple(int(i) for i in np.argwhere(bad)[0])
            raise _missing(name, int(bad.sum()), index, value[index], allow_infinite)


def _check_mapped(values: np.ndarray, name: str, allow_infinite: bool) -> None:
    """Look for missing values in blocks, so that the file is never in memory as a whole."""
    if not jnp.issubdtype(values.dtype, jnp.inexact):
        return
    total, first = 0, None
    for start, block in row_blocks(values, len(values)):
        bad = _bad(block, allow_infinite)
        total += int(bad.sum())
        if first is None and bad.any():
            place = np.argwhere(bad)[0]
            first = (start + int(place[0]), *(int(i) for i in place[1:]))
    if first is not None:
        raise _missing(name, total, first, values[first], allow_infinite)


def _bad(values: np.ndarray, allow_infinite: bool) -> np.ndarray:
    return np.isnan(values) if allow_infinite else ~np.isfinite(values)


def _missing(name: str, num: int, index: tuple[int, ...], value: Any, allow_infinite: bool) -> ModelError:
    kind = "NaN" if allow_infinite else "NaN or infinite"
    return ModelError(
        f"{name} has {num} {kind} values, the first at index {index} ({value}): expected finite numbers. Drop or "
        "impute them before the fit."
    )


@contextmanager
def user_code(what: str) -> Iterator[None]:
    """Run user code; errors name the function that failed, with the original error as their cause."""
    try:
        yield
    except BernflowError:
        raise
    except Exception as error:
        raise ModelError(
            f"{what} failed with {type(error).__name__}: {error}\nThe traceback of that error, shown above, ends at "
            "the line that failed."
        ) from error


@contextmanager
def compiled_code() -> Iterator[None]:
    """Run compiled functions of a model; errors are explained, with the original error as their cause."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        if "RESOURCE_EXHAUSTED" in lines[0]:
            raise ModelError(
                f"The fit needs more memory than is available: {lines[0]}\nUse minibatches (batch_size=), fewer "
                "restarts, or fewer draws per step in single precision: training=bf.Training(num_particles=8, "
                "precision='float32')."
            ) from error
        raise ModelError(
            f"The model failed while it was computed: {lines[-1]}\nThat is the last line of the error shown above. "
            "A function that the model calls on the host must accept all values of the parameters; it may return NaN "
            "where the density is undefined."
        ) from error
    except (ValueError, TypeError, NotImplementedError) as error:
        if isinstance(error, BernflowError):
            raise
        if NO_BATCHES in str(error):
            raise ModelError(
                "The log density calls a function on the host for one point at a time, but a fit evaluates many: give "
                "jax.pure_callback a vmap_method, such as 'sequential'. The error shown above ends at the line."
            ) from error
        if not NO_DERIVATIVE.search(str(error)):
            raise
        raise ModelError(
            f"The log density cannot be differentiated: {str(error).splitlines()[0]}\nA fit needs its first and second "
            "derivatives. Use jax.custom_jvp for functions that are called on the host, and jax.lax.scan for loops. "
            "The error shown above ends at the line in question."
        ) from error


def call(function: Callable, *args: Any) -> Any:
    """Call a function with as many of the arguments as it takes.

    Trailing arguments that are None (no data) are omitted if the function has a default.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # builtins and some extension types have no signature
        return function(*args)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return function(*args)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = sum(p.default is p.empty for p in positional)
    count = min(len(positional), len(args))
    while count > required and args[count - 1] is None:
        count -= 1
    return function(*args[:count])


def num_positional(function: Callable) -> int:
    """Count the positional parameters of a function; a large number if it takes any number."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 99
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 99
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def name_of(function: Callable) -> str:
    """Return the name of a function, for messages."""
    return getattr(function, "__name__", type(function).__name__)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _is_hashable(leaf: Any) -> bool:
    try:
        hash(leaf)
    except TypeError:
        return False
    return True


def _as_array(leaf: Any) -> np.ndarray | None:
    try:
        return np.asarray(leaf)
    except Exception:  # foreign objects may define __array__ and raise; then they are not data
        return None
