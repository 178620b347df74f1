"""`SemiStructured`: a network for the images, a Bayesian regression for the table, one outcome."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import optax

from bernflow.errors import ArgumentError
from bernflow.fingerprint import fingerprint
from bernflow.fit.api import refine
from bernflow.fit.bar import Bar
from bernflow.fit.deadline import Deadline
from bernflow.fit.engine import warn_if_poor
from bernflow.fit.minibatches import WEIGHTS_OPTIMIZER, NetworkTraining, fit_minibatches
from bernflow.fit.run import Run
from bernflow.fit.settings import Settings, check_count, resolve_settings
from bernflow.fit.train.loop import run_alone
from bernflow.keys import as_key
from bernflow.models.network import Network, check_output, evaluate
from bernflow.posterior import Posterior
from bernflow.precision import use_precision
from bernflow.semistructured import prediction
from bernflow.semistructured.checkpoint import Checkpoint, open_folder
from bernflow.semistructured.coefficients import coefficient_draws, tabulate
from bernflow.semistructured.design import Design, Formula
from bernflow.semistructured.identity import describe_prior
from bernflow.semistructured.members import NetworkSource
from bernflow.semistructured.outcomes import check_network_output, check_outcome, check_prior
from bernflow.semistructured.plan import Member, Plan
from bernflow.semistructured.prediction import Inputs
from bernflow.semistructured.rows import check_data, check_rows, check_valid
from bernflow.semistructured.training import Follower

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# Posterior draws behind the table of coefficients.
NUM_TABLE_DRAWS = 4000
KINDS = ("mean", "proba", "draws")


class SemiStructured:
    """A regression on a table whose unexplained part is a deep network of images (or any other tensor).

    With the columns X of the table and the output h of the network, one number per row (K-1 for K classes),

        eta = X beta + h,

    and eta is the logit of P(y = 1) ("bernoulli"), the mean ("gaussian", sigma ~ HalfNormal(sd of y)), the log rate
    ("poisson"), the location of a cumulative logit with K-1 ordered cutpoints ~ Normal(0, 5) ("ordinal"), or the K-1
    logits of the classes 1, ..., K-1 against class 0 ("categorical"). The weights of the network are point estimates,
    beta has a posterior, and both are trained together by the ELBO on minibatches; afterwards the posterior is fitted
    once more to all rows given the trained network. So the posterior of beta is conditional on the network's point
    estimate: what the uncertainty of the weights adds is not in it. An ensemble shows part of that, because each
    network ends elsewhere.

    That holds for the intercept, too, as long as the network owns it. The sd of the coefficient of a column with mean
    m and sd s comes out too small by up to a factor sqrt(1 + m^2 / s^2): nothing for a centered column, 1.4 for a
    category of half of the rows, 4 for an age of 60 +- 15. Center such columns, `center(age)` or `scale(age)`, or write
    the intercept, "1 + age + C(sex)", so that it has a posterior beside the other coefficients.

    The columns are used as they are. The default prior, Normal(0, 2.5) for every coefficient, fits columns whose values
    differ by about one: write `scale(age)` (mean 0, sd 1) or `I(age / 10)` (per ten years) in the formula, or give a
    prior; with "gaussian" the prior also has to match the unit of y.

    Orthogonalization. Where images show what the table says (a face shows the age), network and coefficients can both
    explain it, and beta is what the network happens to leave over. With `orthogonalize=True` the part of h that is
    linear in the columns is taken out, h - Z Z^+ h with Z the centered columns, so that whatever is linear in the table
    is counted for beta, which then means what it means in a regression on the table alone. In training the projection
    is that of each batch (batches must have many more rows than the formula has columns), in the final posterior and in
    predictions that of all training rows. The limits: only linear effects are taken out, the network may still learn a
    curve in age; with a link that is not linear, coefficients also change because the images explain more of the
    outcome; and an effect that images have through the table is no longer seen as one of the images.

    Args:
        network: an equinox module for one input, a pair of such a module and its state, a flax.nnx module for a
            batch, a bernflow `Network`, or a function of a random key that makes one of these. It owns the intercept.
        formula: columns of the table in the grammar of formulaic. There is no intercept, unless it is written
            ("1 + age").
        outcome: "bernoulli", "gaussian", "poisson", "ordinal" or "categorical".
        prior: a NumPyro distribution for every coefficient, or a dict of them by column of the formula; default
            Normal(0, 2.5).
        family: family of the posterior, as in `bf.fit`.
        augment: `augment(key, images)` returns a batch of images to train on in place of the batch given.
        ensemble: number of networks, each with a posterior of its own; `network` is then a function of a key.
        orthogonalize: take out of the network's output what is linear in the table.
        precision: as in `bf.fit`; images that are not of double precision stay as they are.

    Attributes:
        posteriors: one `Posterior` per network; its coefficients have the names of the columns.
        networks: the trained networks, frozen.
        histories: one dict per network with "epoch", "elbo", "elbo_se" and, with validation, "valid_score".
        best_epochs: the epoch whose weights were kept, one per network; 0 without validation.

    Example:
        >>> import equinox as eqx, jax, numpy as np, bernflow as bf
        >>> rng = np.random.default_rng(0)
        >>> images, table = rng.normal(size=(200, 3)), {"age": rng.normal(size=200)}
        >>> y = rng.random(200) < 1 / (1 + np.exp(-images[:, 0] - table["age"]))
        >>> network = eqx.nn.Linear(3, "scalar", key=jax.random.key(0))
        >>> model = bf.SemiStructured(network, "age").fit(table, images, y, epochs=2, batch_size=50, progress=False)
        >>> list(model.coefficients().index)
        ['age']
        >>> model.predict({"age": [0.0, 1.0]}, images[:2]).shape
        (2,)
    """

    def __init__(
        self,
        network: Any,
        formula: str,
        outcome: str = "bernoulli",
        prior: Any = None,
        family: Any = "bernstein",
        augment: Callable | None = None,
        ensemble: int = 1,
        orthogonalize: bool = False,
        precision: str | None = None,
    ):
        self.outcome = check_outcome(outcome)
        self.formula = Formula(formula)
        if self.formula.has_intercept and outcome == "ordinal":
            raise ArgumentError(
                f"formula={formula!r} asks for an intercept, and the outcome is 'ordinal', whose cutpoints are the "
                "intercepts: leave the 1 out."
            )
        check_prior(prior)
        self.prior = prior
        self.family = family
        self.ensemble = check_count("ensemble", ensemble, 1)
        if not isinstance(orthogonalize, bool):
            raise ArgumentError(f"orthogonalize={orthogonalize!r}: expected True or False.")
        self.orthogonalize = orthogonalize
        self.precision = precision
        self._resolve(None, 1)
        self._networks = NetworkSource(network, self.ensemble, augment)
        self._members: list[Member] = []
        self._design: Design | None = None

    def fit(
        self,
        table: Any,
        images: Any,
        y: Any,
        valid: tuple | None = None,
        *,
        epochs: int = 20,
        batch_size: int = 256,
        key: Any = 0,
        learning_rate: float = 1e-3,
        optimizer: optax.GradientTransformation | None = None,
        num_particles: int = 32,
        patience: int | None = None,
        checkpoint: Any = None,
        progress: bool = True,
    ) -> "SemiStructured":
        """Train the network and the posterior together, then fit the posterior to all rows given the network.

        Args:
            table: pandas DataFrame or dict of columns, N rows.
            images: inputs of the network, (N, ...).
            y: outcomes, (N,): 0 and 1, numbers, counts, or classes 0, ..., K-1.
            valid: (table, images, y) of other rows; the weights of the epoch with the best log score on them are kept.
            epochs: passes over the rows.
            batch_size: rows per step.
            key: integer seed or `jax.random.key`; the same call gives the same result.
            learning_rate: peak learning rate of the weights, which are trained by Adam; it warms up and decays.
            optimizer: an optax optimizer of the weights with its own rate, in place of Adam; its updates still warm up
                and decay. It minimizes the negative ELBO, a sum over all N rows.
            num_particles: posterior draws per step.
            patience: stop after so many epochs without a better log score on `valid`.
            checkpoint: folder in which the training is saved after every epoch; a second call with the same arguments
                and the same folder goes on from there, and ends as if nothing had happened.
            progress: show a progress bar, in terminals and notebooks.
        """
        epochs, batch_size = check_count("epochs", epochs, 1), check_count("batch_size", batch_size, 1)
        if patience is not None:
            check_count("patience", patience, 1)
            if valid is None:
                raise ArgumentError(f"patience={patience} without valid: expected valid=(table, images, y) to stop by.")
        transformation, rate = _optimizer(optimizer, learning_rate)
        # A copy of the design, so that a fit that fails leaves the last one usable.
        design = Design(self.formula, table)
        data = check_data(self.outcome, design, table, images, y, None)
        num_classes = int(data.y.max()) + 1 if self.outcome in ("ordinal", "categorical") else 1
        checked_valid = check_valid(self.outcome, design, valid, num_classes)
        batch_size = min(batch_size, len(data.y))
        steps_per_epoch = len(data.y) // batch_size
        settings = self._resolve(epochs * steps_per_epoch, num_particles)
        folder = None if checkpoint is None else open_folder(checkpoint)
        keys = jax.random.split(as_key(key), 2 * self.ensemble).reshape(self.ensemble, 2)
        arguments = {
            "formula": self.formula.text,
            "columns": list(design.names),
            "outcome": self.outcome,
            "prior": describe_prior(self.prior),
            "family": str(self.family),
            "orthogonalize": self.orthogonalize,
            "rows": len(data.y),
            "data": fingerprint(tuple(data)),
            "valid": None if checked_valid is None else fingerprint(tuple(checked_valid)),
            "code": fingerprint((self.prior, self._networks, optimizer)),
            "epochs": epochs,
            "batch_size": batch_size,
            "learning_rate": learning_rate,
            "num_particles": num_particles,
            "patience": patience,
        }
        plan = Plan(design, data, checked_valid, self.outcome, num_classes, self.prior, self.orthogonalize)
        members = []
        for number, (network_key, train_key) in enumerate(keys):
            file = None
            if folder is not None:
                arguments |= {"key": np.asarray(jax.random.key_data(train_key)).tolist()}
                file = Checkpoint(folder / f"network-{number}.npz", arguments)
            network = self._networks(network_key)
            with use_precision(settings.precision):
                check_network_output(self.outcome, check_output(network, data.images), num_classes)
                model = plan.model(network)
                validate = None if checked_valid is None else plan.validation(model)
                follower = Follower(steps_per_epoch, epochs, num_particles, validate, patience, file)
                training = NetworkTraining(
                    optimizer=transformation,
                    rate=rate,
                    epoch_end=follower.epoch_end,
                    resume=follower.resume,
                    keep=follower.keep,
                    report=follower.report,
                )
                deadline = Deadline.start()
                name = "network" if len(keys) == 1 else f"network {number + 1} of {len(keys)}"
                with Bar(progress, deadline, name) as bar:
                    run = Run(deadline, bar, refine)
                    steps = fit_minibatches(model, settings, train_key, run, batch_size, training)
                    posterior = run_alone(steps)
                if posterior.settings["interrupted"]:
                    raise KeyboardInterrupt  # what the network has learned is in its checkpoint
                warn_if_poor(posterior)
                members.append(plan.member(posterior, follower, steps_per_epoch))
        self._members, self._design, self._plan, self._num_classes = members, design, plan, num_classes
        plan.forget_rows()
        return self

    @property
    def posterior(self) -> Posterior:
        """The posterior; an ensemble has one per network, see `posteriors`."""
        members = self._fitted("posterior")
        if len(members) > 1:
            raise ArgumentError(
                f"posterior: the ensemble has {len(members)} of them: use posteriors[i] or coefficients()."
            )
        return members[0].posterior

    @property
    def posteriors(self) -> list[Posterior]:
        """The posteriors, one per network."""
        return [member.posterior for member in self._fitted("posteriors")]

    @property
    def networks(self) -> list[Network]:
        """The trained networks, frozen: call them with a batch of images."""
        return [member.network for member in self._fitted("networks")]

    @property
    def histories(self) -> list[dict[str, np.ndarray]]:
        """The curves of the training, one dict per network."""
        return [member.history for member in self._fitted("histories")]

    @property
    def best_epochs(self) -> list[int]:
        """The epochs whose weights were kept, one per network; 0 without validation."""
        return [member.best_epoch for member in self._fitted("best_epochs")]

    def predict(self, table: Any, images: Any, num: int = 1000, kind: str = "mean", key: Any = 2) -> np.ndarray:
        """Predict the outcome of rows, averaged over posterior draws and networks, in bounded memory.

        Args:
            table: as in `fit`.
            images: as in `fit`.
            num: number of posterior draws, shared by the networks.
            kind: "mean": P(y = 1) (N,), means (N,) for "gaussian" and "poisson", or probabilities of all classes
                (N, K); "proba": the same, for outcomes that have probabilities only; "draws": new outcomes, one per
                posterior draw, (num, N).
            key: integer seed or `jax.random.key`.
        """
        members = self._fitted("predict")
        if kind not in KINDS:
            raise ArgumentError(f"kind={kind!r} is unknown: expected one of {', '.join(map(repr, KINDS))}.")
        if kind == "proba" and self.outcome in ("gaussian", "poisson"):
            raise ArgumentError(
                f"kind='proba': the outcome {self.outcome!r} has no probabilities: use 'mean' or 'draws'."
            )
        check_count("num", num, 1)
        assert self._design is not None
        parts = list(self._predictive(members, *check_rows(self._design, table, images), num, key))
        like, classes = self._plan.likelihood, self._num_classes
        if kind == "draws":
            keys = jax.random.split(jax.random.fold_in(as_key(key), 1), len(parts))
            with use_precision("float64"):
                drawn = [
                    prediction.predict_draws(like, theta, inputs, k, classes)
                    for (theta, inputs), k in zip(parts, keys, strict=True)
                ]
            return np.concatenate(drawn)[:num]
        with use_precision("float64"):
            return np.mean([prediction.predict_mean(like, theta, inputs, classes) for theta, inputs in parts], axis=0)

    def score(self, table: Any, images: Any, y: Any, num: int = 1000, key: Any = 2) -> float:
        """Return the mean log score: the log of the probability (density) of y averaged over draws and networks."""
        members = self._fitted("score")
        check_count("num", num, 1)
        assert self._design is not None
        data = check_data(self.outcome, self._design, table, images, y, self._num_classes)
        with use_precision("float64"):
            scores = [
                prediction.log_scores(self._plan.likelihood, theta, inputs, data.y, self._num_classes)
                for theta, inputs in self._predictive(members, data.matrix, data.images, num, key)
            ]
        return float(np.mean(np.logaddexp.reduce(scores, axis=0) - np.log(len(scores))))

    def coefficients(self, num: int = NUM_TABLE_DRAWS, key: Any = 1) -> "pd.DataFrame":
        """Tabulate the posterior of the coefficients; an ensemble's is the mixture of its posteriors.

        Args:
            num: number of draws per network.
            key: integer seed or `jax.random.key`.

        Returns:
            One row per coefficient (per column and class with "categorical"): mean, sd, quantiles, and exp(beta) at the
            median, 5 % and 95 % as odds ratio or rate ratio, NaN for an intercept.
        """
        return tabulate(self._coefficient_draws(num, key), self.outcome)

    def plot(self, num: int = NUM_TABLE_DRAWS, key: Any = 1) -> "Figure":
        """Plot the posteriors of the coefficients, and the ELBO and the validation score by epoch."""
        from bernflow.plots.coefficients import plot_coefficients

        draws = {": class ".join(map(str, name)): values for name, values in self._coefficient_draws(num, key).items()}
        count = f"{len(self._members)} networks" if len(self._members) > 1 else "one network"
        title = f"{self.outcome.capitalize()} outcome, {self.formula.text}, {count}"
        return plot_coefficients(draws, self.histories, self.best_epochs, title)

    def __repr__(self) -> str:
        state = "fitted" if self._members else "not fitted"
        return f"SemiStructured({self.formula.text!r}, outcome={self.outcome!r}, ensemble={self.ensemble}; {state})"

    def _fitted(self, what: str) -> list[Member]:
        if not self._members:
            raise ArgumentError(f"{what} was called before fit: call fit(table, images, y) first.")
        return self._members

    def _coefficient_draws(self, num: int, key: Any) -> dict[tuple, np.ndarray]:
        members = self._fitted("coefficients")
        assert self._design is not None
        return coefficient_draws(members, self._design.names, check_count("num", num, 1), key)

    def _predictive(self, members: list[Member], matrix: np.ndarray, images: np.ndarray, num: int, key: Any):
        """Yield, for every network, draws of the parameters and the inputs of the likelihood."""
        each = -(-num // len(members))
        for member, draw_key in zip(members, jax.random.split(as_key(key), len(members)), strict=True):
            with use_precision(member.posterior.settings["precision"]):
                h = evaluate(member.network, images).astype(np.float64)
            h = self._plan.outside(h, matrix, member.projection)
            yield member.posterior.draws(each, draw_key, deterministic=False), Inputs(matrix, h)

    def _resolve(self, steps: int | None, num_particles: int) -> Settings:
        return resolve_settings(
            family=self.family,
            order=None,
            base=None,
            steps=steps,
            num_particles=num_particles,
            restarts=None,
            components=1,
            optimizer=None,
            precision=self.precision,
        )


def _optimizer(optimizer: Any, learning_rate: Any) -> tuple[optax.GradientTransformation, float]:
    if isinstance(learning_rate, bool) or not isinstance(learning_rate, int | float) or not learning_rate > 0:
        raise ArgumentError(f"learning_rate={learning_rate!r}: expected a positive number.")
    if optimizer is None:
        return WEIGHTS_OPTIMIZER, float(learning_rate)
    if isinstance(optimizer, optax.GradientTransformation):
        return optimizer, 1.0
    raise ArgumentError(
        f"optimizer={optimizer!r}: expected an optax optimizer such as optax.adamw(1e-3), or None for Adam with "
        "learning_rate."
    )
