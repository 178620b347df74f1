"""What every front end turns its input into: named sites, their supports and a log density."""

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
        name: the name under which users see the parameter.
        shape: shape of one value on the constrained scale.
        support: the set of allowed values (its bounds may be arrays), or None if it depends on other sites;
            then `AbstractModel.support_of` answers.
    """

    name: str = eqx.field(static=True)
    shape: tuple[int, ...] = eqx.field(static=True)
    support: Constraint | None


class AbstractModel(eqx.Module):
    """A Bayesian model with its data, on the constrained scale.

    Data are leaves of the module, so that functions compiled for one data set serve every other one of the
    same shape. All methods take one value per site (no batch dimension) and are pure: they can be jitted and
    vmapped.
    """

    sites: eqx.AbstractVar[tuple[Site, ...]]

    @abstractmethod
    def log_density(self, theta: Theta) -> Float[Array, ""]:
        """Evaluate log prior + log likelihood at theta, without any Jacobian."""

    @abstractmethod
    def log_terms(self, theta: Theta) -> Theta:
        """Split `log_density` into one summed term per site, observed ones included, to name culprits."""

    @abstractmethod
    def support_of(self, name: str, theta: Theta) -> Constraint:
        """Return the support of a site given those before it (only asked where `Site.support` is None)."""

    @abstractmethod
    def sample_prior(self, key: Key[Array, ""]) -> Theta | None:
        """Draw every site from the prior, or None where the model has no prior that can be sampled."""

    @abstractmethod
    def initial(self) -> Theta | None:
        """Return the point that the user gave as a start, or None."""

    @abstractmethod
    def observed(self) -> Theta:
        """Return the observed data by name."""

    @abstractmethod
    def log_likelihood(self, theta: Theta) -> Theta:
        """Evaluate the pointwise log likelihood of every observed site; empty where it is unknown."""

    def log_prior(self, theta: Theta) -> Theta:
        """Evaluate the log prior of every parameter; empty where it is not known apart from the likelihood."""
        terms = self.log_terms(theta)
        return {site.name: terms[site.name] for site in self.sites if site.name in terms}

    @abstractmethod
    def deterministic(self, theta: Theta) -> Theta:
        """Evaluate the quantities that the model derives from its parameters."""

    def with_observed(self, values: Theta) -> "AbstractModel":
        """Return the model of other data: new values for every observed name, of the same shapes.

        The values may be traced, so that many data sets go through one compiled function.
        """
        raise ModelError(
            f"The observed data of a {type(self).__name__} cannot be replaced by simulated ones. Pass "
            "simulate=f to bf.calibrate, where f(key) returns parameters drawn from the prior and the model of data "
            "drawn given them."
        )

    def constants(self) -> Theta:
        """Return data that are not observations (covariates, say) by name."""
        return {}

    def dims(self) -> dict[str, tuple[str | None, ...]]:
        """Name the axes of sites, observed and derived quantities; None for an axis without name."""
        return {}

    def coords(self) -> dict[str, Any]:
        """Label the places along named axes."""
        return {}

    def predicted_names(self) -> tuple[str, ...]:
        """Return the names of the derived quantities that are new observations."""
        return ()

    def likelihood_names(self) -> tuple[str, ...]:
        """Return the names of the derived quantities that are a pointwise log likelihood."""
        return ()

    def data_groups(self) -> tuple[Theta, Theta]:
        """Return the observed and the other data as ArviZ groups them."""
        return self.observed(), self.constants()

    def first_index(self) -> int:
        """Return what the first place along an axis is counted as in tables."""
        return 0

    def prepare(self, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Do the part of a prediction for new data that does not depend on theta."""
        return args, kwargs

    def mean(self, theta: Theta, *args: Any, **kwargs: Any) -> Theta:
        """Return the expected observations given theta, for the model's own data or for the data given."""
        raise ModelError(
            f"A {type(self).__name__} does not know the means of its observations: call predict() without "
            "average=True and average its draws."
        )

    @abstractmethod
    def predict(self, key: Key[Array, ""], theta: Theta, *args: Any, **kwargs: Any) -> Theta:
        """Draw new observations given theta, for the model's own data or for the data given."""


class AbstractMappedModel(AbstractModel):
    """A model whose own software maps R^p to its parameters, as a compiled Stan program or a PyMC model does.

    The supports of its sites are None, because the map is asked instead. Its x holds the sites one after the other in
    model order.
    """

    @abstractmethod
    def unconstrained_sizes(self) -> tuple[int, ...]:
        """Return the number of unconstrained dimensions of every site."""

    @abstractmethod
    def scales(self) -> tuple[bool, ...]:
        """Tell of every site whether its values lie on half lines from a lower bound, as those of a scale do."""

    @abstractmethod
    def constrain(self, x: Float[Array, " p"]) -> tuple[Theta, Float[Array, ""]]:
        """Map x to the constrained scale; return theta and log |d theta / d x|."""

    @abstractmethod
    def unconstrain(self, theta: Theta) -> Float[Array, " p"]:
        """Map theta to R^p; not finite where theta lies outside of its support."""

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
        """Return nothing: the software does not tell the prior from the likelihood."""
        return {}

    def support_of(self, name: str, theta: Theta) -> Constraint:
        """Raise: the map to R^p stands for the supports."""
        raise ModelError(f"The support of {name!r} is known only to the model's own map to R^p.")


class AbstractJointModel(AbstractModel):
    """A model whose rows can be taken in batches, and whose network, if it has one, is trained beside the posterior.

    Training sees a batch of rows at a time; the likelihood of a batch of B out of N rows counts N / B times.
    """

    @abstractmethod
    def num_rows(self) -> int:
        """Count the rows N."""

    @abstractmethod
    def rows(self) -> PyTree:
        """Return what a batch is taken from: arrays (N, ...) on the host."""

    def without_rows(self) -> "AbstractJointModel":
        """Return the model less its rows, where batches bring all that `log_density_of_batch` needs of them."""
        return self

    @abstractmethod
    def trained(self) -> tuple[PyTree, PyTree]:
        """Return the weights that are trained and the state that changes with them; None where there are none."""

    @abstractmethod
    def log_density_of_batch(
        self, theta: Theta, weights: PyTree, state: PyTree, batch: PyTree, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], PyTree]:
        """Estimate log prior + log likelihood from a batch, without any Jacobian; return the new state, too."""

    @abstractmethod
    def frozen(self, weights: PyTree, state: PyTree) -> AbstractModel:
        """Return the model of all rows given the trained weights."""


def num_rows(model: PyTree) -> int:
    """Count the rows of the data, as far as the arrays of a model tell; one where there are none."""
    return max((leaf.shape[0] for leaf in jax.tree.leaves(model) if getattr(leaf, "ndim", 0) > 0), default=1) or 1
