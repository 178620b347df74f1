"""Simulated pictures and tables with known effects, and one repeat of the coverage study as a pure function."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.models.network import as_network
from bernflow.semistructured.crossfit import agreement, dispersion, image_variance, solve_folds
from bernflow.semistructured.features import find_last_layer, outputs_and_features
from bernflow.semistructured.fitting import MIN_HELD
from bernflow.semistructured.lastlayer import Kind
from bernflow.semistructured.training import (
    WEIGHTS_OPTIMIZER,
    Kept,
    Objective,
    Trainee,
    rate_at,
    take_steps,
)

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


def simulate(key: Key[Array, ""], num: int, outcome: str, shared: Array) -> Data:
    """Draw rows whose pictures do or do not show the age.

    Three quarters of a picture have a brightness each; f is a function of these, so that no error of measurement is
    left: given the picture, the table has exactly the effects above.
    """
    k = jax.random.split(key, 7)
    age = jax.random.normal(k[0], (num,))
    own = jax.random.normal(k[1], (num,))
    shown = shared * CORRELATION * age + (1 - shared * CORRELATION**2) ** 0.5 * own
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


class Shape(NamedTuple):
    """What a compiled function depends on; which picture, centering and epochs are arguments of it."""

    outcome: str
    num_rows: int
    batch_size: int
    rate: float
    folds: int = 2

    @property
    def kind(self) -> Kind:
        """The kind of the outcome."""
        return Kind(self.outcome, 2, 1, 1 if self.outcome == "gaussian" else 0)

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        return self.num_rows * (self.folds - 1) // self.folds // self.batch_size


class Setting(NamedTuple):
    """The other arguments of a repeat: whether pictures show the age, its origin and unit, and the learning rates.

    Attributes:
        shared: one or zero.
        origin: of the age.
        unit: of the age.
        middle: epochs of the first half of the way.
        epochs: epochs in all.
    """

    shared: Array
    origin: Array
    unit: Array
    middle: Array
    epochs: Array


class Repeat(NamedTuple):
    """A simulated data set with its networks; leading axis: folds.

    Attributes:
        x: standardized columns and the constant.
        y: outcomes in units of the linear predictor.
        f: what the pictures contribute, in the same units.
        scale: sd of the columns, in units of the linear predictor.
        end: output, features and scores of rows left out, by the networks after their best epochs.
        middle: the same half of the way there.
        seen: output of the next network on the rows of a fold.
    """

    x: Float[Array, "k n p"]
    y: Float[Array, "k n"]
    f: Float[Array, "k n"]
    scale: Float[Array, " q"]
    end: tuple[Array, Array, Array]
    middle: tuple[Array, Array, Array]
    seen: Float[Array, "k n"]


def train(
    shape: Shape, setting: Setting, key: Key[Array, ""], rows: dict[str, Array], held: dict[str, Array], prior: tuple
) -> tuple[Kept, Kept]:
    """Train one network; return it half of the way there, and after the epoch with the best score on rows left out."""
    init, order, noise = jax.random.split(key, 3)
    num = len(rows["y"])
    objective = Objective(NETWORK.apply, shape.kind, WEIGHTS_OPTIMIZER, shape.rate, num)
    start = jnp.zeros(len(prior[0]))
    trainee = objective.begin(NETWORK.with_weights(as_network(Net(init)).weights, None), start)
    planned = setting.epochs * shape.steps

    def epoch(number: Array, carry: tuple[Trainee, Kept, Array]) -> tuple[Trainee, Kept, Array]:
        trainee, best, highest = carry
        step = number * shape.steps + jnp.arange(shape.steps)
        shuffled = jax.random.permutation(jax.random.fold_in(order, number), num)[: shape.steps * shape.batch_size]
        keys = jax.random.split(jax.random.fold_in(noise, number), shape.steps)
        indices = shuffled.reshape(shape.steps, shape.batch_size)
        trainee, _ = take_steps(objective, prior, trainee, rows, indices, keys, rate_at(step, planned))
        out = NETWORK.with_weights(trainee.weights, None)(held["images"])
        score = jnp.mean(objective.scores(out, trainee.theta, held["x"], held["y"]))
        best = jax.tree.map(lambda new, old: jnp.where(score > highest, new, old), Kept(*trainee[:3]), best)
        return trainee, best, jnp.maximum(score, highest)

    carry = jax.lax.fori_loop(0, setting.middle, epoch, (trainee, Kept(*trainee[:3]), jnp.float32(-jnp.inf)))
    middle = Kept(*carry[0][:3])
    return middle, jax.lax.fori_loop(setting.middle, setting.epochs, epoch, carry)[1]


def train_repeat(shape: Shape, setting: Setting, key: Key[Array, ""]) -> Repeat:
    """Simulate a data set and train its networks; to be mapped over keys by `jax.vmap`."""
    data_key, train_key = jax.random.split(key)
    data = simulate(data_key, shape.num_rows, shape.outcome, setting.shared)
    table = data.x.at[:, 0].set(setting.origin + setting.unit * data.x[:, 0])
    mean, sd = table.mean(0), table.std(0)
    x = jnp.concatenate([(table - mean) / sd, jnp.ones((shape.num_rows, 1))], 1)
    level, unit = (data.y.mean(), data.y.std()) if shape.outcome == "gaussian" else (0.0, 1.0)
    y = (data.y - level) / unit
    prior = prior_of(shape)
    objective = Objective(NETWORK.apply, shape.kind, WEIGHTS_OPTIMIZER, shape.rate, 1)
    size = shape.num_rows // shape.folds
    folds = jnp.arange(shape.folds * size).reshape(shape.folds, size)

    def fold(number: Array, key: Array) -> tuple:
        own, others = folds[number], jnp.delete(folds, number, 0, assume_unique_indices=True).reshape(-1)
        rows = {"x": x[others], "images": data.images[others], "y": y[others]}
        held = {name: values[own[:MIN_HELD]] for name, values in (("x", x), ("images", data.images), ("y", y))}
        parts = []
        for stage in train(shape, setting, key, rows, held, prior):
            out, features = outputs_and_features(NETWORK.with_weights(stage.weights, None), data.images[own], LAST)
            parts.append((out, features, objective.scores(out, stage.theta, x[own], y[own])))
        # How the last network sees the rows of the fold before its own, which belong to the training of that network.
        before = folds[(number - 1) % shape.folds]
        seen = NETWORK.with_weights(stage.weights, None)(data.images[before])
        return *parts, seen

    middle, end, seen = jax.vmap(fold)(jnp.arange(shape.folds), jax.random.split(train_key, shape.folds))
    return Repeat(x[folds], y[folds], data.f[folds] / unit, sd / unit, end, middle, jnp.roll(seen, -1, 0))


def prior_of(shape: Shape) -> tuple[Array, Array]:
    """Return mean and precision of theta: the default of a coefficient, and wide ones for the rest."""
    num = len(COLUMNS) + 1 + shape.kind.num_extra
    return jnp.zeros(num), jnp.asarray([2.5**-2] * (len(COLUMNS) + 1) + [1e-2] * shape.kind.num_extra)


def solve_repeat(shape: Shape, repeat: Repeat) -> dict[str, Array]:
    """Return the effects per unit of every column with their sd, and what the verdict needs; in double precision."""
    prior, p, result = prior_of(shape), len(COLUMNS), {}
    weight = jnp.ones(repeat.y.shape)

    def summarize(name: str, out: Array, features: Array, part: Any = slice(None)) -> Any:
        given = (repeat.x[part], True, out[part], features[part], repeat.y[part], weight[part])
        found, _, _, rows = solve_folds(*given, shape.kind, prior, prior[0])
        theta, covariance = found.marginal()
        result[name] = theta[:p] / repeat.scale
        result[f"{name}_sd"] = jnp.sqrt(jnp.diagonal(covariance))[:p] / repeat.scale
        return rows, found

    rows, found = summarize("end", *repeat.end[:2])
    summarize("middle", *repeat.middle[:2])
    for k in range(shape.folds):
        summarize(f"fold{k}", *repeat.end[:2], slice(k, k + 1))
    # What a regression that knows f would say.
    summarize("oracle", repeat.f[..., None], jnp.zeros((*repeat.y.shape, 0)))
    rises = (repeat.end[2] - repeat.middle[2]).reshape(-1)
    result |= {"rise": rises.mean(), "rise_se": rises.std() / rises.shape[0] ** 0.5}
    result["agreement"] = agreement(repeat.end[0].reshape(repeat.y.shape), repeat.seen.reshape(repeat.y.shape), weight)
    result["images"] = image_variance(rows, shape.kind, found)
    result["dispersion"] = jnp.stack(dispersion(rows, shape.kind, found))
    columns, said = repeat.x[..., :p], rows.z[..., 1 : 1 + p]
    result["shown"] = jax.vmap(jax.vmap(_squared_correlation, -1), 0)(columns, said).mean(0)
    return result


def _squared_correlation(a: Array, b: Array) -> Array:
    a, b = a - a.mean(), b - b.mean()
    return (a @ b) ** 2 / jnp.maximum((a @ a) * (b @ b), 1e-30)
