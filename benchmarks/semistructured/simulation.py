"""Simulated pictures and tables with known effects, and one repeat of the coverage study as a pure function."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.models.network import as_network
from bernflow.semistructured.crossfit import solve_folds
from bernflow.semistructured.features import find_last_layer, outputs_and_features
from bernflow.semistructured.lastlayer import Kind
from bernflow.semistructured.training import WEIGHTS_OPTIMIZER, Objective, Trainee, learning_rates, take_steps

PIXELS = 8
NOISE = 0.5
# Effects of a standard deviation of age, of sex, and of two doses against none.
EFFECTS = {
    "bernoulli": (0.6, -0.5, 0.3, 0.6),
    "gaussian": (0.6, -0.5, 0.3, 0.6),
    "poisson": (0.3, -0.25, 0.15, 0.3),
}
COLUMNS = ("age", "sex", "dose 1", "dose 2")
CORRELATION = 0.8


class Data(NamedTuple):
    """Columns, pictures, outcome and what the pictures contribute."""

    x: Float[Array, "n p"]
    images: Float[Array, "n h w"]
    y: Float[Array, " n"]
    f: Float[Array, " n"]


def simulate(key: Key[Array, ""], num: int, outcome: str, shared: bool) -> Data:
    """Draw rows whose pictures do or do not show the age.

    Three quarters of a picture have a brightness each; f is a function of these, so that no error of measurement is
    left: given the picture, the table has exactly the effects above.
    """
    k = jax.random.split(key, 7)
    age = jax.random.normal(k[0], (num,))
    own = jax.random.normal(k[1], (num,))
    shown = CORRELATION * age + (1 - CORRELATION**2) ** 0.5 * own if shared else own
    others = jax.random.normal(k[2], (num, 2))
    images = NOISE * jax.random.normal(k[3], (num, PIXELS, PIXELS))
    images = images.at[:, :4, :4].add(shown[:, None, None])
    images = images.at[:, 4:, 4:].add(others[:, 0, None, None]).at[:, :4, 4:].add(others[:, 1, None, None])
    a, b, c = (part.mean((1, 2)) for part in (images[:, :4, :4], images[:, 4:, 4:], images[:, :4, 4:]))
    f = 0.7 * a + jnp.tanh(1.5 * b) + 0.4 * b * c
    sex = jax.random.bernoulli(k[4], 0.5, (num,))
    dose = jax.random.randint(k[5], (num,), 0, 3)
    x = jnp.stack([age, sex, dose == 1, dose == 2], 1).astype(jnp.float32)
    f = 0.5 * f if outcome == "poisson" else f
    eta = f + x @ jnp.asarray(EFFECTS[outcome]) - 0.3
    noise = jax.random.uniform(k[6], (num,), minval=1e-6, maxval=1 - 1e-6)
    if outcome == "bernoulli":
        y = noise < jax.nn.sigmoid(eta)
    elif outcome == "gaussian":
        y = eta + jax.scipy.stats.norm.ppf(noise)
    else:
        y = _poisson(noise, jnp.exp(eta))
    return Data(x, images, y.astype(jnp.float32), f)


def _poisson(uniform: Array, rate: Array) -> Array:
    """Invert the distribution function; rates here are far below the largest count."""
    counts = jnp.arange(200.0)
    log_p = counts * jnp.log(rate)[:, None] - rate[:, None] - jax.scipy.special.gammaln(counts + 1)
    return jnp.sum(jnp.cumsum(jnp.exp(log_p), 1) < uniform[:, None], 1)


class Net(eqx.Module):
    """A small convolutional network."""

    convolution: eqx.nn.Conv2d
    hidden: eqx.nn.Linear
    last: eqx.nn.Linear

    def __init__(self, key: Any, channels: int = 8, width: int = 32):
        first, second, third = jax.random.split(key, 3)
        self.convolution = eqx.nn.Conv2d(1, channels, 3, stride=2, key=first)
        self.hidden = eqx.nn.Linear(channels * 9, width, key=second)
        self.last = eqx.nn.Linear(width, "scalar", key=third)

    def __call__(self, image: Array) -> Array:
        """Return one number."""
        return self.last(jax.nn.relu(self.hidden(jax.nn.relu(self.convolution(image[None])).ravel())))


NETWORK = as_network(Net(jax.random.key(0)))
LAST = find_last_layer(NETWORK, np.random.default_rng(0).normal(size=(8, PIXELS, PIXELS)).astype(np.float32))


class Plan(NamedTuple):
    """One cell of the study."""

    outcome: str
    shared: bool
    num_rows: int
    epochs: int
    batch_size: int
    rate: float
    folds: int = 2


def kind_of(outcome: str) -> Kind:
    """Return the kind of an outcome."""
    return Kind(outcome, 2, 1, 1 if outcome == "gaussian" else 0)


def train(plan: Plan, key: Key[Array, ""], x: Array, images: Array, y: Array, prior: tuple, theta: Array) -> tuple:
    """Train one network; return it after two thirds of the epochs, and at the end."""
    num, init, order, noise = len(y), *jax.random.split(key, 3)
    weights = as_network(Net(init)).weights
    objective = Objective(NETWORK.apply, kind_of(plan.outcome), WEIGHTS_OPTIMIZER, plan.rate, num)
    trainee: Trainee = objective.begin(NETWORK.with_weights(weights, None), theta)
    batch = min(plan.batch_size, num)
    steps = num // batch
    rates = jnp.asarray(learning_rates(plan.epochs * steps), jnp.float32).reshape(plan.epochs, steps)
    rows = {"x": x, "images": images, "y": y}

    def epoch(trainee: Trainee, inputs: tuple) -> tuple[Trainee, Array]:
        number, rates = inputs
        shuffled = jax.random.permutation(jax.random.fold_in(order, number), num)[: steps * batch]
        keys = jax.random.split(jax.random.fold_in(noise, number), steps)
        return take_steps(objective, prior, trainee, rows, shuffled.reshape(steps, batch), keys, rates)

    numbers, middle = jnp.arange(plan.epochs), max(1, round(plan.epochs * 2 / 3))
    before, _ = jax.lax.scan(epoch, trainee, (numbers[:middle], rates[:middle]))
    after, losses = jax.lax.scan(epoch, before, (numbers[middle:], rates[middle:]))
    return before, after, losses


def one_repeat(plan: Plan, key: Key[Array, ""]) -> dict[str, Array]:
    """Simulate, train, and return estimates and standard deviations of the effects; to be mapped by `jax.vmap`."""
    data_key, train_key = jax.random.split(key)
    data = simulate(data_key, plan.num_rows, plan.outcome, plan.shared)
    mean, sd = data.x.mean(0), data.x.std(0)
    x = jnp.concatenate([(data.x - mean) / sd, jnp.ones((plan.num_rows, 1))], 1)
    level, unit = (data.y.mean(), data.y.std()) if plan.outcome == "gaussian" else (0.0, 1.0)
    y = (data.y - level) / unit
    kind, num = kind_of(plan.outcome), x.shape[1] + (plan.outcome == "gaussian")
    prior = (jnp.zeros(num), jnp.full(num, 2.5**-2))
    size = plan.num_rows // plan.folds
    folds = jnp.arange(plan.folds * size).reshape(plan.folds, size)

    def fold(number: Array, key: Array) -> tuple:
        own, others = folds[number], jnp.delete(folds, number, 0, assume_unique_indices=True).reshape(-1)
        stages = train(plan, key, x[others], data.images[others], y[others], prior, jnp.zeros(num))[:2]
        return tuple(
            outputs_and_features(NETWORK.with_weights(stage.weights, None), data.images[own], LAST) for stage in stages
        )

    keys = jax.random.split(train_key, plan.folds)
    middle, end = jax.vmap(fold)(jnp.arange(plan.folds), keys)
    weight = jnp.ones((plan.folds, size))
    result = {"truth": jnp.asarray(EFFECTS[plan.outcome])}

    def summarize(name: str, out: Array, features: Array, part: Any = slice(None)) -> None:
        found, *_ = solve_folds(x[folds][part], True, out[part], features[part], y[folds][part], weight[part], kind, prior, jnp.zeros(num))
        theta, covariance = found.marginal()
        p = len(mean)
        result[name] = theta[:p] * unit / sd
        result[f"{name}_sd"] = jnp.sqrt(jnp.diagonal(covariance))[:p] * unit / sd

    summarize("end", *end)
    summarize("middle", *middle)
    for k in range(plan.folds):
        summarize(f"fold{k}", *end, slice(k, k + 1))
    # What a regression that knows f would say.
    f = data.f / unit
    summarize("oracle", f[folds][..., None], jnp.zeros((plan.folds, size, 0)))
    return result
