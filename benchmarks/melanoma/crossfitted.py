"""M1 and M3 with the default posterior: cross-fitted networks, whose last layers have a posterior, too."""

import time
from typing import NamedTuple

import jax
import numpy as np
import numpyro.distributions as dist
from scipy.special import expit

import bernflow as bf
from benchmarks.melanoma.runs import build_network, load_pictures, parts_of
from benchmarks.study.plan import Result
from bernflow import BernflowError

# Prior of the effect of age: that of the paper, or practically none, which leaves M1.
PRIOR_SD = {"M3": 1.0, "M1": 1e-3}
NUM_LINEAR = 400
MAX_NEWTON = 50


class Change(NamedTuple):
    """The effect of age beside the pictures minus that without them, on the same rows.

    Attributes:
        alone: the effect without pictures.
        beside: the effect beside them.
        sd: of the difference, where patients are the independent units.
        sd_of_rows: the same, where pictures are taken as independent.
        correlation: of the two estimates.
    """

    alone: float
    beside: float
    sd: float
    sd_of_rows: float
    correlation: float


def run_crossfitted(
    model: str,
    seed: int,
    epochs: int,
    dtype: str,
    by_patient: bool,
    num_rows: int | None = None,
    batch_size: int = 256,
    networks: int = 2,
) -> Result:
    """Fit M1 or M3 with cross-fitted networks; patients share a fold."""
    everything = load_pictures(by_patient)
    data = parts_of(everything, num_rows)
    train, test = data["train"], data["test"]
    patients = everything.patient_id[everything.rows("train")[:num_rows]]
    estimator = bf.SemiStructured(
        lambda key: build_network("paper", int(jax.random.randint(key, (), 0, 2**31 - 1)), dtype),
        ["age"],
        prior={"age": dist.Normal(0.0, PRIOR_SD[model])},
        networks=networks,
        precision="float32",
    )
    began = time.perf_counter()
    estimator.fit(
        {"age": train["age"]},
        train["images"],
        train["y"],
        epochs=epochs,
        batch_size=batch_size,
        key=seed,
        groups=patients,
        progress=False,
    )
    seconds = time.perf_counter() - began
    arguments = ({"age": test["age"]}, test["images"])
    singles = {f"test/{k}": estimator.predict(*arguments, network=k).astype(np.float32) for k in range(networks)}
    result: Result = {
        "seconds": seconds,
        "verdict": estimator.diagnostics.verdict,
        "findings": estimator.findings,
        "khat": estimator.diagnostics.khat,
        "ess_fraction": estimator.diagnostics.ess_fraction,
        "best_epochs": estimator.best_epochs,
        "test": np.mean(list(singles.values()), 0),
        **singles,
        "device": str(jax.devices()[0].device_kind),
    }
    if model == "M1":
        return result
    change = change_beside_pictures(estimator, train["age"], train["y"], patients)
    return {
        **result,
        "draws/beta_1": np.asarray(estimator.posterior.draws(4000)["age"], np.float32),
        "linear": _interval(estimator.predict(*arguments, num=NUM_LINEAR, kind="linear")),
        "images": _interval(estimator.predict(*arguments, num=NUM_LINEAR, kind="images")),
        "change": change._asdict(),
    }


def change_beside_pictures(estimator: bf.SemiStructured, age: np.ndarray, y: np.ndarray, groups: np.ndarray) -> Change:
    """Compare the effect of age beside pictures with that of a logistic regression on the same rows.

    Both estimates are sums over rows to first order: estimate - truth = sum_i inverse(information) score_i. Their
    difference is the sum of the differences of these terms, so its variance contains the correlation of the two, which
    intervals side by side do not. The networks are taken as given; their spread is that over seeds.

    Args:
        estimator: M3, fitted to these rows.
        age: standardized age (N,).
        y: outcomes (N,).
        groups: the patient of every row (N,).
    """
    given = estimator.posterior.model
    assert isinstance(given, bf.Model)
    # Rows lie fold after fold in the model of the posterior, in their order within each.
    assert estimator._problem is not None
    order = np.argsort(estimator._problem.fold, kind="stable")
    if not np.array_equal(np.asarray(given.y), y[order]):
        raise BernflowError("The rows of the posterior's model are not those of the folds.")
    prior = np.array([PRIOR_SD["M3"] ** -2.0, 1.0])
    alone, terms_alone = _logistic(np.stack([age, np.ones(len(age))], 1)[order], y[order], prior)
    x = {name: np.asarray(value, float) for name, value in given.x.items()}
    # The columns of the table with the conditional mode of the last layers in them.
    columns, probability = x["slope"][:, 0, :], expit(x["base"][:, 0])
    precision = (columns * (probability * (1 - probability))[:, None]).T @ columns + x["quadratic"]
    precision[0, 0] += prior[0]
    terms = np.linalg.solve(precision, (columns * (y[order] - probability)[:, None]).T)[0]
    return _compare(float(alone[0]), float(x["mode"][0]), terms_alone[0], terms, groups[order])


def _compare(alone: float, beside: float, terms_alone: np.ndarray, terms: np.ndarray, groups: np.ndarray) -> Change:
    place = np.unique(groups, return_inverse=True)[1].reshape(-1)
    difference = terms - terms_alone
    return Change(
        alone,
        beside,
        float(np.sqrt(np.sum(np.bincount(place, difference) ** 2))),
        float(np.sqrt(np.sum(difference**2))),
        float(np.corrcoef(np.bincount(place, terms), np.bincount(place, terms_alone))[0, 1]),
    )


def _logistic(x: np.ndarray, y: np.ndarray, prior: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mode of a logistic regression with a normal prior, and the term of every row in it (p, N)."""
    beta = np.zeros(x.shape[1])
    for _ in range(MAX_NEWTON):
        probability = expit(x @ beta)
        precision = (x * (probability * (1 - probability))[:, None]).T @ x + np.diag(prior)
        move = np.linalg.solve(precision, x.T @ (y - probability) - prior * beta)
        beta = beta + move
        if np.max(np.abs(move)) < 1e-10:
            break
    probability = expit(x @ beta)
    precision = (x * (probability * (1 - probability))[:, None]).T @ x + np.diag(prior)
    return beta, np.linalg.solve(precision, (x * (y - probability)[:, None]).T)


def _interval(draws: np.ndarray) -> np.ndarray:
    """Return median and 90 % interval by row, (N, 3)."""
    return np.quantile(draws, (0.5, 0.05, 0.95), axis=0).T.astype(np.float32)
