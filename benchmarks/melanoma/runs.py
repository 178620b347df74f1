"""The runs behind the melanoma experiment: M1 and M3 on pictures, M2 on ages; each is one task."""

import functools
import os
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import PyTree
from numpyro.infer import MCMC, NUTS
from scipy.special import expit

import bernflow as bf
from benchmarks.melanoma.cnn import augmented, better_cnn, paper_cnn
from benchmarks.melanoma.data import Melanoma, load
from benchmarks.melanoma.metrics import log_score
from benchmarks.melanoma.plain import RMSPROP, train_plain
from benchmarks.melanoma.tables import load_m2
from benchmarks.study.nuts import check_chains
from benchmarks.study.plan import Result
from bernflow import BernflowError
from bernflow.fit.batches.fitting import fit_minibatches
from bernflow.fit.batches.rows import Batches
from bernflow.fit.batches.stage import NetworkTraining
from bernflow.fit.run import Run
from bernflow.fit.settings import resolve_settings
from bernflow.fit.train.loop import run_alone
from bernflow.fit.train.state import TrainState
from bernflow.models.network import Network, evaluate
from bernflow.precision import use_precision

WHERE_THE_PICTURES_ARE = (
    "The pictures of the melanoma experiment are not shipped. Download the training images and the ground truth of "
    "ISIC 2020 from https://challenge2020.isic-archive.com, prepare them once with `bernflow data melanoma FOLDER "
    "CSV --out DIR`, and pass --data DIR. M2 runs without them: `bernflow reproduce melanoma --model m2`."
)
# Where the prepared pictures lie; the command line sets it from --data.
DATA_VARIABLE = "BERNFLOW_MELANOMA"
NUM_DRAWS = 1000
# Draws of the flow behind the validation score after every epoch.
NUM_VALIDATION_DRAWS = 100


@functools.lru_cache(maxsize=2)
def load_pictures(by_patient: bool) -> Melanoma:
    """Load the pictures, with the paper's split or one that keeps patients apart."""
    folder = os.environ.get(DATA_VARIABLE)
    if not folder:
        raise BernflowError(WHERE_THE_PICTURES_ARE)
    everything = load(Path(folder))
    return everything.by_patient() if by_patient else everything


def build_network(name: str, seed: int, dtype: str) -> Network:
    """Build a network by name: "paper", or "better", which sees augmented pictures."""
    key = jax.random.key(seed)
    return paper_cnn(key, dtype=dtype) if name == "paper" else augmented(better_cnn(key, dtype=dtype))


def run_m1(
    network: str,
    seed: int,
    epochs: int,
    dtype: str,
    by_patient: bool,
    num_rows: int | None = None,
    batch_size: int = 256,
) -> Result:
    """Train the network alone and keep the epoch with the best validation score."""
    data = parts_of(load_pictures(by_patient), num_rows)
    model = build_network(network, seed, dtype)
    best = _Best(data["valid"]["y"])
    clock = _Clock()

    def epoch_end(epoch: int, weights: PyTree, state: PyTree) -> None:
        clock.stop()
        probability = expit(evaluate(model.with_weights(weights, state), data["valid"]["images"]))
        best.see(epoch, probability, (weights, state))
        clock.start()

    rows = {"images": data["train"]["images"], "y": data["train"]["y"].astype(np.float32)}
    batches = Batches(rows, len(rows["y"]), min(batch_size, len(rows["y"])), seed)
    losses = train_plain(model, batches, epochs, jax.random.key(1000 + seed), epoch_end)
    trained = model.with_weights(*best.kept)
    return {
        "losses": losses,
        "seconds_per_epoch": clock.median(),
        **best.result(),
        "valid": np.asarray(best.probability, np.float32),
        "test": np.asarray(expit(evaluate(trained, data["test"]["images"])), np.float32),
        "device": str(jax.devices()[0].device_kind),
    }


