"""`SemiStructured`: a network for the images, a Bayesian regression for the table, one outcome."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax
from jaxtyping import Array, Key

from bernflow.errors import ArgumentError, BernflowError
from bernflow.fingerprint import fingerprint
from bernflow.fit.settings import Training, check_count, resolve_settings
from bernflow.keys import as_key
from bernflow.models.network import Network, check_output
from bernflow.moved import moved
from bernflow.posterior import Posterior
from bernflow.precision import resolve_precision, use_precision
from bernflow.semistructured import prediction
from bernflow.semistructured.checkpoint import open_folder
from bernflow.semistructured.design import Design, read_formula
from bernflow.semistructured.drawing import draw_by_network
from bernflow.semistructured.fitting import (
    Options,
    Problem,
    Trained,
    begin_theta,
    choose_optimizer,
    default_batch_size,
    pose,
    scale_outcome,
    train_networks,
)
from bernflow.semistructured.inference import Effects, infer
from bernflow.semistructured.members import NetworkSource, missing_network
from bernflow.semistructured.outcomes import check_network_output, check_outcome, check_prior, describe_prior
from bernflow.semistructured.parameters import Parameters
from bernflow.semistructured.rows import check_data, check_groups, check_rows, check_valid, take_column
from bernflow.semistructured.runs import Data
from bernflow.semistructured.tables import by_coefficient, tabulate

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

KINDS = ("mean", "proba", "draws", "linear", "images")


class SemiStructured(Parameters):
    """A regression on a table with a deep network of images (or any other tensor) in its linear predictor.

    With the columns X of the table and the output h of the network, one number per row (K-1 for K classes),

        eta = X beta + h,

    and eta is the logit of P(y = 1) ("bernoulli"), the mean ("gaussian", sigma ~ HalfNormal(sd of y)), the log rate
    ("poisson"), the location of a cumulative logit with K-1 ordered cutpoints ~ Normal(0, 5) ("ordinal"), or the K-1
    logits of the classes 1, ..., K-1 against class 0 ("categorical").

    The networks are cross-fitted: each is trained on all rows except those of its fold, and the posterior of beta comes
    from rows that the networks have not seen. It is a joint posterior of beta and of the last layers of the networks,
    integrated over the latter, so its intervals include the uncertainty about the last layers. All lower layers are
    fixed; see "The posterior of an effect alongside a network" in the documentation.

    The formula has the same meaning as in R. Columns are centered and scaled internally, so units and origins do not
    matter; effects are reported in the units of the table.

    Args:
        network: an equinox or flax.nnx network, or a function of a random key that makes one.
        formula: right-hand side of a formula, such as "age + C(sex)"; "0 + ..." omits the intercept. Or a list of
            names of numeric columns, which needs no formulaic.
        outcome: "bernoulli", "gaussian", "poisson", "ordinal" or "categorical".
        prior: a NumPyro distribution for all coefficients, or a dict of them by column, in the units of the table. The
            default is Normal(0, 2.5) per standard deviation of the column (and of y if it is "gaussian"); see `priors`.
        family: family of the flow, as in `fit`.
        augment: `augment(key, images)` changes a batch of images in training.
        networks: number of networks and folds, at least 2. Two cost as much as one network on all rows; with five, each
            network sees 80 % of the rows, which predicts better and costs four times as much.
        precision: "float32" or "float64" for the training, as in `fit`.
        images: name of the column of the table that contains the images. `fit`, `predict` and `score` are then called
            without images, as scikit-learn does: `fit(table, y)`.

    Example:
        >>> import equinox as eqx, jax, numpy as np, bernflow as bf
        >>> rng = np.random.default_rng(0)
        >>> images, table = rng.normal(size=(200, 3)), {"age": rng.normal(60, 15, size=200)}
        >>> y = rng.random(200) < 1 / (1 + np.exp(-images[:, 0] - (table["age"] - 60) / 15))
        >>> network = eqx.nn.Linear(3, "scalar", key=jax.random.key(0))
        >>> model = bf.SemiStructured(network, "age").fit(table, images, y, epochs=2, batch_size=50, progress=False)
        >>> list(model.coefficients().index)
        ['Intercept', 'age']
        >>> model.predict({"age": [40.0, 80.0]}, images[:2]).shape
        (2,)
    """

    def __init__(
        self,
        network: Any,
        formula: str | list[str],
        outcome: str = "bernoulli",
        prior: Any = None,
        family: Any = "bernstein",
        augment: Callable | None = None,
        networks: int = 2,
        precision: str | None = None,
        images: str | None = None,
    ):
        self.network, self.formula, self.outcome, self.prior = network, formula, check_outcome(outcome), prior
        self.family, self.augment, self.networks = family, augment, check_count("networks", networks, 2)
        if self.networks < 2:
            raise ArgumentError(
                f"networks={networks}: expected at least 2, so that every row has a network that has not seen it."
            )
        self.precision, self.images = precision, images
        self._formula = read_formula(formula)
        check_prior(prior)
        resolve_settings(family=family, training=Training(precision=precision))
        self._source = NetworkSource(network, augment)
        self._problem: Problem | None = None
        self._trained: list[Trained] = []
        self._effects: Effects | None = None
        # Networks trained in a call whose later steps failed, by the arguments on which they depend.
        self._left: tuple[str, list[Trained], bool] | None = None

    @moved("fit", {"learning_rate": "optimizer={value}"})
    def fit(
        self,
        table: Any,
        images: Any,
        y: Any = None,
        valid: tuple | None = None,
        *,
        epochs: int = 20,
        batch_size: int | None = None,
        key: Any = 0,
        optimizer: float | optax.GradientTransformation = 1e-3,
        patience: int | None = None,
        groups: Any = None,
        resume: Any = None,
        progress: bool = True,
    ) -> "SemiStructured":
        """Train the networks, fit the posterior of the effects on rows that they have not seen, and return this object.

        The first Ctrl-C ends the training after the current epoch and continues with the best one.

        Args:
            table: data frame of pandas or polars, or dict of columns, N rows.
            images: inputs of the network, (N, ...); y if the table has a column of images.
            y: outcomes, (N,): 0 and 1, numbers, counts, or classes 0, ..., K-1.
            valid: (table, images, y) of other rows. The weights of the epoch with the best log score on them are kept;
                without it, the score is that of rows of the fold which the network is not trained on.
            epochs: passes over the rows.
            batch_size: rows per step (default 256; with few rows, enough for 32 steps per epoch, and at least 32).
            key: integer seed or `jax.random.key`; the same call gives the same result.
            optimizer: the peak learning rate of the weights, which are trained by Adam, or an optax optimizer with its
                own rate. Both warm up and decay, and minimize minus the mean log likelihood of a batch.
            patience: stop after so many epochs without a better log score.
            groups: (N,), the patient or hospital of every row, say: rows of one group stay in one fold.
            resume: folder in which the training is saved after every epoch; a second call with the same arguments and
                the same folder goes on from there, even if the first one was killed.
            progress: show progress bars, in terminals and notebooks.
        """
        table, images, y = self._split(table, images, y, "fit")
        for name, value in (("epochs", epochs), ("batch_size", batch_size), ("patience", patience)):
            check_count(name, value, 1)
        transformation, rate = choose_optimizer(optimizer)
        design = Design(self._formula, table, has_cutpoints=self.outcome == "ordinal")
        data = check_data(self.outcome, design, table, images, y, None)
        num_classes = int(data.y.max()) + 1 if self.outcome in ("ordinal", "categorical") else 2
        checked_valid = check_valid(self.outcome, design, valid, num_classes)
        checked_groups = check_groups(groups, len(data.y))
        main_key, network_key, flow_key = jax.random.split(as_key(key), 3)
        seed = np.asarray(jax.random.key_data(main_key)).ravel().tolist()
        problem = pose(design, self.outcome, data, num_classes, self.prior, self.networks, seed, checked_groups)
        precision = resolve_precision(self.precision)
        batch_size = batch_size or default_batch_size(len(data.y), self.networks)
        identity = {
            **self._describe(design, data, checked_valid, checked_groups),
            "code": fingerprint((self.prior, self._source, transformation)),
            "precision": precision,
            "epochs": epochs,
            "batch_size": batch_size,
            "learning_rate": rate,
            "patience": patience,
            "seed": seed,
        }
        folder = None if resume is None else open_folder(resume)
        options = Options(epochs, batch_size, transformation, rate, patience, folder, progress, identity)
        with use_precision("float64"):
            theta = begin_theta(problem)
        if self._left is None or self._left[0] != fingerprint(identity):
            with use_precision(precision):
                shape = check_output(self._source(network_key), data.images)
                check_network_output(self.outcome, shape, num_classes)
                own = None if checked_valid is None else scale_outcome(checked_valid, problem)
                left = train_networks(problem, self._source, own, network_key, options, theta)
            self._left = (fingerprint(identity), *left)
        self._trained, self._effects = self._infer(problem, theta, flow_key, precision, progress)
        self._left = None
        rows = {"x": problem.data.x[:0], "images": problem.data.images[:1], "y": problem.data.y[:0]}
        # Images that are not needed any more are released.
        self._problem = problem._replace(data=problem.data._replace(**rows), y=problem.y[:0])
        return self

    def _describe(self, design: Design, data: Data, valid: Data | None, groups: np.ndarray | None) -> dict[str, Any]:
        """Return the model and its data as JSON values, by which a checkpoint knows its fit."""
        return {
            "formula": self.formula,
            "columns": list(design.names),
            "outcome": self.outcome,
            "prior": describe_prior(self.prior),
            "networks": self.networks,
            "rows": len(data.y),
            "data": fingerprint(tuple(data)),
            "valid": None if valid is None else fingerprint(tuple(valid)),
            "groups": None if groups is None else fingerprint(groups),
        }

    def _infer(
        self, problem: Problem, theta: np.ndarray, key: Key[Array, ""], precision: str, progress: bool
    ) -> tuple[list[Trained], Effects]:
        """Return the networks that were trained, and the posterior of the effects given them."""
        assert self._left is not None
        _, trained, interrupted = self._left
        options = {"interrupted": interrupted, "family": self.family, "progress": progress}
        try:
            return trained, infer(problem, trained, theta, key, precision, **options)
        except Exception as error:
            raise BernflowError(
                f"The networks are trained, but the posterior of the effects failed ({type(error).__name__}: {error}). "
                "The trained networks are kept: call fit again with the same arguments to repeat the last step alone."
            ) from error

    @property
    def posterior(self) -> Posterior:
        """The posterior of the effects, in the units of the table."""
        return self._fitted("posterior")[1].posterior

    @property
    def diagnostics(self) -> Any:
        """Verdict and numbers of the posterior; "good" only if there are no `findings` about the intervals."""
        return self._fitted("diagnostics")[1].posterior.diagnostics

    @property
    def findings(self) -> list[str]:
        """Reasons why the intervals may be wrong, as sentences; empty if there are none."""
        return list(self._fitted("findings")[1].findings)

    @property
    def trained_networks(self) -> list[Network]:
        """The trained networks, frozen: call them with a batch of images."""
        self._fitted("trained_networks")
        return [one.network.with_weights(one.best.weights, one.best.state) for one in self._trained]

    @property
    def histories(self) -> list[dict[str, np.ndarray]]:
        """Training curves, one dict per network: epoch, loss, valid_score."""
        self._fitted("histories")
        return [one.history for one in self._trained]

    @property
    def best_epochs(self) -> list[int]:
        """The epochs whose weights were kept, one per network."""
        self._fitted("best_epochs")
        return [one.best_epoch for one in self._trained]

    def predict(
        self,
        table: Any,
        images: Any = None,
        num: int = 1000,
        kind: str = "mean",
        key: Any = 2,
        network: int | None = None,
    ) -> np.ndarray:
        """Return predictions of the outcome of rows, averaged over posterior draws and networks, in bounded memory.

        Args:
            table: as in `fit`.
            images: as in `fit`.
            num: number of posterior draws, shared by the networks.
            kind: "mean": P(y = 1) (N,), means (N,) for "gaussian" and "poisson", or probabilities of all classes
                (N, K); "proba": the same, for outcomes that have probabilities only; "draws": new outcomes, one per
                posterior draw, (num, N); "linear": draws of the linear predictor, (num, N); "images": draws of the part
                of it that comes from the images.
            key: integer seed or `jax.random.key`.
            network: index of the only network to use; None averages over all.
        """
        self._fitted("predict")
        if kind not in KINDS:
            raise ArgumentError(f"kind={kind!r} is unknown: expected one of {', '.join(map(repr, KINDS))}.")
        if kind == "proba" and self.outcome in ("gaussian", "poisson"):
            raise ArgumentError(
                f"kind='proba': the outcome {self.outcome!r} has no probabilities: use 'mean' or 'draws'."
            )
        table, images, _ = self._split(table, images, None, "predict")
        assert self._problem is not None
        x, images = check_rows(self._problem.design, table, images)
        parts = list(self._draw(x, images, check_count("num", num, 1), key, network))
        with use_precision("float64"):
            if kind in ("mean", "proba"):
                return np.mean([prediction.predict_mean(draws, inputs) for draws, inputs, _ in parts], axis=0)
            if kind == "draws":
                drawn = [prediction.predict_draws(*part) for part in parts]
            else:
                drawn = [prediction.predict_linear(d, inputs, kind == "images") for d, inputs, _ in parts]
            return np.concatenate(drawn)[:num]

    def score(self, table: Any, images: Any = None, y: Any = None, num: int = 1000, key: Any = 2) -> float:
        """Return the mean log score: the log of the probability (density) of y averaged over draws and networks.

        `table`, `images` and `y` are as in `fit`, `num` and `key` as in `predict`.
        """
        self._fitted("score")
        table, images, y = self._split(table, images, y, "score")
        assert self._problem is not None
        data = check_data(self.outcome, self._problem.design, table, images, y, self._problem.kind.num_classes)
        with use_precision("float64"):
            scores = [
                prediction.predict_scores(draws, inputs, data.y)
                for draws, inputs, _ in self._draw(data.x, data.images, check_count("num", num, 1), key)
            ]
        return float(np.mean(np.logaddexp.reduce(scores, axis=0) - np.log(len(scores))))

    def coefficients(self) -> "pd.DataFrame":
        """Tabulate the posterior of the effects, in the units of the table.

        Returns:
            One row per coefficient (per column and class with "categorical"): mean, sd, quantiles, and exp(beta) at the
            median, 5 % and 95 % as odds ratio or rate ratio, NaN for an intercept.
        """
        return tabulate(self._coefficient_draws("coefficients"), self.outcome)

    def summary(self, **options: Any) -> Any:
        """Return a table of all parameters, with the `options` of `Posterior.summary`."""
        return self._fitted("summary")[1].posterior.summary(**options)

    def priors(self) -> "pd.DataFrame":
        """Return the priors in the units of the table and, for coefficients, per standard deviation of a column."""
        import pandas as pd

        return pd.DataFrame.from_dict(self._fitted("priors")[1].priors, orient="index")

    def plot(self) -> "Figure":
        """Return a figure of the posteriors of the effects, and of the loss and the held-out score by epoch."""
        from bernflow.plots.coefficients import plot_coefficients

        draws = {": class ".join(map(str, name)): values for name, values in self._coefficient_draws("plot").items()}
        title = f"{self.outcome.capitalize()} outcome, {self._formula.text}, {len(self._trained)} networks"
        return plot_coefficients(draws, self.histories, self.best_epochs, title)

    def report(self, path: str | PathLike = "report.html", **options: Any) -> Path:
        """Write an HTML report of the effects to `path`, with the `options` of `Posterior.report`; return the path."""
        return self._fitted("report")[1].posterior.report(path, **options)

    def save(self, path: str | PathLike) -> Path:
        """Save posterior, weights and the columns of the table that the formula uses to `path`, and return it.

        The code of the network is not in the file: load it with `bernflow.load(path, network)`.
        """
        from bernflow.semistructured.saved import save

        self._fitted("save")
        return save(self, path)

    def __repr__(self) -> str:
        state = "not fitted" if self._effects is None else f"fitted, {self.diagnostics.verdict}"
        return f"SemiStructured({self.formula!r}, outcome={self.outcome!r}, networks={self.networks}; {state})"

    def _fitted(self, what: str) -> tuple[Problem, Effects]:
        if self._problem is None or self._effects is None:
            raise ArgumentError(f"{what} was called before fit: call fit(table, images, y) first.")
        return self._problem, self._effects

    def _split(self, table: Any, images: Any, y: Any, where: str) -> tuple[Any, Any, Any]:
        """Separate the images from the table if they are a column of it."""
        if self.images is None:
            if images is None or (y is None and where != "predict"):
                wanted = "table, images" if where == "predict" else "table, images, y"
                raise ArgumentError(
                    f"{where} was called without images or y: expected {where}({wanted}). Only with "
                    "SemiStructured(images=COLUMN) are they a column of the table."
                )
            return table, images, y
        return table, take_column(table, self.images), images if y is None else y

    def _coefficient_draws(self, what: str) -> dict[tuple, np.ndarray]:
        problem, effects = self._fitted(what)
        return by_coefficient(effects.draws, problem.design)

    def _draw(self, x: np.ndarray, images: np.ndarray, num: int, key: Any, network: int | None = None) -> Any:
        problem, effects = self._fitted("predict")
        if getattr(self.network, "apply", None) is missing_network:
            missing_network()
        precision = resolve_precision(self.precision)
        return draw_by_network(problem, effects, self._trained, x, images, num, key, precision, network)
