"""What the trainings of an ensemble share: the model, the validation, the projection."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from bernflow.models import Model
from bernflow.models.network import Network, evaluate
from bernflow.posterior import Posterior
from bernflow.semistructured.design import INTERCEPT, Design
from bernflow.semistructured.orthogonal import Projection, find_basis, find_projection
from bernflow.semistructured.outcomes import Likelihood, make_prior, site_names
from bernflow.semistructured.prediction import Inputs, score_of_trainee
from bernflow.semistructured.training import Follower
from bernflow.target import Layout

# Posterior draws per validation.
NUM_VALIDATION_DRAWS = 200


class Member(NamedTuple):
    """One network with the posterior given it, and the curves of its training."""

    posterior: Posterior
    network: Network
    projection: Projection | None
    history: dict[str, np.ndarray]
    best_epoch: int


class Data(NamedTuple):
    """Checked rows: matrix of the table, images, outcome."""

    matrix: np.ndarray
    images: np.ndarray
    y: np.ndarray


class Plan:
    """What the trainings of all networks share, and what predictions need of them.

    Args:
        design: the matrix of the formula.
        data: rows to train on.
        valid: rows to choose the epoch by, or None.
        outcome: kind of the outcome.
        num_classes: number of classes, 1 where there are none.
        prior: as the user gave it.
        orthogonalize: take out of the network's output what is linear in the table.

    Attributes:
        likelihood: the distribution of y.
    """

    def __init__(
        self,
        design: Design,
        data: Data,
        valid: Data | None,
        outcome: str,
        num_classes: int,
        prior: Any,
        orthogonalize: bool,
    ):
        self._design = design
        self._data: Data | None = data
        self._valid = valid
        self._num_classes = num_classes
        self._basis = find_basis(columns_of(design, data.matrix)) if orthogonalize else None
        # Cutpoints and a written intercept are the level; without them it is the network's.
        keep_level = not (design.formula.has_intercept or outcome == "ordinal")
        self.likelihood = Likelihood(outcome, site_names(design.names), keep_level)
        self._prior = make_prior(outcome, design.names, prior, data.y, num_classes)

    def model(self, network: Network) -> Model:
        """Return the model with one network."""
        assert self._data is not None
        x = {"table": self._data.matrix}
        if self._basis is not None:
            x["basis"] = self._basis(columns_of(self._design, self._data.matrix))
        return Model(
            prior=self._prior,
            likelihood=self.likelihood,
            y=self._data.y,
            x=x,
            network=network,
            images=self._data.images,
        )

    def validation(self, model: Model) -> Callable:
        """Return the function that scores a trainee on the validation rows."""
        valid, layout = self._valid, Layout(model.sites)
        assert valid is not None
        assert model.network is not None
        assert self._data is not None
        network, data = model.network, self._data

        def validate(trainee: Any) -> float:
            current = network.with_weights(trainee.weights, trainee.state)
            projection = None
            if self._basis is not None:
                projection = self._project(evaluate(current, data.images))
            h = self.outside(evaluate(current, valid.images), valid.matrix, projection)
            inputs = Inputs(valid.matrix, h)
            return score_of_trainee(
                trainee, layout, self.likelihood, inputs, valid.y, self._num_classes, NUM_VALIDATION_DRAWS
            )

        return validate

    def member(self, posterior: Posterior, follower: Follower, steps_per_epoch: int) -> Member:
        """Wrap up one training."""
        model = posterior.model
        assert isinstance(model, Model)
        assert model.network is not None
        projection = None if self._basis is None else self._project(np.asarray(model.features, np.float64))
        history = follower.history
        # The record of all epochs, those before an interruption included.
        posterior.history |= {
            "joint_step": history["epoch"] * steps_per_epoch,
            "joint_elbo": history["elbo"],
            "joint_elbo_se": history["elbo_se"],
        }
        posterior.settings["joint_steps"] = int(len(history["epoch"]) * steps_per_epoch)
        return Member(posterior, model.network, projection, history, follower.best_epoch)

    def outside(self, h: np.ndarray, matrix: np.ndarray, projection: Projection | None) -> np.ndarray:
        """Take the projection of the training out of the output for other rows."""
        if projection is None or self._basis is None:
            return h
        return projection.residual(h, self._basis(columns_of(self._design, matrix)), self.likelihood.keep_level)

    def forget_rows(self) -> None:
        """Let go of images that nobody needs any more."""
        self._data = self._valid = None

    def _project(self, h: np.ndarray) -> Projection:
        assert self._data is not None
        assert self._basis is not None
        return find_projection(h, self._basis(columns_of(self._design, self._data.matrix)))


def columns_of(design: Design, matrix: np.ndarray) -> np.ndarray:
    """Return the matrix without its intercept."""
    return matrix[:, [name != INTERCEPT for name in design.names]]