def run_m3(
    network: str,
    seed: int,
    epochs: int,
    dtype: str,
    by_patient: bool,
    num_rows: int | None = None,
    batch_size: int = 256,
) -> Result:
    """Train network and posterior of beta_1 jointly, keep the best epoch, and fit the posterior given its network."""
    data = parts_of(load_pictures(by_patient), num_rows)
    train, valid, test = data["train"], data["valid"], data["test"]
    batch_size = min(batch_size, len(train["y"]))
    model = bf.Model(
        prior={"beta_1": dist.Normal(0.0, 1.0)},
        likelihood=lambda theta, x, h: dist.Bernoulli(logits=h + theta["beta_1"] * x),
        y=train["y"],
        x=train["age"],
        network=build_network(network, seed, dtype),
        images=train["images"],
    )
    best = _Best(valid["y"])
    clock = _Clock()

    def epoch_end(epoch: int, trainee: TrainState) -> bool:
        clock.stop()
        assert model.network is not None
        beta = trainee.flow.sample_and_log_prob(jax.random.key(epoch), NUM_VALIDATION_DRAWS)[0][:, 0]
        features = evaluate(model.network.with_weights(trainee.weights, trainee.state), valid["images"])
        best.see(epoch, predictive(features, valid["age"], np.asarray(beta)), trainee)
        clock.start()
        return False

    settings = resolve_settings(
        steps=epochs * (len(train["y"]) // batch_size), components=1, training=bf.Training(precision="float32")
    )
    # The paper's network is trained as in the paper; a rate that falls to zero suits the better one.
    how = {"optimizer": RMSPROP, "constant_rate": True} if network == "paper" else {}
    training = NetworkTraining(**how, epoch_end=epoch_end, keep=lambda _: best.kept)
    with use_precision("float32"):
        steps = fit_minibatches(model, settings, jax.random.key(seed), Run(refiner=bf.fit), batch_size, training)
        posterior = run_alone(steps)
    if posterior.settings["interrupted"]:
        raise KeyboardInterrupt  # half a fit is no result to keep
    draws = posterior.draws(4000)["beta_1"]
    fitted = posterior.model
    assert isinstance(fitted, bf.Model)
    assert fitted.network is not None
    features = {part: evaluate(fitted.network, data[part]["images"]) for part in ("valid", "test")}
    return {
        "losses": -np.asarray(posterior.history["joint_elbo"]) / len(train["y"]),
        "loss_steps": np.asarray(posterior.history["joint_step"]),
        "seconds_per_epoch": clock.median(),
        **best.result(),
        "draws/beta_1": np.asarray(draws, np.float32),
        "khat": posterior.diagnostics.khat,
        "ess_fraction": posterior.diagnostics.ess_fraction,
        "verdict": posterior.diagnostics.verdict,
        "valid": predictive(features["valid"], valid["age"], draws[:NUM_DRAWS]),
        "test": predictive(features["test"], test["age"], draws[:NUM_DRAWS]),
        "device": str(jax.devices()[0].device_kind),
    }


def run_m2(method: str, seed: int = 0, num_warmup: int = 1000, num_samples: int = 4000) -> Result:
    """Fit the logistic regression on age with the priors of the paper's program: all rows, batches, or NUTS."""
    train, test = load_m2()
    arguments = (np.asarray(train.age), np.asarray(train.target))
    if method == "nuts":
        draws, more = _nuts(arguments, num_warmup, num_samples)
    else:
        model = bf.Model(
            prior={"mu_0": dist.Normal(0.0, 1.0), "beta_1": dist.Normal(0.0, 1.0)},
            likelihood=lambda theta, x: dist.Bernoulli(logits=theta["mu_0"] + theta["beta_1"] * x),
            y=arguments[1],
            x=arguments[0],
        )
        how: dict[str, Any] = {"batch_size": 256} if method == "batches" else {"tolerance": 0}
        posterior = bf.fit(model, key=seed, progress=False, **how)
        if posterior.settings["interrupted"]:
            raise KeyboardInterrupt
        draws = posterior.draws(20_000)
        more = {
            "khat": posterior.diagnostics.khat,
            "ess_fraction": posterior.diagnostics.ess_fraction,
            "verdict": posterior.diagnostics.verdict,
            "steps": posterior.settings["steps"],
        }
    used = {name: np.asarray(values[:NUM_DRAWS], np.float64) for name, values in draws.items()}
    probability = np.mean(expit(used["mu_0"][:, None] + used["beta_1"][:, None] * np.asarray(test.age)), 0)
    return {
        **more,
        **{f"draws/{name}": np.asarray(values, np.float32) for name, values in draws.items()},
        "test": probability.astype(np.float32),
        "log_score": log_score(test.target, probability),
    }


def predictive(features: np.ndarray, age: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """Average the probability over draws of beta_1, a block of draws at a time."""
    total = np.zeros(len(features), np.float64)
    for block in np.array_split(np.asarray(beta, np.float64), max(1, len(beta) // 50)):
        total += expit(features.astype(np.float64) + block[:, None] * age).sum(0)
    return (total / len(beta)).astype(np.float32)


def _nuts(arguments: tuple[np.ndarray, np.ndarray], num_warmup: int, num_samples: int) -> tuple[dict, Result]:
    def model(x, y):
        mu = numpyro.sample("mu_0", dist.Normal(0.0, 1.0))
        beta = numpyro.sample("beta_1", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Bernoulli(logits=mu + beta * x), obs=y)

    with jax.enable_x64(True):
        chains = {"num_chains": 4, "chain_method": "vectorized", "progress_bar": False}
        mcmc = MCMC(NUTS(model), num_warmup=num_warmup, num_samples=num_samples, **chains)
        mcmc.run(jax.random.key(0), *map(jnp.asarray, arguments))
        grouped = {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}
    rhat, ess = check_chains("M2", list(grouped.values()))
    return {name: value.reshape(-1) for name, value in grouped.items()}, {"rhat": rhat, "ess": ess}


def parts_of(data: Melanoma, num_rows: int | None) -> dict[str, dict[str, np.ndarray]]:
    """Return images, age and outcome of every part in memory; `num_rows` takes the first rows of each only."""
    parts = {}
    for part in ("train", "valid", "test"):
        rows = data.rows(part)[:num_rows]
        parts[part] = {
            "images": np.asarray(data.images[rows]),
            "age": np.asarray(data.age_std[rows], np.float64),
            "y": np.asarray(data.target[rows], np.int32),
        }
    return parts


class _Best:
    """Remembers the epoch with the best validation score."""

    def __init__(self, target: np.ndarray):
        self._target = target
        self.scores: list[float] = []
        self.kept: Any = None
        self.probability = np.zeros(0)

    def see(self, epoch: int, probability: np.ndarray, candidate: Any) -> None:
        score = log_score(self._target, probability)
        if not self.scores or score > max(self.scores):
            self.kept, self.probability = candidate, probability
        self.scores.append(score)

    def result(self) -> Result:
        return {"valid_scores": np.array(self.scores), "best_epoch": int(np.argmax(self.scores)) + 1}


class _Clock:
    """Measures epochs of training without the validation between them."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._seconds: list[float] = []

    def stop(self) -> None:
        self._seconds.append(time.perf_counter() - self._began)

    def start(self) -> None:
        self._began = time.perf_counter()

    def median(self) -> float:
        """Return the median; the first epoch, which compiles, is no more than one of many."""
        return float(np.median(self._seconds))
