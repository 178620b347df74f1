"""The fitted posterior: named draws and densities on the scale of the model, with diagnostics."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from bernflow.diagnostics.advice import advise
from bernflow.errors import ArgumentError
from bernflow.flows.mixture import Mixture
from bernflow.keys import as_key
from bernflow.models.columns import with_arrays
from bernflow.moved import INTO_TRAINING, moved
from bernflow.posterior import display, sampling, tables
from bernflow.posterior.arguments import check_count, check_theta
from bernflow.posterior.drawing import difference, draw, need_model
from bernflow.posterior.export import Kind, as_installed, export
from bernflow.posterior.loo import leave_one_out
from bernflow.posterior.parts import PosteriorParts
from bernflow.posterior.prior import predictions, prior_draws
from bernflow.posterior.weighting import AUTO, Weighted, is_weighted, num_effective
from bernflow.precision import use_precision

if TYPE_CHECKING:
    import pandas as pd

    from bernflow.posterior.chains import NutsRun

Draws = dict[str, np.ndarray]


class Posterior(PosteriorParts):
    """A fitted distribution over the parameters of a model.

    Results are reproducible: every random method has a documented default key.

    Attributes:
        distribution: the fitted q on R^p.
        layout: names, shapes and supports of the parameters, and their order in R^p.
        model: the model with its data, or None for a posterior loaded without it.
        diagnostics: the quality of q, with verdict and advice.
        history: training history: "step", "elbo", "elbo_se".
        settings: settings of the fit (family, order, steps, precision, seed, versions, wall time),
            JSON-serializable.
        stored: the content of the file besides the flow, for a loaded posterior.

    Example:
        >>> post.diagnostics.verdict
        'good'
        >>> post.names
        ('mu',)
        >>> float(post.draws(4000)["mu"].mean().round(1))  # exactly 2.1 / 4
        0.5
    """

    @property
    def advice(self) -> list[str]:
        """What to do next, in order of priority.

        Example:
            >>> post.advice[0]
            'Use `post.draws()` as they are.'
        """
        q = self.distribution
        num_parts = len(q.components) if isinstance(q, Mixture) else 1
        return advise(self.diagnostics, self.history, self.settings, is_weighted(self), num_parts)

    def draws(self, num: int = 4000, key: Any = 1, weighted: Weighted = AUTO, deterministic: bool = True) -> Draws:
        """Draw from the posterior, on the constrained scale.

        Args:
            num: number of draws. With the same key, fewer draws are the first of more (unweighted draws only).
            key: integer seed or `jax.random.key`.
            weighted: resample 4 num draws of q by their Pareto-smoothed importance weights, which corrects remaining
                errors of the fit. Needs the model. "auto" (default) does so if the verdict says that weights correct
                the fit; `summary`, figures, reports and ArviZ exports do the same.
            deterministic: include derived quantities; without the model, those in the file.

        Returns:
            One array of shape (num, *shape) per name.

        Example:
            >>> post.draws(1000)["mu"].shape
            (1000,)
        """
        return draw(self, num, key, weighted, deterministic).theta

    def log_prob(self, theta: Mapping[str, Any]) -> Float[np.ndarray, " num"]:
        """Evaluate the normalized log q(theta) on the constrained scale: log q(x) - log |d theta / d x|.

        Args:
            theta: one array of shape (num, *shape) per parameter, or one of its own shape for a single
                point. Other names (derived quantities) are ignored.

        Returns:
            log q, (num,), or a scalar for a single point; -inf outside the support.

        Example:
            >>> post.log_prob({"mu": np.array([0.0, 0.5])}).round(1)
            array([-0.8, -0.2])
        """
        with use_precision(self.precision):
            values, single = check_theta(self.layout, theta, self.precision)
            result = sampling.log_prob(self.distribution, self.layout, values)
        return result[0] if single else result

    def log_weights(self, num: int = 4000, key: Any = 1) -> Float[np.ndarray, " num"]:
        """Return the log importance weights log p(theta, data) - log q(theta) of `draws(num, key, weighted=False)`.

        Args:
            num: number of draws.
            key: integer seed or `jax.random.key`.

        Example:
            >>> bool(post.log_weights(1000).std() < 0.05)  # nearly constant: q is the posterior up to its constant
            True
        """
        model = need_model(self, "log_weights")
        with use_precision(self.precision):
            x, log_q = sampling.sample(self.distribution, as_key(key), check_count(num))
            return difference(sampling.log_density(self.layout, model, x), log_q)

    def predict(
        self,
        *args: Any,
        num: int = 1000,
        key: Any = 2,
        weighted: Weighted = AUTO,
        average: bool = False,
        **kwargs: Any,
    ) -> Draws:
        """Draw new observations from the posterior predictive distribution, or return their means.

        Args:
            *args: new data, in the format of the model's arguments; by default replicate the model's own data.
            num: number of draws of the parameters, each with one draw of the observations.
            key: integer seed or `jax.random.key`.
            weighted: importance-resample the draws first; see `draws`.
            average: return expected observations (probabilities of a binary outcome), in memory independent of `num`.
            **kwargs: new data by keyword; the network of the model processes `images` in blocks.

        Returns:
            One array of shape (num, ...) per observed name; without the first axis if `average`.

        Example:
            >>> post.predict(num=500)["y"].shape  # 500 replicates of three observations
            (500, 3)
        """
        model = need_model(self, "predict")
        theta = self.draws(num, key, weighted, deterministic=False)

        def predicted(given: tuple[tuple, dict[str, Any]]) -> Draws:
            args, kwargs = model.prepare(*given)
            if average:
                return sampling.predict_mean(model, theta, args, kwargs)
            return sampling.predict(model, as_key(key), theta, args, kwargs)

        with use_precision(self.precision):
            return with_arrays(predicted, (args, kwargs), as_given=False)

    def prior(self, num: int = 1000, key: Any = 2, deterministic: bool = True) -> Draws:
        """Draw the parameters from the prior.

        Args:
            num: number of draws.
            key: integer seed or `jax.random.key`.
            deterministic: include derived quantities.

        Returns:
            One array of shape (num, *shape) per name.

        Example:
            >>> post.prior(num=500)["mu"].shape
            (500,)
        """
        return prior_draws(need_model(self, "prior"), self.precision, check_count(num), key, deterministic)

    def prior_predictive(self, *args: Any, num: int = 1000, key: Any = 2, **kwargs: Any) -> Draws:
        """Draw observations from the prior predictive distribution, given the draws of `prior`.

        Args:
            *args: new data, as for `predict`.
            num: number of draws of the parameters, each with one draw of the observations.
            key: integer seed or `jax.random.key`.
            **kwargs: data by keyword.

        Returns:
            One array of shape (num, ...) per observed name.

        Example:
            >>> post.prior_predictive(num=500)["y"].shape
            (500, 3)
        """
        theta = self.prior(num, key, deterministic=False)
        model = need_model(self, "prior_predictive")

        def predicted(given: tuple[tuple, dict[str, Any]]) -> Draws:
            return predictions(model, self.precision, theta, key, *given)

        return with_arrays(predicted, (args, kwargs), as_given=False)

    def summary(
        self,
        var_names: Sequence[str] | str | None = None,
        filter_vars: str | None = None,
        *,
        num: int = 4000,
        key: Any = 1,
        weighted: Weighted = AUTO,
        ci_prob: float = 0.9,
        round_to: int | str | None = "auto",
    ) -> "pd.DataFrame":
        """Return a table of mean, sd, the central interval and Monte Carlo errors of every scalar component.

        Args:
            var_names: the quantities to show, or to leave out if prefixed by `~`; all if None.
            filter_vars: None (whole names), "like" (parts of names) or "regex", as in ArviZ.
            num: number of draws.
            key: integer seed or `jax.random.key` of the draws.
            weighted: see `draws`.
            ci_prob: probability of the interval.
            round_to: "auto" (default) for four digits of every sd and as many decimals in its row, a number, or "none".

        Example:
            >>> post.summary().loc["mu"].round(1).to_dict()
            {'mean': 0.5, 'sd': 0.5, 'eti90_lb': -0.3, 'eti90_ub': 1.3, 'mcse_mean': 0.0, 'mcse_sd': 0.0}
        """
        if not 0 < ci_prob < 1:
            raise ArgumentError(f"ci_prob={ci_prob!r}: expected a probability between 0 and 1.")
        sample = draw(self, num, key, weighted)
        chosen = tables.in_order(tables.select(sample.theta, var_names, filter_vars), self.names, self.roles)
        # Without the model the file may contain fewer draws.
        worth = num_effective(self, len(next(iter(sample.theta.values()))), sample.weighted)
        found, _ = tables.rows(chosen, ((1 - ci_prob) / 2, (1 + ci_prob) / 2), self.axes, worth)
        return tables.frame(found, ci_prob, round_to)

    def loo(self, var_name: str | None = None, num: int = 4000, key: Any = 1, weighted: Weighted = AUTO) -> Any:
        """Estimate the expected log predictive density of new data by leave-one-out cross-validation (PSIS-LOO).

        Args:
            var_name: the observed variable, if there are several.
            num: number of draws.
            key: integer seed or `jax.random.key` of the draws.
            weighted: see `draws`.

        Returns:
            An `ELPDData` of ArviZ, with one value per data point. `bf.compare_models` compares several models.

        Example:
            >>> bool(post.loo().elpd < 0.0)
            True
        """
        return leave_one_out(export(self, num, key, weighted), var_name, has_model=self.model is not None)

    def to_arviz(
        self,
        num: int = 4000,
        key: Any = 1,
        weighted: Weighted = AUTO,
        log_likelihood: bool = True,
        predictive: bool = False,
        prior: bool = False,
        kind: Kind = "auto",
    ) -> Any:
        """Export draws to ArviZ, as one chain.

        Args:
            num: number of draws.
            key: integer seed or `jax.random.key`.
            weighted: see `draws`.
            log_likelihood: include the pointwise log likelihood, which is the largest part.
            predictive: include `posterior_predictive`, new observations for every draw.
            prior: include `prior` and `prior_predictive` with equally many draws.
            kind: "datatree" for ArviZ 1, "inferencedata" for ArviZ 0.x, "auto" for the installed version.

        Returns:
            The groups `posterior`, `sample_stats` (log_q; with a model also lp and log_weight on R^p) and, if
            available, `log_prior`, `log_likelihood`, `observed_data` and `constant_data`. For a Stan program, random
            generated quantities are in `posterior_predictive`, and `log_lik` is in `log_likelihood`. Axes have the
            names and labels of the model.

        Example:
            >>> post.to_arviz(num=100).posterior["mu"].sizes["draw"]
            100
        """
        return as_installed(export(self, num, key, weighted, log_likelihood, predictive, prior), kind)

    @moved("refine", {"optimizer": INTO_TRAINING["optimizer"]})
    def refine(
        self, steps: int | None = None, *, key: Any = 3, training: Any = None, progress: bool = True
    ) -> "Posterior":
        """Continue training and return the new posterior.

        A message states first whether the ELBO was still rising. The status of the new posterior reports the gain.

        Args:
            steps: number of steps; if None, train until the ELBO has not improved for 1,000 steps.
            key: integer seed or `jax.random.key`.
            training: a `bernflow.Training` with another `optimizer` or `num_particles` than those of the fit.
            progress: show a progress bar, in terminals and notebooks.

        Example:
            >>> post.refine(steps=100, progress=False).diagnostics.verdict
            'good'
        """
        need_model(self, "refine")
        if self._refiner is None:
            raise ArgumentError("refine() needs a posterior made by bf.fit or bf.load(path, model=...).")
        return self._refiner(self, steps=steps, key=key, training=training, progress=progress)

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
        """Sample the posterior by NUTS, initialized and preconditioned by this fit.

        NUTS runs in the space of the noise, which is easy to sample with a good fit. The draws follow the posterior for
        any fit; with a poor one NUTS is only as efficient as without it. A warning is issued if the chains have not
        converged.

        Args:
            num: number of draws per chain.
            warmup: number of adaptation steps per chain, which are discarded.
            chains: number of chains, run in parallel; each starts at a draw of this fit.
            key: integer seed or `jax.random.key`.
            sampler: "numpyro" or "blackjax".
            target_accept: target acceptance rate for step size adaptation; a higher rate means smaller steps.
            progress: show a progress bar, in terminals and notebooks.

        Returns:
            The draws by name and chain, with R-hat, effective sample sizes and a verdict.

        Example:
            >>> run = post.to_nuts(num=200, warmup=100, chains=2, progress=False)
            >>> run.draws()["mu"].shape
            (2, 200)
        """
        from bernflow.posterior.nuts import run_nuts

        model = need_model(self, "to_nuts")
        return run_nuts(self, model, num, warmup, chains, key, sampler, target_accept, progress)

    def plot(self, kind: str = "marginals", **kwargs: Any) -> Any:
        """Plot the posterior, by default the marginal densities, and return the figure.

        Args:
            kind: "marginals", "pairs", "predictive", "structure", "convergence", "weights" or "transformation".
            **kwargs: arguments of the corresponding function in `bernflow.plots` (`plot_posterior` for marginals).

        Example:
            >>> post.plot().savefig("posterior.png")
            >>> post.plot("structure").savefig("structure.png")
        """
        from bernflow.plots.kinds import plot

        return plot(self, kind, **kwargs)

    def report(self, path: str | PathLike = "report.html", **kwargs: Any) -> Path:
        """Write a report of the fit as one HTML page, and return its path.

        Args:
            path: the file.
            **kwargs: `title` of the page, and `num`, `key` and `weighted` of its draws, as for `draws`.

        Example:
            >>> post.report("report.html").name
            'report.html'
        """
        from bernflow.report import write_report

        return write_report(self, path, **kwargs)

    def save(self, path: str | PathLike) -> Path:
        """Save to a file, atomically, and return its path; `bernflow.load` reads it without executing code from it.

        Args:
            path: the file, without the model and the data.

        Example:
            >>> post.save("posterior.bernflow").name
            'posterior.bernflow'
        """
        from bernflow.posterior.archive import save

        return save(self, path)

    def __repr__(self) -> str:
        return display.text(self.diagnostics, display.tabulate(self), self.settings, self.layout.dim, self.advice)

    def _repr_html_(self) -> str:
        return display.html(self.diagnostics, display.tabulate(self), self.settings, self.layout.dim, self.advice)
