"""Conversion of the user's model to an `AbstractModel`."""

import os
from collections.abc import Callable
from typing import Any

from bernflow.errors import ModelError
from bernflow.models.base import AbstractModel
from bernflow.models.columns import with_arrays
from bernflow.models.inputs import user_code
from bernflow.models.numpyro import NumPyroModel, TrainedSitesError
from bernflow.models.pymc import from_pymc, is_pymc
from bernflow.models.subsampling import SubsampledModel

STAN = ("stan", "cmdstanpy", "bridgestan", "pystan", "httpstan")


def as_model(model: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> AbstractModel:
    """Convert a model of any supported kind to an `AbstractModel`.

    Args:
        model: a bernflow model, a NumPyro model function, a PyMC model, or a Bambi model.
        args: positional arguments of a NumPyro model function.
        kwargs: its keyword arguments.
    """
    if isinstance(model, AbstractModel):
        if args or kwargs:
            raise ModelError(
                f"The {type(model).__name__} was given together with model arguments ({len(args)} positional, "
                f"{len(kwargs or {})} by keyword): expected none, because it already contains its data. Leave them "
                "out, or build the model with those data."
            )
        return model
    if isinstance(model, type) and issubclass(model, AbstractModel):
        raise ModelError(f"The model is the class {model.__name__} itself: expected an instance of it.")
    if is_bambi(model) or is_pymc(model):
        if args or kwargs:
            kind = "Bambi" if is_bambi(model) else "PyMC"
            advice = "It holds its data." if is_bambi(model) else "Change its data with pm.set_data."
            raise ModelError(
                f"The {kind} model was given together with model arguments ({len(args)} positional, "
                f"{len(kwargs or {})} by keyword): expected none. {advice}"
            )
        return from_pymc(_pymc_model(model) if is_bambi(model) else model)
    if is_function(model):
        return with_arrays(lambda given: _from_function(model, *given), (args, kwargs or {}))
    raise ModelError(
        f"The model is a {type(model).__module__}.{type(model).__qualname__}: expected a NumPyro model function, a "
        f"pymc.Model, a bambi.Model, a bf.Model, or the result of bf.from_log_density or bf.from_stan.{_advice(model)}"
    )


def _from_function(function: Callable, args: tuple, kwargs: dict[str, Any]) -> AbstractModel:
    try:
        return NumPyroModel(function, args, kwargs)
    except TrainedSitesError:
        pass  # handled below, so that errors do not show this one as their context
    return SubsampledModel(function, args, kwargs)


def is_bambi(model: Any) -> bool:
    """Tell whether something is a Bambi model, without importing Bambi."""
    return any(f"{kind.__module__}.{kind.__qualname__}" == "bambi.models.Model" for kind in type(model).__mro__)


def _pymc_model(model: Any) -> Any:
    """Return the PyMC model that Bambi builds from the formula and data, building it if needed."""
    with user_code("The Bambi model, built for PyMC,"):
        if not model.built:
            model.build()
        return model.backend.model


def is_function(model: Any) -> bool:
    """Tell whether something is treated as a NumPyro model function."""
    is_known = isinstance(model, type) or is_pymc(model) or is_bambi(model) or _is_foreign(model)
    return callable(model) and not is_known


def _advice(model: Any) -> str:
    if isinstance(model, str | os.PathLike) or _root(model) in STAN:
        return " Convert a Stan program with bf.from_stan(program, data=...)."
    return ""


def _is_foreign(model: Any) -> bool:
    return _root(model) in ("pymc", *STAN)


def _root(model: Any) -> str:
    return type(model).__module__.split(".")[0]
