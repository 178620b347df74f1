"""Recognise what was handed to `fit` as a model."""

from typing import Any

from bernflow.errors import ModelError
from bernflow.models.base import AbstractModel
from bernflow.models.numpyro import NumPyroModel, TrainedSitesError
from bernflow.models.subsampling import SubsampledModel


def as_model(model: Any, args: tuple = (), kwargs: dict[str, Any] | None = None) -> AbstractModel:
    """Turn a model of any accepted kind into an `AbstractModel`.

    Args:
        model: a bernflow model, or a NumPyro model function.
        args: positional arguments of a NumPyro model function.
        kwargs: its keyword arguments.
    """
    if isinstance(model, AbstractModel):
        if args or kwargs:
            raise ModelError(
                f"The {type(model).__name__} was given together with model arguments ({len(args)} positional, "
                f"{len(kwargs or {})} by keyword): expected none, because it holds its data already. Leave them out, "
                "or build the model with those data."
            )
        return model
    if isinstance(model, type) and issubclass(model, AbstractModel):
        raise ModelError(f"The model is the class {model.__name__} itself: expected an instance of it.")
    if callable(model) and not isinstance(model, type) and not _is_foreign(model):
        try:
            return NumPyroModel(model, args, kwargs)
        except TrainedSitesError:
            pass  # built below, so that its own errors do not show this one as their context
        return SubsampledModel(model, args, kwargs)
    raise ModelError(
        f"The model is a {type(model).__module__}.{type(model).__qualname__}: expected a NumPyro model function, a "
        "bf.Model or the result of bf.from_log_density. Objects of PyMC and Stan are not supported yet."
    )


def _is_foreign(model: Any) -> bool:
    return type(model).__module__.split(".")[0] in ("pymc", "stan", "cmdstanpy", "bridgestan", "pystan")
