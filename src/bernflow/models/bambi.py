"""Bambi models, which Bambi converts to PyMC models."""

from typing import Any

from bernflow.models.inputs import user_code


def is_bambi(model: Any) -> bool:
    """Tell whether something is a Bambi model, without importing Bambi."""
    return any(f"{kind.__module__}.{kind.__qualname__}" == "bambi.models.Model" for kind in type(model).__mro__)


def pymc_model(model: Any) -> Any:
    """Return the PyMC model that Bambi builds from the formula and data, building it if needed."""
    with user_code("The Bambi model, built for PyMC,"):
        if not model.built:
            model.build()
        return model.backend.model
