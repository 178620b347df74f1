"""Atoms: products of simple functions of the globals. The conditional precision of many models is linear in them.

Given the globals, the precision of the locals of a hierarchical model is often a sum of a few fixed matrices, each
times a product such as exp(-2 log sigma) or rho exp(-2 log sigma). An atom is such a product of up to three factors,
each a function of one view of the globals (`flows/views.py`), for example of log sigma, whatever the support of sigma.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from bernflow.flows.views import View, evaluate

# Factors of one atom.
MAX_FACTORS = 3
# Exponents of exp(a (w - center)): variances, standard deviations, and their inverses, of a scale on the log scale.
EXPONENTS = (-2.0, -1.0, 1.0, 2.0)
# Functions of every view w of the globals: the exponentials, v and v^2 with v = (w - center) / unit, tanh(w) and
# 1 / cosh(w), which are a correlation and the square root of one minus its square.
NUM_FUNCTIONS = len(EXPONENTS) + 4
# The index of tanh(w) among them.
TANH = len(EXPONENTS) + 2
# Bound on the exponents, so that functions that no atom uses cannot overflow: 0 * inf would make a gradient NaN.
MAX_EXPONENT = 40.0


class Atoms(eqx.Module):
    """Evaluate atoms of the globals.

    Attributes:
        center: the center of every view.
        unit: the standard deviation of every view.
        reach: distances from the center, below and above, in units, beyond which the functions are constant.
        factors: for every atom, the indices of its factors in the table of all functions; 0 is the constant 1.
        views: the views of the globals.
    """

    center: Float[Array | np.ndarray, " v"]
    unit: Float[Array | np.ndarray, " v"]
    reach: Float[Array | np.ndarray, "2 v"]
    factors: Int[Array | np.ndarray, "a 3"]
    views: tuple[View, ...] = eqx.field(static=True)

    def table(self, g: Any, xp: Any = jnp) -> Any:
        """Evaluate the constant 1 and all functions of all views, those of the first view first.

        Args:
            g: values of the globals, (..., c).
            xp: `jax.numpy`, or `numpy` for arrays of NumPy.
        """
        v = xp.clip((evaluate(self.views, g, xp) - self.center) / self.unit, self.reach[0], self.reach[1])
        moved = v * self.unit
        powers = xp.exp(xp.clip(xp.asarray(EXPONENTS) * moved[..., None], -MAX_EXPONENT, MAX_EXPONENT))
        tanh = xp.tanh(self.center + moved)
        bell = xp.sqrt(xp.maximum(1.0 - tanh**2, 1e-16))
        functions = xp.concatenate([powers, xp.stack([v, v**2, tanh, bell], -1)], -1)
        flat = functions.reshape(*functions.shape[:-2], -1)
        return xp.concatenate([xp.ones_like(flat[..., :1]), flat], -1)

    def __call__(self, g: Float[Array, " c"]) -> Float[Array, " a"]:
        """Evaluate all atoms."""
        return jnp.prod(self.table(g)[self.factors], -1)
