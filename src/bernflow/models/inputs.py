"""Data and functions as users hand them over: what is traced, what is static, what is refused."""

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
# What JAX says of calls of the host that do not say how they are vmapped.
NO_BATCHES = "vmap is only supported for the"
# What JAX says of functions that it cannot differentiate.
NO_DERIVATIVE = re.compile(
    r"do not support JVP|[Dd]ifferentiation (rule|does not work)|not (implemented|supported).*differentiation"
    r"|Can't apply (forward|reverse)-mode|cannot be differentiated",
    re.DOTALL,
)


class Opaque:
    """A static leaf that is compared by identity, for values that cannot be hashed (a data frame, say)."""

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
    """Tell whether a leaf is an array of numbers: only those are traced."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind in NUMERIC_KINDS
    return isinstance(leaf, jax.Array) and not _is_key(leaf)


def pack(tree: Any) -> Any:
    """Turn arrays into NumPy arrays and everything that cannot be hashed into an `Opaque`.

    NumPy arrays keep their 64 bits until they meet JAX, so the precision is that of the computation and not
    that of the moment when the model was built.
    """

    def one(leaf: Any) -> Any:
        if isinstance(leaf, jax.core.Tracer) or _is_key(leaf):
            return leaf
        if is_data(leaf):
            # A file mapped into memory stays one, so that its rows are read when they are needed.
            return leaf if is_mapped(leaf) else np.asarray(leaf)
        return leaf if _is_hashable(leaf) else Opaque(leaf)

    return jax.tree.map(one, tree)


def freeze(tree: Any) -> Any:
    """Make every leaf static: arrays too, by identity and exactly as they were given."""
    return jax.tree.map(
        lambda leaf: leaf if _is_key(leaf) or (_is_hashable(leaf) and not is_data(leaf)) else Opaque(leaf),
        tree,
    )


def unpack(tree: Any) -> Any:
    """Undo `pack`; arrays become JAX arrays, because a NumPy array cannot be indexed by a traced one."""

    def one(leaf: Any) -> Any:
        if isinstance(leaf, Opaque):
            return leaf.value
        return jnp.asarray(leaf) if isinstance(leaf, np.ndarray) else leaf

    return jax.tree.map(one, tree)


def bare(tree: Any) -> Any:
    """Undo `pack`, but leave NumPy arrays as they are: what is computed from them alone stays concrete under `jit`."""
    return jax.tree.map(lambda leaf: leaf.value if isinstance(leaf, Opaque) else leaf, tree)


def check_values(tree: Any, where: str, *, allow_infinite: bool = False) -> None:
    """Refuse missing values in data.

    Args:
        tree: any pytree; leaves that are not arrays of floats pass.
        where: how the user calls it, for the message.
        allow_infinite: accept infinite values (the open end of a censored interval, say).
    """
    # Stop a masked array before anything turns it into a plain one, which would revive what it hides.
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        name = where + jax.tree_util.keystr(path)
        if isinstance(leaf, np.ma.MaskedArray) and np.ma.is_masked(leaf):
            raise ModelError(
                f"{name} is a masked array with {int(np.ma.count_masked(leaf))} masked values: expected complete "
                "data. Drop or impute the masked values; otherwise what is hidden under the mask would be used."
            )
        if isinstance(leaf, jax.core.Tracer) or not (is_data(leaf) or hasattr(leaf, "__array__")):
            continue
        if is_mapped(leaf) and leaf.ndim > 0:
            _check_mapped(leaf, name, allow_infinite)
            continue
        value = np.asarray(leaf) if is_data(leaf) else _as_array(leaf)
        # ml_dtypes such as bfloat16 are floats of kind "V", which NumPy's kind does not tell.
        if value is None or not jnp.issubdtype(value.dtype, jnp.inexact):
            continue
        bad = _bad(value, allow_infinite)
        if bad.any():
            index = tuple(int(i) for i in np.argwhere(bad)[0])
            raise _missing(name, int(bad.sum()), index, value[index], allow_infinite)


def _check_mapped(values: np.ndarray, name: str, allow_infinite: bool) -> None:
    """Look for missing values block by block, so that the file is never in memory as a whole."""
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
    """Run a function of the user; errors say whose function failed and keep the original as their cause."""
    try:
        yield
    except BernflowError:
        raise
    except Exception as error:
        raise ModelError(
            f"{what} failed with {type(error).__name__}: {error}\nThe traceback of that error, shown first, ends at "
            "the line that failed."
        ) from error


@contextmanager
def compiled_code() -> Iterator[None]:
    """Run compiled functions of a model; where one fails, say so in a sentence, and keep the original as its cause."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        if "RESOURCE_EXHAUSTED" in lines[0]:
            raise ModelError(
                f"The fit needs more memory than there is: {lines[0]}\nTake batches of rows (batch_size=), fewer draws "
                "per step (num_particles=), fewer restarts, or precision='float32'."
            ) from error
        raise ModelError(
            f"The model failed while it was computed: {lines[-1]}\nThat is the last line of the error shown first. "
            "A function that the model calls on the host must work for all values of the parameters; it may return "
            "NaN where there is no density."
        ) from error
    except (ValueError, TypeError, NotImplementedError) as error:
        if isinstance(error, BernflowError):
            raise
        if NO_BATCHES in str(error):
            raise ModelError(
                "The log density calls a function on the host for one point at a time, and a fit needs many: give "
                "jax.pure_callback a vmap_method, such as 'sequential'. The error shown first ends at the line."
            ) from error
        if not NO_DERIVATIVE.search(str(error)):
            raise
        raise ModelError(
            f"The log density cannot be differentiated: {str(error).splitlines()[0]}\nA fit needs its gradient and the "
            "derivative of that. Give a function that is called on the host a derivative by jax.custom_jvp, and write "
            "loops with jax.lax.scan. The error shown first ends at the line in question."
        ) from error


def call(function: Callable, *args: Any) -> Any:
    """Call a function with as many of the arguments as it takes.

    A trailing argument that is None (data that were not given) is left out where the function has a default.
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
    """Count the positional parameters of a function; as many as anybody gives where it takes any number."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 99
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return 99
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)


def name_of(function: Callable) -> str:
    """Return how a user recognises a function."""
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
    except Exception:  # any foreign object may define __array__ and refuse; then it is not data of ours
        return None
