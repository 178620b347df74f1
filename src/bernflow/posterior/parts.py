"""The parts of a posterior: the fitted flow, the layout of the parameters, the model and the diagnostics."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from bernflow.diagnostics.findings import Diagnostics
from bernflow.errors import ArgumentError
from bernflow.flows.base import AbstractDistribution
from bernflow.models.base import AbstractModel
from bernflow.posterior.stored import Roles, Stored
from bernflow.posterior.structure import NamedStructure, named_structure
from bernflow.posterior.tables import Axes
from bernflow.posterior.trees import from_host, on_host
from bernflow.precision import use_precision
from bernflow.target import AbstractLayout

if TYPE_CHECKING:
    from bernflow.posterior.posterior import Posterior

# Attributes that contain JAX arrays.
_TREES = ("distribution", "layout", "model")


class PosteriorParts:
    """The parts of a `Posterior`, and properties that need no draws."""

    def __init__(
        self,
        distribution: AbstractDistribution,
        layout: AbstractLayout,
        model: AbstractModel | None,
        diagnostics: Diagnostics,
        history: Mapping[str, np.ndarray] | None = None,
        settings: Mapping[str, Any] | None = None,
        refiner: Callable[..., "Posterior"] | None = None,
        stored: Stored | None = None,
    ):
        if distribution.dim != layout.dim:
            raise ArgumentError(
                f"The distribution has {distribution.dim} dimensions and the layout {layout.dim}: expected the same."
            )
        self.distribution = distribution
        self.layout = layout
        self.model = model
        self.diagnostics = diagnostics
        self.history = {name: np.asarray(values) for name, values in (history or {}).items()}
        self.settings = dict(settings or {})
        self.stored = stored
        self._refiner = refiner

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle, with NumPy arrays, which keep their precision in any process."""
        trees = {name: on_host(getattr(self, name)) for name in _TREES}
        return {**vars(self), **trees}

    def __setstate__(self, state: dict[str, Any]) -> None:
        trees = {name: from_host(state[name]) for name in _TREES}
        vars(self).update(state | trees)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters in model order.

        Example:
            >>> post.names
            ('mu',)
        """
        return self.layout.names

    @property
    def precision(self) -> str:
        """Precision of the posterior, which is that of its arrays.

        Example:
            >>> post.precision
            'float64'
        """
        dtypes = {leaf.dtype for leaf in jax.tree.leaves(self.distribution) if hasattr(leaf, "dtype")}
        return "float64" if np.dtype("float64") in dtypes else "float32"

    @property
    def structure(self) -> NamedStructure:
        """Dependence structure: globals, and blocks of locals given them; no blocks if all are fitted together.

        Example:
            >>> post.structure
            1 global (mu), no locals
        """
        return named_structure(self.distribution, self.layout, self.axes)

    @property
    def axes(self) -> Axes:
        """Names and coordinate labels of the axes of all quantities.

        Example:
            >>> post.axes.marks("mu", ())  # a scalar has none
            []
        """
        if self.model is None:
            return self.stored.axes if self.stored is not None else Axes()
        with use_precision(self.precision):
            return Axes(self.model.dims(), self.model.coords(), self.model.first_index())

    @property
    def roles(self) -> Roles:
        """Which derived quantities are predictions, and which a pointwise log likelihood.

        Example:
            >>> post.roles
            Roles(predictions=(), log_likelihood=())
        """
        if self.model is None:
            return self.stored.roles if self.stored is not None else Roles()
        return Roles(self.model.predicted_names(), self.model.likelihood_names())
