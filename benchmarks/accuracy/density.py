"""A target on R^p as NumPyro itself maps it there: what the other libraries are given, and judged by.

Nothing here goes through bernflow's own transformations.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpyro.infer import init_to_uniform
from numpyro.infer.util import initialize_model

from benchmarks.targets import Benchmark

# Points that are evaluated at once: all draws together would need gigabytes for thousands of rows of data.
AT_ONCE = 500

Points = Float[Array, "num p"] | Float[np.ndarray, "num p"]


class Density:
    """The log density of a NumPyro model on R^p, sites in model order.

    It is made and used inside of `jax.enable_x64`.
    """

    def __init__(self, benchmark: Benchmark):
        info = initialize_model(
            jax.random.key(0), benchmark.model, init_strategy=init_to_uniform, model_args=benchmark.args
        )
        # Not the order of the dictionary of parameters: JAX sorts its keys.
        latent = [
            name
            for name, site in info.model_trace.items()
            if site["type"] == "sample" and not site["is_observed"] and name in info.param_info.z
        ]
        self._shapes = {name: info.param_info.z[name].shape for name in latent}
        self._potential = info.potential_fn
        self._postprocess = info.postprocess_fn
        self._evaluate = jax.jit(lambda x: jax.lax.map(self.log_density, x, batch_size=AT_ONCE))
        self._constrain = jax.jit(
            lambda x: jax.lax.map(lambda point: self._postprocess(self._split(point)), x, batch_size=AT_ONCE)
        )

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the parameters in the order of x."""
        return tuple(self._shapes)

    @property
    def dim(self) -> int:
        """Number of unconstrained dimensions p."""
        return sum(math.prod(shape) for shape in self._shapes.values())

    def log_density(self, x: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate log p(theta(x), data) + log |d theta / d x| at one point."""
        return -self._potential(self._split(x))

    def evaluate(self, x: Points) -> Float[np.ndarray, " num"]:
        """Evaluate the log density at many points; NaN counts as a density of zero."""
        values = np.asarray(self._evaluate(jnp.asarray(x)))
        return np.where(np.isnan(values), -np.inf, values)

    def constrain(self, x: Points) -> dict[str, np.ndarray]:
        """Map many points to named values on the scale of the model, derived quantities included."""
        return {name: np.asarray(values) for name, values in self._constrain(jnp.asarray(x)).items()}

    def starting_points(self, key: Array, num: int) -> Float[Array, "num p"]:
        """Draw points uniformly from (-2, 2)^p, as NumPyro and Stan start their chains."""
        return jax.random.uniform(key, (num, self.dim), minval=-2.0, maxval=2.0)

    def _split(self, x: Float[Array, " p"]) -> dict[str, Array]:
        pieces, start = {}, 0
        for name, shape in self._shapes.items():
            size = math.prod(shape)
            pieces[name] = x[start : start + size].reshape(shape)
            start += size
        return pieces
