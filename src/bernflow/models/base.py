"""The interface of models: named sites, their supports and a log density."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
from jaxtyping import Array, Float, Key, PyTree
from numpyro.distributions.constraints import Constraint

from bernflow.errors import ModelError

Theta = dict[str, Array]


class Site(eqx.Module):
    """One named parameter of a model.

    Attributes:
        name: name of the parameter.
        shape: shape of one value on the constrained scale.
        support: the set of allowed values (its bounds may be arrays), or None if it depends on other sites; then
            `AbstractModel.support_of` returns it.
    """

    name: str = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    support: Constraint | None


class AbstractModel(eqx.Module):
    """A Bayesian model with its data, on the constrained scale.

    Data are leaves of the module, so that functions compiled for one data set are reused for others of the same shape.
    All methods take one value per site (no batch dimension) and are pure: they can be jitted and vmapped.
    """

    sites: eqx.AbstractVar[tuple[Site, ...]]

    @abstractmethod
    def log_density(self, theta: Theta) -> Float[Array, ""]:
        """Evaluate log prior + log likelihood at theta, without any Jacobian."""

    @abstractmethod
    def log_terms(self, theta: Theta) -> Theta:
        """Split `log_density` into one summed term per site, including observed ones, for error messages."""

    @abstractmethod
    def support_of(self, name: str, theta: Theta) -> Constraint:
        """Return the support of a site given earlier sites (only called if `Site.support` is None)."""

    @abstractmethod
    def sample_prior(self, key: Key[Array, ""]) -> Theta | None:
        """Draw every site from the prior; None if the prior cannot be sampled."""

    @abstractmethod
    def initial(self) -> Theta | None:
        """Return the user's starting point, or None."""

    @abstractmethod
    def observed(self) -> Theta:
        """Return the observed data by name."""

    @abstractmethod
    def log_likelihood(self, theta: Theta) -> Theta:
        """Evaluate the pointwise log likelihood of every observed site; empty if unknown."""

    def log_prior(self, theta: Theta) -> Theta:
        """Evaluate the log prior of every parameter; empty if it cannot be separated from the likelihood."""
        terms = self.log_terms(theta)
        return {site.name: terms[site.name] for site in self.sites if site.name in terms}

    @abstractmethod
    def deterministic(self, theta: Theta) -> Theta:
        """Evaluate the quantities that the model derives from its parameters."""

    def with_observed(self, values: Theta) -> "AbstractModel":
        """Return the model with other observed values of the same shapes.

        The values may be traced, so that one compiled function can process many data sets.
        """
        raise ModelError(
            f"The observed data of a {type(self).__name__} cannot be replaced by simulated data. Pass simulate=f to "
            "bf.calibrate, where f(key) returns parameters drawn from the prior and the model with data simulated from "
            "them."
        )

    def constants(self) -> Theta:
        """Return data that are not observations, such as covariates, by name."""
        return {}

    def dims(self) -> dict[str, tuple[str | None, ...]]:
        """Return the names of the axes of sites, observed and derived quantities; None for an unnamed axis."""
        return {}

    def coords(self) -> dict[str, Any]:
        """Return the coordinate labels of named axes."""
        return {}

    def predicted_names(self) -> tuple[str, ...]:
        """Return the names of the derived quantities that are posterior predictive draws."""
        return ()

    def likelihood_names(self) -> tuple[str, ...]:
        """Return the names of the derived quantities that are a pointwise log likelihood."""
        return ()

    def data_groups(self) -> tuple[Theta, Theta]:
        """Return the data in the groups of ArviZ: observed data and constant data."""
        return self.observed(), self.constants()

    def first_index(self) -> int:
        """Return the index of the first element of an array in tables."""
        return 0

    def prepare(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Precompute the part of a prediction that does not depend on theta."""
        return args, kwargs

    def mean(self, theta: Theta, *args: Any, **kwargs: Any) -> Theta:
        """Return the expected observations given theta, for the model's own data or for new data."""
        raise ModelError(
            f"A {type(self).__name__} does not provide the means of its observations: call predict() without "
            "average=True and average its draws."
        )

    @abstractmethod
    def predict(self, key: Key[Array, ""], theta: Theta, *args: Any, **kwargs: Any) -> Theta:
        """Draw new observations given theta, for the model's own data or for new data."""


class AbstractMappedModel(AbstractModel):
    """A model with its own map from R^p to its parameters, such as a compiled Stan program or a PyMC model.

    The supports of its sites are None, because the map replaces them. Its x contains the sites in model order.
    """

    @abstractmethod
    def unconstrained_sizes(self) -> tuple[int, ...]:
        """Return the number of unconstrained dimensions of every site."""

    @abstractmethod
    def scales(self) -> tuple[bool, ...]:
        """Return for each site whether its support is a half line with a lower bound, as that of a scale."""

    @abstractmethod
    def constrain(self, x: Float[Array, " p"]) -> tuple[Theta, Float[Array, ""]]:
        """Map x to the constrained scale; return theta and log |d theta / d x|."""

    @abstractmethod
    def unconstrain(self, theta: Theta) -> Float[Array, " p"]:
        """Map theta to R^p; not finite if theta lies outside its support."""

    @abstractmethod
    def log_density_on_reals(self, x: Float[Array, " p"]) -> Float[Array, ""]:
        """Evaluate log prior + log likelihood + log |d theta / d x|."""

    def log_density(self, theta: Theta) -> Float[Array, ""]:
        """Evaluate log prior + log likelihood at theta, without any Jacobian."""
        x = self.unconstrain(theta)
        return self.log_density_on_reals(x) - self.constrain(x)[1]

    def log_terms(self, theta: Theta) -> Theta:
        """Return the log density as one term."""
        return {"log_density": self.log_density(theta)}

    def log_prior(self, theta: Theta) -> Theta:
        """Return nothing: the software does not separate the prior from the likelihood."""
        return {}

    def support_of(self, name: str, theta: Theta) -> Constraint:
        """Raise an error: the map to R^p replaces the supports."""
        raise ModelError(f"The support of {name!r} is known only to the model's own map to R^p.")


class AbstractJointModel(AbstractModel):
    """A model that supports minibatches of rows, and a network that is trained together with the posterior.

    The log likelihood of a batch of B out of N rows is multiplied by N / B.
    """

    @abstractmethod
    def num_rows(self) -> int:
        """Count the rows N."""

    @abstractmethod
    def rows(self) -> PyTree:
        """Return the arrays (N, ...) on the host from which batches are taken."""

    def without_rows(self) -> "AbstractJointModel":
        """Return the model without its rows if `log_density_of_batch` gets all it needs from the batch."""
        return self

    @abstractmethod
    def trained(self) -> tuple[PyTree, PyTree]:
        """Return the trained weights and the network state, or None."""

    @abstractmethod
    def log_density_of_batch(
        self, theta: Theta, weights: PyTree, state: PyTree, batch: PyTree, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], PyTree]:
        """Estimate log prior + log likelihood from a batch, without any Jacobian; also return the new state."""

    @abstractmethod
    def frozen(self, weights: PyTree, state: PyTree) -> AbstractModel:
        """Return the model of all rows with the trained weights fixed."""


def num_rows(model: PyTree) -> int:
    """Return the number of rows of the data, estimated from the arrays of a model; one if there are none."""
    return max((leaf.shape[0] for leaf in jax.tree.leaves(model) if getattr(leaf, "ndim", 0) > 0), default=1) or 1
