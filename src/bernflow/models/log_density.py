"""Models given as an unnormalized log density of the parameters."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint

from bernflow.errors import ModelError
from bernflow.models.base import AbstractModel, Site, Theta
from bernflow.models.derived import check_derived, derive
from bernflow.models.inputs import NUMERIC_KINDS, check_values, name_of, user_code
from bernflow.models.supports import check_continuous
from bernflow.precision import use_settings

BARE = "x"


class LogDensityModel(AbstractModel):
    """A function theta -> log density on the constrained scale, with a starting point."""

    sites: tuple[Site, ...]
    start: dict[str, np.ndarray]
    logp: Callable = eqx.field(static=True)
    is_bare: bool = eqx.field(static=True)
    derived: Callable | None = eqx.field(static=True)

    def log_density(self, theta: Theta) -> Float[Array, ""]:
        """Evaluate the user's log density, without any Jacobian."""
        return self.logp(theta[BARE] if self.is_bare else theta)

    def log_terms(self, theta: Theta) -> Theta:
        """Return the log density as one term."""
        return {"log_density": self.log_density(theta)}

    def support_of(self, name: str, theta: Theta) -> Constraint:
        """Return the support of a site; none depends on another site."""
        support = next(site.support for site in self.sites if site.name == name)
        assert support is not None
        return support

    def sample_prior(self, key: Key[Array, ""]) -> None:
        """Return None: the prior is unknown."""

    def initial(self) -> Theta:
        """Return the user's starting point."""
        return {name: jnp.asarray(value) for name, value in self.start.items()}

    def observed(self) -> Theta:
        """Return nothing: the data are unknown."""
        return {}

    def log_prior(self, theta: Theta) -> Theta:
        """Return nothing: the prior is unknown."""
        return {}

    def log_likelihood(self, theta: Theta) -> Theta:
        """Return nothing: the likelihood is unknown."""
        return {}

    def deterministic(self, theta: Theta) -> Theta:
        """Evaluate the function `derived`."""
        return derive(self.derived, theta[BARE] if self.is_bare else theta)

    def predict(self, key: Key[Array, ""], theta: Theta, *args: Any, **kwargs: Any) -> Theta:
        """Raise an error: a log density cannot simulate data."""
        raise ModelError(
            "A model from from_log_density cannot predict, because it does not define how to simulate data. Use "
            "bf.Model with likelihood=..., or a NumPyro model."
        )


@use_settings()
def from_log_density(
    logp: Callable[[Any], Float[Array, ""]],
    init: Mapping[str, Any] | Any,
    support: Mapping[str, Constraint] | Constraint | None = None,
    derived: Callable[[Any], Mapping[str, Any]] | None = None,
) -> LogDensityModel:
    """Make a model from an unnormalized log density.

    Args:
        logp: log density of theta on the constrained scale, a scalar; bernflow adds the Jacobian of the support.
        init: starting values by name, which also determine the shapes; or one array, then `logp` gets an array and the
            parameter is called `x`.
        support: NumPyro constraints by name (one constraint if `init` is an array); default real.
        derived: `derived(theta)` returns a dict of quantities computed from the parameters. They are included in draws,
            tables, figures and saved files.

    Returns:
        A model for `bernflow.fit`.

    Example:
        >>> import jax.numpy as jnp
        >>> from numpyro.distributions import constraints
        >>> model = from_log_density(
        ...     lambda th: 2 * jnp.log(th["s"]) - th["s"], {"s": 1.0}, {"s": constraints.positive}
        ... )
        >>> [site.name for site in model.sites]
        ['s']
    """
    if not callable(logp):
        raise ModelError(f"from_log_density: logp is a {type(logp).__name__}: expected a function of the parameters.")
    is_bare = not isinstance(init, Mapping)
    if is_bare:
        init = {BARE: init}
        support = {BARE: support} if isinstance(support, Constraint) else support
    if isinstance(support, Constraint):
        raise ModelError(
            "from_log_density: support is one constraint, but init is a dict: expected a dict of constraints by name."
        )
    support = dict(support or {})
    unknown = sorted(set(support) - set(init))
    if unknown:
        raise ModelError(
            f"from_log_density: support names {', '.join(map(repr, unknown))}, which init does not have. Expected "
            f"names among {', '.join(map(repr, init))}."
        )
    start = {name: _start_array(name, value) for name, value in init.items()}
    sites = tuple(_site(name, value, support.get(name, constraints.real)) for name, value in start.items())
    model = LogDensityModel(sites, start, logp, is_bare, derived)
    with user_code(f"The log density {name_of(logp)!r}"):
        out = jax.eval_shape(model.log_density, model.initial())
    if getattr(out, "shape", None) != () or not jnp.issubdtype(out.dtype, jnp.floating):
        raise ModelError(
            f"The log density {name_of(logp)!r} returned {_describe(out)}: expected one float of shape (). Sum over "
            "the data points and parameters."
        )
    check_derived(derived, sites, model.deterministic)
    return model


def _start_array(name: str, value: Any) -> np.ndarray:
    check_values(value, f"from_log_density: init[{name!r}]")
    array = np.asarray(value)
    if array.dtype.kind not in NUMERIC_KINDS or array.dtype.kind == "c":
        raise ModelError(f"from_log_density: init[{name!r}] has dtype {array.dtype}: expected real numbers.")
    array = array.astype(float) if array.dtype.kind != "f" else array
    check_values(array, f"from_log_density: init[{name!r}]")
    return array


def _site(name: str, value: np.ndarray, support: Any) -> Site:
    if not isinstance(support, Constraint):
        raise ModelError(
            f"from_log_density: support[{name!r}] is a {type(support).__name__}: expected a constraint of "
            "numpyro.distributions.constraints, for example constraints.positive."
        )
    check_continuous(name, support)
    with user_code(f"The check of init[{name!r}] against {support!r}"):
        inside = bool(np.all(support(value)))
    if not inside:
        raise ModelError(
            f"from_log_density: init[{name!r}] = {np.array2string(value, threshold=8)} lies outside its support "
            f"{support!r}. Give a start inside the support."
        )
    return Site(name, value.shape, support)


def _describe(out: Any) -> str:
    if hasattr(out, "shape"):
        return f"an array of shape {out.shape} and dtype {out.dtype}"
    return f"a {type(out).__name__}"
