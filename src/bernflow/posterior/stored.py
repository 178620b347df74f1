"""The content of a saved posterior besides its flow: draws for use without the model, and test points."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from bernflow.errors import ModelError
from bernflow.models.base import AbstractJointModel, AbstractModel, Site, Theta
from bernflow.posterior.tables import Axes
from bernflow.target import AbstractLayout

# Number of draws in a file: the default of every method, but limited by the total size.
NUM_STORED, MAX_NUMBERS, MIN_STORED = 4000, 8_000_000, 200
# Larger derived quantities are omitted from files and printed tables.
MAX_DERIVED = 1000
# Number of test points, and a bound on their total number of coordinates.
NUM_TRIED, MAX_COORDINATES = 8, 100_000
# Relative and absolute tolerances, for different rounding on other machines and single precision in networks.
TOLERANCES, TOLERANCES_OF_NETWORK = (1e-7, 1e-4), (1e-4, 1e-1)


class Roles(NamedTuple):
    """Derived quantities that are more than functions of the parameters.

    Attributes:
        predictions: names of those that are new observations.
        log_likelihood: names of those that are a pointwise log likelihood.
    """

    predictions: tuple[str, ...] = ()
    log_likelihood: tuple[str, ...] = ()


class Trial(NamedTuple):
    """The log density on R^p at some draws of the fit, to detect a model or data other than those of the fit.

    Attributes:
        x: the points, (k, p).
        log_density: the log density at the points, (k,).
    """

    x: Float[np.ndarray, "k p"]
    log_density: Float[np.ndarray, " k"]

    def difference(self, model: AbstractModel, log_density: Float[np.ndarray, " k"]) -> float | None:
        """Return the largest difference of another log density in nats; None if it is within the tolerance."""
        is_network = isinstance(model, AbstractJointModel) and model.trained()[0] is not None
        relative, absolute = TOLERANCES_OF_NETWORK if is_network else TOLERANCES
        if np.allclose(log_density, self.log_density, rtol=relative, atol=absolute, equal_nan=True):
            return None
        with np.errstate(invalid="ignore"):
            return float(np.nan_to_num(np.max(np.abs(log_density - self.log_density)), nan=np.inf))


@dataclass(frozen=True)
class Stored:
    """The content of a file besides the flow.

    Attributes:
        draws: draws on the constrained scale, parameters and derived quantities, (num, *shape) each; empty if the flow
            itself can draw all of them.
        stats: log densities of these draws, with the names of ArviZ.
        weighted: whether they are importance-resampled.
        axes: names of the axes of all quantities.
        roles: which of the derived quantities are predictions, and which a log likelihood.
        trial: the density at some points.
    """

    draws: Mapping[str, np.ndarray] = field(default_factory=dict)
    stats: Mapping[str, np.ndarray] = field(default_factory=dict)
    weighted: bool = False
    axes: Axes = field(default_factory=Axes)
    roles: Roles = field(default_factory=Roles)
    trial: Trial | None = None

    @property
    def num(self) -> int:
        """Number of draws."""
        return min((len(value) for value in self.draws.values()), default=0)

    def take(self, rows: np.ndarray) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the draws in the given rows, and their log densities."""
        draws, stats = ({name: v[rows] for name, v in group.items()} for group in (self.draws, self.stats))
        return draws, stats


class SavedLayout(AbstractLayout):
    """The layout of a posterior without its model, if only the model knows the map to the constrained scale."""

    sites: tuple[Site, ...]
    order: tuple[int, ...]
    sizes: tuple[int, ...]
    model: None = None

    def constrain(self, x: Float[Array, " p"]) -> tuple[Theta, Float[Array, ""]]:
        """Raise an error: the map is unknown."""
        raise self._missing()

    def unconstrain(self, theta: Theta) -> tuple[Float[Array, " p"], Float[Array, ""]]:
        """Raise an error: the map is unknown."""
        raise self._missing()

    def contains(self, theta: Theta) -> Bool[Array, ""]:
        """Return True: outside its support theta has no finite x."""
        return jnp.array(True)

    def log_density(self, model: AbstractModel, pieces: list[Array]) -> Float[Array, ""]:
        """Raise an error: the map is unknown."""
        raise self._missing()

    def _scales(self) -> tuple[bool, ...]:
        return (False,) * len(self.sites)

    def _missing(self) -> ModelError:
        return ModelError(
            "The map from R^p to the parameters is known only to the model, which is not in the file: pass it to "
            "bf.load(path, model=...). Without it, only the draws in the file are available."
        )


def num_stored(per_draw: int) -> int:
    """Choose the number of draws in a file, given the size of one draw."""
    return int(np.clip(MAX_NUMBERS // max(per_draw, 1), MIN_STORED, NUM_STORED))
