"""Evaluation mode for the modules inside a NumPyro model: no dropout, running statistics for batch norm."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

# Names of the argument of a model function that selects training mode.
TRAINING_ARGUMENTS = ("training", "train", "is_training")
# Attributes of flax layers that are true in evaluation mode.
_FLAGS = ("deterministic", "use_running_average")


def inference_mode(value: PyTree) -> PyTree:
    """Set the `inference` flags of an equinox module, including those replaced by None in `eqx.partition`."""

    def flags(tree: PyTree) -> list:
        layers = jax.tree.leaves(tree, is_leaf=lambda node: hasattr(node, "inference"))
        return [layer.inference for layer in layers if hasattr(layer, "inference")]

    if not isinstance(value, eqx.Module) or not flags(value):
        return value
    return eqx.tree_at(flags, value, replace_fn=lambda _: True, is_leaf=lambda node: node is None)


def with_training_argument(function: Callable, args: tuple, kwargs: dict, training: bool) -> tuple[tuple, dict]:
    """Set the argument of a model function that selects training mode, if it has one.

    In training, the user's value is kept and defaults to True. In evaluation it is False.
    """
    try:
        signature = inspect.signature(function)
        bound = signature.bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        return args, kwargs
    for name in TRAINING_ARGUMENTS:
        if name not in signature.parameters:
            continue
        is_given = name in bound.arguments
        # An argument called "train" may be something else, such as a data set.
        if not isinstance(bound.arguments[name] if is_given else signature.parameters[name].default, bool | np.bool_):
            continue
        if not (training and is_given):
            bound.arguments[name] = training
            return bound.args, bound.kwargs
    return args, kwargs


@contextmanager
def evaluation(function: Callable) -> Iterator[None]:
    """Run a model function with its flax modules in evaluation mode.

    This covers all layers of flax.linen, and modules of flax.nnx to which the function refers by a global name, a
    closure, `functools.partial` or `self`.
    """
    with ExitStack() as stack:
        linen = sys.modules.get("flax.linen")
        if linen is not None:
            stack.enter_context(linen.intercept_methods(_evaluate_linen))
        nnx = sys.modules.get("flax.nnx")
        if nnx is not None:
            for module in _find(function, nnx.Module):
                stack.enter_context(_evaluate_nnx(nnx, module))
        yield


def _evaluate_linen(call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
    layer = context.module
    flags = [flag for flag in _FLAGS if hasattr(layer, flag)]
    if context.method_name != "__call__" or not flags:
        return call(*args, **kwargs)
    bound = inspect.signature(type(layer).__call__).bind(layer, *args, **kwargs)
    before = {flag: getattr(layer, flag) for flag in flags}
    try:
        for flag in flags:
            # A layer raises an error if a flag is passed and set as an attribute; its fields are frozen.
            bound.arguments.pop(flag, None)
            object.__setattr__(layer, flag, True)
        return call(*bound.args[1:], **bound.kwargs)
    finally:
        for flag, value in before.items():
            object.__setattr__(layer, flag, value)


@contextmanager
def _evaluate_nnx(nnx: Any, module: Any) -> Iterator[None]:
    # Use vars(), because nnx does not allow changes inside a trace; flags are not arrays and are restored.
    layers = [vars(layer) for _, layer in nnx.iter_modules(module)]
    before = [(layer, flag, layer[flag]) for layer in layers for flag in _FLAGS if flag in layer]
    try:
        for layer, flag, _ in before:
            layer[flag] = True
        yield
    finally:
        for layer, flag, value in before:
            layer[flag] = value


def _find(function: Callable, kind: type) -> list[Any]:
    """Find the objects of a kind that a function refers to."""
    found: dict[int, Any] = {}
    seen: set[int] = set()

    def visit(value: Any, depth: int) -> None:
        if isinstance(value, kind):
            found[id(value)] = value
        elif depth > 0 and id(value) not in seen:
            seen.add(id(value))
            for part in _parts(value):
                visit(part, depth - 1)

    visit(function, 6)
    return list(found.values())


def _parts(value: Any) -> list[Any]:
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, list | tuple):
        return list(value)
    if isinstance(value, dict):
        return list(value.values())
    if inspect.ismethod(value):
        return [value.__func__, *vars(value.__self__).values()]
    if inspect.isfunction(value):
        if value.__module__.split(".")[0] in ("jax", "numpyro", "flax", "equinox", "numpy"):
            return []
        variables = inspect.getclosurevars(value)
        return [*variables.nonlocals.values(), *variables.globals.values()]
    # A NumPyro handler that wraps the function, or a callable object.
    return [value.__wrapped__] if hasattr(value, "__wrapped__") else []
