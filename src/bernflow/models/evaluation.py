"""Tell the modules inside a NumPyro model that training is over: no dropout, running statistics for batch norm."""

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

# Arguments of a model function that say whether it runs to train.
TRAINING_ARGUMENTS = ("training", "train", "is_training")
# Attributes of flax layers that are true when the layer is evaluated.
_FLAGS = ("deterministic", "use_running_average")


def inference_mode(value: PyTree) -> PyTree:
    """Set the `inference` flags of an equinox module, also where `eqx.partition` left None in their place."""

    def flags(tree: PyTree) -> list:
        layers = jax.tree.leaves(tree, is_leaf=lambda node: hasattr(node, "inference"))
        return [layer.inference for layer in layers if hasattr(layer, "inference")]

    if not isinstance(value, eqx.Module) or not flags(value):
        return value
    return eqx.tree_at(flags, value, replace_fn=lambda _: True, is_leaf=lambda node: node is None)


def with_training_argument(function: Callable, args: tuple, kwargs: dict, training: bool) -> tuple[tuple, dict]:
    """Set the argument of a model function that says whether it trains, if it has one.

    In training, what the user gave stands; it is true where nothing was given. In evaluation it is false.
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
        # Something else may be called "train", a data set for instance.
        if not isinstance(bound.arguments[name] if is_given else signature.parameters[name].default, bool | np.bool_):
            continue
        if not (training and is_given):
            bound.arguments[name] = training
            return bound.args, bound.kwargs
    return args, kwargs


@contextmanager
def evaluation(function: Callable) -> Iterator[None]:
    """Run a model function such that the flax modules inside are in evaluation mode.

    Layers of flax.linen are told whatever the model passes to them. Modules of flax.nnx are told where the function
    refers to them by a global name, a closure, `functools.partial` or `self`.
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
            # A layer refuses a flag that is given both ways; its fields are frozen.
            bound.arguments.pop(flag, None)
            object.__setattr__(layer, flag, True)
        return call(*bound.args[1:], **bound.kwargs)
    finally:
        for flag, value in before.items():
            object.__setattr__(layer, flag, value)


@contextmanager
def _evaluate_nnx(nnx: Any, module: Any) -> Iterator[None]:
    # Through vars(): nnx refuses changes of a module inside of a trace, but flags are no arrays and are set back.
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
    # A NumPyro handler around the function, or an object that can be called.
    return [value.__wrapped__] if hasattr(value, "__wrapped__") else []
