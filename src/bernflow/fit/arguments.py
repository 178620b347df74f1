"""Keyword arguments of `fit` and `load`: which are options, which go to the model, and which are misspelt."""

import inspect
from collections.abc import Mapping
from typing import Any

from bernflow.errors import ArgumentError, UnknownArgumentError
from bernflow.models.base import AbstractModel
from bernflow.models.convert import is_function
from bernflow.models.inputs import name_of
from bernflow.moved import INTO_TRAINING, moved_error
from bernflow.nearest import nearest

Parameters = Mapping[str, inspect.Parameter]


def model_arguments(
    call: str,
    options: tuple[str, ...],
    model: Any,
    model_args: tuple,
    model_kwargs: dict[str, Any] | None,
    keywords: dict[str, Any],
) -> dict[str, Any]:
    """Return the keyword arguments of the model; refuse those that neither it nor bernflow knows.

    Args:
        call: what was called, for messages.
        options: the names that `call` takes itself.
        model: what was given as a model; only a function takes arguments.
        model_args: its positional arguments.
        model_kwargs: what was given under that name.
        keywords: what else was given by keyword.
    """
    if model_kwargs is not None and not isinstance(model_kwargs, dict):
        raise ArgumentError(f"model_kwargs={model_kwargs!r}: expected a dict of keyword arguments for the model.")
    given = dict(model_kwargs or {})
    twice = sorted(given.keys() & keywords.keys())
    if twice:
        raise ArgumentError(f"{call} got {', '.join(map(repr, twice))} by keyword and in model_kwargs: give each once.")
    takes, takes_any = _parameters(model)
    old = {name: value for name, value in keywords.items() if name in INTO_TRAINING and name not in takes}
    if old and "training" in options:
        error = moved_error(call, INTO_TRAINING, old)
        also = f" If the model function takes it, pass model_kwargs={{{next(iter(old))!r}: ...}}." if takes_any else ""
        raise UnknownArgumentError(f"{error}{also}")
    for name in keywords:
        guess = nearest(name, [*options, *takes])
        if takes_any and nearest(name, options):
            raise UnknownArgumentError(
                f"{call} got an unexpected keyword argument {name!r}.{nearest(name, options)} If it is meant for the "
                f"model function, which takes any keyword, pass model_kwargs={{{name!r}: ...}}."
            )
        if not takes_any and name not in takes:
            raise UnknownArgumentError(
                f"{call} got an unexpected keyword argument {name!r}: it is neither an option of {call} nor an "
                f"argument of {_describe(model, takes)}.{guess}"
            )
    result = {**given, **keywords}
    _check_clashes(call, options, takes, model_args, result)
    return result


def _parameters(model: Any) -> tuple[Parameters, bool]:
    """Return the parameters that a model takes by keyword, and whether it takes any others."""
    if isinstance(model, AbstractModel) or not is_function(model):
        return {}, False
    try:
        parameters = inspect.signature(model).parameters
    except (TypeError, ValueError):  # some callables have no signature
        return {}, True
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    named = {name: p for name, p in parameters.items() if p.kind in kinds}
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _check_clashes(
    call: str, options: tuple[str, ...], takes: Parameters, model_args: tuple, given: dict[str, Any]
) -> None:
    """Say so where an argument that the model needs has the name of an option, which would never reach it."""
    by_place = [name for name, p in takes.items() if p.kind is p.POSITIONAL_OR_KEYWORD][: len(model_args)]
    missing = [name for name, p in takes.items() if p.default is p.empty and name not in (*by_place, *given)]
    clash = [name for name in missing if name in options]
    if clash:
        shown = ", ".join(f"{name!r}: ..." for name in clash)
        raise ArgumentError(
            f"The model function needs {', '.join(map(repr, clash))}, which {call} takes as its own option: pass "
            f"model_kwargs={{{shown}}}."
        )


def _describe(model: Any, takes: Parameters) -> str:
    if not is_function(model) or isinstance(model, AbstractModel):
        return f"the {type(model).__name__}, which holds its data already"
    return f"the model function {name_of(model)}({', '.join(takes)})"
