"""The fitted posterior: named draws and densities on the scale of the model, with the verdict on them."""

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Float

from bernflow.diagnostics.verdict import Diagnostics
from bernflow.errors import ArgumentError
from bernflow.flows.base import AbstractDistribution
from bernflow.keys import as_key
from bernflow.models.base import AbstractModel
from bernflow.posterior import display, sampling
from bernflow.posterior.arguments import check_count, check_theta
from bernflow.posterior.export import to_datatree, to_summary
from bernflow.posterior.structure import NamedStructure, named_structure
from bernflow.posterior.trees import from_host, on_host
from bernflow.precision import use_precision
from bernflow.target import AbstractLayout

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

    from bernflow.posterior.chains import NutsRun

Draws = dict[str, np.ndarray]
# Attributes that hold arrays of JAX.
_TREES = ("distribution", "layout", "model")


class Posterior:
    """A fitted distribution over the parameters of a model.

    The same call gives the same result: every random method has a documented default key.

    Attributes:
        distribution: the fitted q on R^p.
        layout: names, shapes and supports of the parameters, and their places in R^p.
        model: the model with its data, or None for a posterior that was loaded without it.
        diagnostics: how far q can be trusted, and what to do.
        history: what was recorded during training: "step", "elbo", "elbo_se".
        settings: how the fit was made (family, order, steps, precision, seed, versions, wall time),
            JSON-able.

    Example:
        >>> post.diagnostics.verdict
        'good'
        >>> post.names
        ('mu',)
        >>> float(post.draws(4000)["mu"].mean().round(1))  # exactly 2.1 / 4
        0.5
    """

    def __init__(
        self,
        distribution: AbstractDistribution,
        layout: AbstractLayout,
        model: AbstractModel | None,
        diagnostics: Diagnostics,
        history: Mapping[str, np.ndarray] | None = None,
        settings: Mapping[str, Any] | None = None,
        refiner: Callable[..., "Posterior"] | None = None,
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
        self._refiner = refiner
        self._table: list[display.Row] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what is pickled: JAX's arrays as NumPy's, so that they keep their precision in any process."""
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
        """Precision in which the posterior is evaluated: that of its arrays.

        Example:
            >>> post.precision
            'float64'
        """
        dtypes = {leaf.dtype for leaf in jax.tree.leaves(self.distribution) if hasattr(leaf, "dtype")}
        return "float64" if np.dtype("float64") in dtypes else "float32"

    @property
    def structure(self) -> NamedStructure | None:
        """What depends on what: globals, and locals in blocks given them; None if all parameters are fitted as globals.

        Example:
            >>> post.structure is None  # one parameter
            True
        """
        return named_structure(self.distribution, self.layout)

    def draws(self, num: int = 4000, key: Any = 1, weighted: bool = False, deterministic: bool = True) -> Draws:
        """Draw from the posterior, on the constrained scale.

        Args:
            num: number of draws. Fewer draws of the same key are the first of many (unweighted draws only).
            key: integer seed or `jax.random.key`.
            weighted: resample 4 num draws of q by their Pareto-smoothed importance weights, which corrects
                what the fit left over. Needs the model.
            deterministic: include the quantities that the model derives from its parameters (where it is
                attached).

        Returns:
            One array of shape (num, *shape) per name.

        Example:
            >>> post.draws(1000)["mu"].shape
            (1000,)
        """
        with use_precision(self.precision):
            x, _ = self._points(num, key, weighted)
            return sampling.constrain(self.layout, self.model if deterministic else None, x)

    def log_prob(self, theta: Mapping[str, Any]) -> Float[np.ndarray, " num"]:
        """Evaluate the normalised log q(theta) on the constrained scale: log q(x) - log |d theta / d x|.

        Args:
            theta: one array of shape (num, *shape) per parameter, or one of its own shape for a single
                point. Other names (derived quantities) are ignored.

        Returns:
            log q, (num,), or a scalar for a single point; -inf outside of the support.

        Example:
            >>> post.log_prob({"mu": np.array([0.0, 0.5])}).round(1)
            array([-0.8, -0.2])
        """
        with use_precision(self.precision):
            values, single = check_theta(self.layout, theta, self.precision)
            result = sampling.log_prob(self.distribution, self.layout, values)
        return result[0] if single else result

    def log_weights(self, num: int = 4000, key: Any = 1) -> Float[np.ndarray, " num"]:
        """Evaluate the log importance weights log p(theta, data) - log q(theta) of `draws(num, key)`.

        Example:
            >>> bool(post.log_weights(1000).std() < 0.05)  # nearly constant: q is the posterior up to its constant
            True
        """
        model = self._need_model("log_weights")
        with use_precision(self.precision):
            x, log_q = sampling.sample(self.distribution, as_key(key), check_count(num))
            return _difference(sampling.log_density(self.layout, model, x), log_q)

    def predict(
        self,
        *args: Any,
        num: int = 1000,
        key: Any = 2,
        weighted: bool = False,
        average: bool = False,
        **kwargs: Any,
    ) -> Draws:
        """Draw new observations from the posterior predictive distribution, or return their means.

        Args:
            *args: new data in place of the model's own, as the model takes them; none: replicate the model's
                data.
            num: number of draws of the parameters, each with one draw of the observations.
            key: integer seed or `jax.random.key`.
            weighted: resample the draws by their importance weights first.
            average: return expected observations (probabilities, for a binary outcome) averaged over the draws, in
                memory that does not grow with their number.
            **kwargs: new data by keyword; `images` go through the network of the model, a block at a time.

        Returns:
            One array of shape (num, ...) per observed name; without the first axis where `average`.

        Example:
            >>> post.predict(num=500)["y"].shape  # 500 replicates of three observations
            (500, 3)
        """
        model = self._need_model("predict")
        theta = self.draws(num, key, weighted, deterministic=False)
        with use_precision(self.precision):
            args, kwargs = model.prepare(args, kwargs)
            if average:
                return sampling.predict_mean(model, theta, args, kwargs)
            return sampling.predict(model, as_key(key), theta, args, kwargs)

    def summary(self, num: int = 4000, key: Any = 1, weighted: bool = False, ci_prob: float = 0.9) -> "pd.DataFrame":
        """Tabulate mean, sd and the central interval of every scalar component, unrounded.

        Example:
            >>> post.summary().loc["mu"].round(1).to_dict()
            {'mean': 0.5, 'sd': 0.5, 'eti90_lb': -0.3, 'eti90_ub': 1.3}
        """
        if not 0 < ci_prob < 1:
            raise ArgumentError(f"ci_prob={ci_prob!r}: expected a probability between 0 and 1.")
        return to_summary(self.draws(num, key, weighted), ci_prob)

    def to_arviz(
        self,
        num: int = 4000,
        key: Any = 1,
        weighted: bool = False,
        log_likelihood: bool = True,
        predictive: bool = False,
    ) -> "xr.DataTree":
        """Export draws for ArviZ, as one chain; `log_likelihood=False` leaves the largest part of it out.

        Returns:
            A DataTree with `posterior`, `sample_stats` (log_q; lp and log_weight on R^p where the model is
            attached) and, as far as the model knows them, `log_likelihood`, `observed_data` and `constant_data`; with
            `predictive=True` also `posterior_predictive`, new observations for every draw. Axes carry the names and
            labels that the model gives them.

        Example:
            >>> sorted(post.to_arviz(num=100).children)
            ['log_likelihood', 'observed_data', 'posterior', 'sample_stats']
        """
        with use_precision(self.precision):
            x, log_q = self._points(num, key, weighted)
            theta = sampling.constrain(self.layout, self.model, x)
            stats = {"log_q": log_q}
            groups: dict[str, Any] = {}
            if self.model is not None:
                stats["lp"] = sampling.log_density(self.layout, self.model, x)
                stats["log_weight"] = _difference(stats["lp"], log_q)
                sites = {name: theta[name] for name in self.names}
                groups["log_likelihood"] = sampling.log_likelihood(self.model, sites) if log_likelihood else {}
                groups["observed"] = jax.tree.map(np.asarray, self.model.observed())
                groups["constant"] = jax.tree.map(np.asarray, self.model.constants())
                groups |= {"dims": self.model.dims(), "coords": self.model.coords()}
            if predictive:
                model = self._need_model("predictive=True")
                groups["predictive"] = sampling.predict(model, as_key(key), sites, *model.prepare((), {}))
        return to_datatree(theta, stats, **groups)

    def refine(self, steps: int | None = None, **kwargs: Any) -> "Posterior":
        """Train on from here and return the new posterior.

        Example:
            >>> post.refine(steps=100, progress=False).diagnostics.verdict
            'good'
        """
        self._need_model("refine")
        if self._refiner is None:
            raise ArgumentError("refine() needs a posterior made by bf.fit or bf.load(path, model=...).")
        return self._refiner(self, steps=steps, **kwargs)

    def to_nuts(
        self,
        num: int = 1000,
        warmup: int = 300,
        chains: int = 4,
        key: Any = 4,
        sampler: str = "numpyro",
        target_accept: float = 0.9,
        progress: bool = True,
    ) -> "NutsRun":
        """Draw exactly from the posterior by NUTS, started and preconditioned by this fit.

        NUTS runs in the space of the noise, where a good fit leaves little to do. The draws follow the posterior
        whatever the fit; a bad one leaves NUTS the work that it would have without. Chains that have not converged
        are called so in a warning.

        Args:
            num: number of draws per chain.
            warmup: number of steps per chain in which the sampler adapts; they are dropped.
            chains: number of chains, run together; each starts at a draw of this fit.
            key: integer seed or `jax.random.key`.
            sampler: whose NUTS: "numpyro" or "blackjax".
            target_accept: the acceptance rate that the step size is adapted to; higher means smaller steps.
            progress: show a progress bar.

        Returns:
            The draws by name and chain, with R-hat, effective numbers of draws and a verdict.

        Example:
            >>> run = post.to_nuts(num=200, warmup=100, chains=2, progress=False)
            >>> run.draws()["mu"].shape
            (2, 200)
        """
        from bernflow.posterior.nuts import run_nuts

        model = self._need_model("to_nuts")
        return run_nuts(self, model, num, warmup, chains, key, sampler, target_accept, progress)

    def plot(self, **kwargs: Any) -> Any:
        """Plot the marginal densities; see `bernflow.plots.plot_posterior`.

        Example:
            >>> post.plot().savefig("posterior.png")
        """
        from bernflow.plots import plot_posterior

        return plot_posterior(self, **kwargs)

    def report(self, path: str | PathLike = "report.html", **kwargs: Any) -> Path:
        """Write a report of the fit, one HTML page; see `bernflow.report.write_report`.

        Example:
            >>> post.report("report.html").name
            'report.html'
        """
        from bernflow.report import write_report

        return write_report(self, path, **kwargs)

    def save(self, path: str | PathLike) -> Path:
        """Save to one file, whole or not at all; `bernflow.load` reads it without running code in it.

        Example:
            >>> post.save("posterior.bernflow").name
            'posterior.bernflow'
        """
        from bernflow.posterior.archive import save

        return save(self, path)

    def _points(self, num: int, key: Any, weighted: bool) -> tuple[np.ndarray, np.ndarray]:
        """Draw points of R^p with their log q, resampled if asked for."""
        key, num = as_key(key), check_count(num)
        if not weighted:
            return sampling.sample(self.distribution, key, num)
        model = self._need_model("weighted=True")
        x, log_q = sampling.sample(self.distribution, key, sampling.OVERSAMPLING * num)
        log_weights = _difference(sampling.log_density(self.layout, model, x), log_q)
        if not np.any(log_weights > -np.inf):
            raise ArgumentError(
                "weighted=True: every draw lies where the posterior density is zero. Use weighted=False, and see "
                "post.diagnostics.status."
            )
        chosen = sampling.resample(key, log_weights, num)
        return x[chosen], log_q[chosen]

    def _need_model(self, what: str) -> AbstractModel:
        if self.model is None:
            raise ArgumentError(
                f"{what} needs the model, which is not in the file: pass it to bf.load(path, model=...)."
            )
        return self.model

    def __repr__(self) -> str:
        return display.text(self.diagnostics, self._rows(), self.settings, self.layout.dim)

    def _repr_html_(self) -> str:
        return display.html(self.diagnostics, self._rows(), self.settings, self.layout.dim)

    def _rows(self) -> list[display.Row]:
        if self._table is None:
            self._table = display.rows(self.draws(1000, deterministic=False))
        return self._table


def _difference(log_density: np.ndarray, log_q: np.ndarray) -> np.ndarray:
    """Return log p - log q in double precision; a zero density gives -inf, whatever log q is."""
    with np.errstate(invalid="ignore"):
        result = np.asarray(log_density, np.float64) - np.asarray(log_q, np.float64)
    return np.where(np.isneginf(log_density), -np.inf, result)
