"""The thirteen posteriors: their names, sizes and programs, and how draws match the columns of the reference.

Example:
    >>> from benchmarks.posteriordb.catalogue import POSTERIORS
    >>> schools = POSTERIORS["eight_schools-eight_schools_noncentered"]
    >>> schools.columns[:2], schools.num_parameters
    (('theta[1]', 'theta[2]'), 10)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np

from benchmarks.posteriordb import numpyro_models, pymc_models
from bernflow import ArgumentError

Draws = Mapping[str, np.ndarray]
FRONT_ENDS = ("numpyro", "stan", "pymc")


@dataclass(frozen=True)
class Entry:
    """One posterior of posteriordb.

    Attributes:
        name: as posteriordb calls it, DATA-MODEL.
        num_parameters: number of unconstrained dimensions.
        shapes: the quantities that the reference draws hold, in its order, with the shape of one draw.
        numpyro: the NumPyro model; its argument is the dictionary of the data.
        pymc: builds the PyMC model from that dictionary, or None where there is no port.
        to_sites: computes the parameters of the ports from the quantities of the reference, where they differ.
    """

    name: str
    num_parameters: int
    shapes: Mapping[str, tuple[int, ...]]
    numpyro: Callable[[Mapping[str, Any]], None]
    pymc: Callable[[Mapping[str, Any]], Any] | None = None
    to_sites: Callable[[Draws], dict[str, np.ndarray]] = dict

    @property
    def data_name(self) -> str:
        """Name of the data set."""
        return self.name.split("-", 1)[0]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the scalar columns of the reference, such as `beta[1]`."""
        return tuple(column(name, i) for name, shape in self.shapes.items() for i in np.ndindex(shape))

    @property
    def front_ends(self) -> tuple[str, ...]:
        """Front ends with a port of this posterior."""
        return FRONT_ENDS if self.pymc is not None else FRONT_ENDS[:-1]

    def stan_code(self) -> str:
        """Return the Stan program."""
        file = resources.files("benchmarks.posteriordb") / "stan" / f"{self.name.split('-', 1)[1]}.stan"
        return file.read_text(encoding="utf-8")

    def to_columns(self, draws: Draws) -> dict[str, np.ndarray]:
        """Split draws of a fit into the scalar columns of the reference.

        Args:
            draws: one array of shape (..., *shape) per quantity; others are ignored.
        """
        missing = [name for name in self.shapes if name not in draws]
        if missing:
            raise ArgumentError(
                f"The draws of {self.name} lack {', '.join(missing)}: expected {', '.join(self.shapes)} among the "
                f"names, got {', '.join(draws)}."
            )
        return {
            column(name, i): np.asarray(draws[name])[(..., *i)]
            for name, shape in self.shapes.items()
            for i in np.ndindex(shape)
        }

    def from_columns(self, columns: Draws) -> dict[str, np.ndarray]:
        """Gather the columns of the reference into one array of shape (..., *shape) per parameter of the ports."""
        gathered = {}
        for name, shape in self.shapes.items():
            values = [np.asarray(columns[column(name, i)]) for i in np.ndindex(shape)]
            gathered[name] = np.stack(values, axis=-1).reshape(values[0].shape + shape)
        return self.to_sites(gathered)


def column(name: str, index: tuple[int, ...]) -> str:
    """Name one scalar as Stan does, counting from 1."""
    return f"{name}[{','.join(str(i + 1) for i in index)}]" if index else name


def _standardize(draws: Draws) -> dict[str, np.ndarray]:
    """Compute theta_trans from the effects theta of eight schools."""
    mu, tau = draws["mu"], draws["tau"]
    return {"mu": mu, "tau": tau, "theta_trans": (draws["theta"] - mu[..., None]) / tau[..., None]}


def _regression(num_coefficients: int) -> dict[str, tuple[int, ...]]:
    return {"beta": (num_coefficients,), "sigma": ()}


_N, _P = numpyro_models, pymc_models
_ALL = (
    Entry(
        "eight_schools-eight_schools_noncentered",
        10,
        {"theta": (8,), "mu": (), "tau": ()},
        _N.eight_schools_noncentered,
        _P.eight_schools_noncentered,
        _standardize,
    ),
    Entry("diamonds-diamonds", 26, {"b": (24,), "Intercept": (), "sigma": ()}, _N.diamonds, _P.diamonds),
    Entry("arK-arK", 7, {"alpha": (), "beta": (5,), "sigma": ()}, _N.ark, _P.ark),
    Entry("arma-arma11", 4, {"mu": (), "phi": (), "theta": (), "sigma": ()}, _N.arma11),
    Entry("kidiq-kidscore_interaction", 5, _regression(4), _N.kidscore_interaction, _P.kidscore_interaction),
    Entry("earnings-logearn_interaction", 5, _regression(4), _N.logearn_interaction, _P.logearn_interaction),
    Entry("mesquite-logmesquite", 8, _regression(7), _N.logmesquite, _P.logmesquite),
    Entry("nes1972-nes", 10, _regression(9), _N.nes, _P.nes),
    Entry("sblrc-blr", 6, _regression(5), _N.blr, _P.blr),
    Entry("low_dim_gauss_mix-low_dim_gauss_mix", 5, {"mu": (2,), "sigma": (2,), "theta": ()}, _N.low_dim_gauss_mix),
    Entry("gp_pois_regr-gp_regr", 3, {"rho": (), "alpha": (), "sigma": ()}, _N.gp_regr),
    Entry("hudson_lynx_hare-lotka_volterra", 8, {"theta": (4,), "z_init": (2,), "sigma": (2,)}, _N.lotka_volterra),
    Entry("hmm_example-hmm_example", 4, {"theta1": (2,), "theta2": (2,), "mu": (2,)}, _N.hmm_example),
)

POSTERIORS: dict[str, Entry] = {entry.name: entry for entry in _ALL}
