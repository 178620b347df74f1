"""The test set: targets drawn from a written recipe with seeds fixed in advance.

The constants of bernflow were chosen on the targets of the paper, of posteriordb and of `benchmarks.stress`: good
figures there say how well the constants fit them. Nobody chose the targets here. `RECIPES` says how a posterior of each
kind is drawn, sizes and difficulties included; each is drawn `DRAWS` times, with seeds that follow from `FIRST_SEED`.
None was fitted before the run that is published. Whoever changes a constant because of a figure on one of them makes it
a target of development: then `FIRST_SEED` must change, and everything is run anew.

Example:
    >>> from benchmarks.heldout import HELD_OUT
    >>> len(HELD_OUT), list(HELD_OUT)[:2]
    (36, ['linear-0', 'linear-1'])
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from benchmarks.targets import Benchmark

FIRST_SEED = 20_261_119
DRAWS = 3
UNIT = dist.Normal(0.0, 1.0)

# The arguments of a model, drawn from a generator of random numbers.
Data = tuple[Any, ...]


def _predictors(rng: np.random.Generator, rows: int, num: int) -> np.ndarray:
    """Draw predictors whose correlation is itself drawn, up to nearly one."""
    common = rng.normal(size=(rows, 1))
    share = rng.uniform(0.0, 0.99)
    return np.sqrt(share) * common + np.sqrt(1.0 - share) * rng.normal(size=(rows, num))


def linear(x: Any, y: Any) -> None:
    """Linear regression with an unknown scale of the noise."""
    b = numpyro.sample("b", UNIT.expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(x @ b, sigma), obs=y)


def linear_data(rng: np.random.Generator) -> Data:
    """Draw 10 to 200 rows and 2 to 20 predictors."""
    rows, num = int(rng.integers(10, 200)), int(rng.integers(2, 20))
    x = _predictors(rng, rows, num)
    return x, x @ rng.normal(size=num) + rng.uniform(0.1, 2.0) * rng.normal(size=rows)


def robust(x: Any, y: Any) -> None:
    """Linear regression with Student-t noise of unknown degrees of freedom."""
    b = numpyro.sample("b", UNIT.expand([x.shape[1]]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    nu = numpyro.sample("nu", dist.Gamma(2.0, 0.1))
    numpyro.sample("y", dist.StudentT(nu, x @ b, sigma), obs=y)


def robust_data(rng: np.random.Generator) -> Data:
    """Draw the data of a linear regression whose noise has heavy tails."""
    rows, num = int(rng.integers(15, 100)), int(rng.integers(1, 8))
    x = _predictors(rng, rows, num)
    return x, x @ rng.normal(size=num) + rng.uniform(0.2, 1.0) * rng.standard_t(rng.uniform(1.5, 6.0), rows)


def logistic(x: Any, y: Any) -> None:
    """Logistic regression."""
    b = numpyro.sample("b", dist.Normal(0.0, 2.5).expand([x.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=x @ b), obs=y)


def logistic_data(rng: np.random.Generator) -> Data:
    """Draw 10 to 150 rows and 2 to 15 predictors: few rows may be separated."""
    rows, num = int(rng.integers(10, 150)), int(rng.integers(2, 15))
    x = _predictors(rng, rows, num)
    return x, rng.binomial(1, 1.0 / (1.0 + np.exp(-x @ (1.5 * rng.normal(size=num)))))


def counts(x: Any, y: Any) -> None:
    """Negative binomial regression of counts."""
    b = numpyro.sample("b", UNIT.expand([x.shape[1]]).to_event(1))
    level = numpyro.sample("level", dist.Normal(0.0, 3.0))
    shape = numpyro.sample("shape", dist.Gamma(1.0, 0.2))
    numpyro.sample("y", dist.NegativeBinomial2(jnp.exp(level + x @ b), shape), obs=y)


def counts_data(rng: np.random.Generator) -> Data:
    """Draw counts that vary more than those of a Poisson distribution."""
    rows, num = int(rng.integers(20, 150)), int(rng.integers(1, 6))
    x = _predictors(rng, rows, num)
    mean = np.exp(rng.uniform(-1.0, 2.0) + 0.5 * x @ rng.normal(size=num))
    return x, rng.poisson(mean * rng.gamma(2.0, 0.5, rows))


def groups(group: Any, y: Any, num_groups: int, centered: bool) -> None:
    """Means of groups around a common mean; the form is part of the draw."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0))
    if centered:
        theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([num_groups]).to_event(1))
    else:
        raw = numpyro.sample("raw", UNIT.expand([num_groups]).to_event(1))
        theta = numpyro.deterministic("theta", mu + tau * raw)
    numpyro.sample("y", dist.Normal(theta[group], sigma), obs=y)


def groups_data(rng: np.random.Generator) -> Data:
    """Draw 4 to 25 groups of one to a few rows, whose means may be nearly equal."""
    num = int(rng.integers(4, 25))
    group = np.repeat(np.arange(num), rng.integers(1, 8, num))
    theta = rng.normal() + rng.choice([0.1, 1.0, 3.0]) * rng.normal(size=num)
    return group, theta[group] + rng.normal(size=len(group)), num, bool(rng.integers(2))


def rates(successes: Any, trials: Any) -> None:
    """Success rates of groups with a common distribution on the logit scale."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    raw = numpyro.sample("raw", UNIT.expand([len(trials)]).to_event(1))
    numpyro.sample("successes", dist.Binomial(trials, logits=mu + tau * raw), obs=successes)


def rates_data(rng: np.random.Generator) -> Data:
    """Draw 5 to 25 groups, some of which have a single trial."""
    trials = rng.integers(1, 40, int(rng.integers(5, 25)))
    logits = rng.normal(-1.0, 1.0) + rng.uniform(0.1, 1.5) * rng.normal(size=len(trials))
    return rng.binomial(trials, 1.0 / (1.0 + np.exp(-logits))), trials


def survival(x: Any, time: Any, seen: Any) -> None:
    """Weibull regression of survival times, of which some are censored."""
    b = numpyro.sample("b", UNIT.expand([x.shape[1]]).to_event(1))
    level = numpyro.sample("level", dist.Normal(0.0, 2.0))
    shape = numpyro.sample("shape", dist.LogNormal(0.0, 0.5))
    log_hazard = level + x @ b
    log_density = jnp.log(shape) + (shape - 1.0) * jnp.log(time) + log_hazard
    numpyro.factor("times", jnp.sum(seen * log_density - time**shape * jnp.exp(log_hazard)))


def survival_data(rng: np.random.Generator) -> Data:
    """Draw times with a share of censored ones between a tenth and nine tenths."""
    rows, num = int(rng.integers(20, 120)), int(rng.integers(1, 6))
    x = _predictors(rng, rows, num)
    time = rng.weibull(rng.uniform(0.6, 2.0), rows) * np.exp(-0.5 * x @ rng.normal(size=num))
    end = np.quantile(time, rng.uniform(0.1, 0.9))
    return x, np.minimum(time, end), (time <= end).astype(float)


def two_parts(y: Any) -> None:
    """Mixture of two normals with means in no order: every fit that names them has a twin."""
    share = numpyro.sample("share", dist.Beta(2.0, 2.0))
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0).expand([2]).to_event(1))
    parts = dist.Normal(mean, scale).log_prob(y[:, None]) + jnp.log(jnp.stack([share, 1.0 - share]))
    numpyro.factor("mixture", jnp.sum(jax.nn.logsumexp(parts, axis=-1)))


def two_parts_data(rng: np.random.Generator) -> Data:
    """Draw 15 to 80 values from two normals between one and six standard deviations apart."""
    rows, apart = int(rng.integers(15, 80)), rng.uniform(1.0, 6.0)
    return (rng.normal(size=rows) + apart * (rng.uniform(size=rows) < rng.uniform(0.2, 0.8)),)


def process(x: Any, y: Any) -> None:
    """Gaussian process with unknown length, scale and noise; its values are integrated out."""
    length = numpyro.sample("length", dist.InverseGamma(3.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(2.0))
    noise = numpyro.sample("noise", dist.HalfNormal(1.0))
    distance = (x[:, None] - x[None]) / length
    covariance = scale**2 * jnp.exp(-0.5 * distance**2) + (noise**2 + 1e-6) * jnp.eye(len(x))
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), covariance), obs=y)


def process_data(rng: np.random.Generator) -> Data:
    """Draw 6 to 30 points of a wave with noise."""
    x = np.sort(rng.uniform(0.0, 4.0, int(rng.integers(6, 30))))
    return x, np.sin(rng.uniform(0.5, 3.0) * x) + rng.uniform(0.05, 1.0) * rng.normal(size=len(x))


def series(y: Any) -> None:
    """Autoregressive series with a mean, a persistence within (-1, 1) and a scale."""
    mean = numpyro.sample("mean", dist.Normal(0.0, 3.0))
    phi = numpyro.sample("phi", dist.Uniform(-1.0, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1.0))
    numpyro.sample("first", dist.Normal(mean, sigma / jnp.sqrt(1.0 - phi**2)), obs=y[0])
    numpyro.sample("rest", dist.Normal(mean + phi * (y[:-1] - mean), sigma), obs=y[1:])


def series_data(rng: np.random.Generator) -> Data:
    """Draw 10 to 80 values, some of nearly a random walk."""
    phi, y = rng.choice([0.3, 0.9, 0.99]), [rng.normal()]
    for _ in range(int(rng.integers(9, 80))):
        y.append(phi * y[-1] + rng.normal())
    return (np.array(y),)


def warped(bend: float, twist: float, num: int) -> None:
    """Normal noise bent twice: a parabola, and a scale that depends on the coordinate before; log evidence 0."""
    a = numpyro.sample("a", UNIT)
    b = numpyro.sample("b", dist.Normal(bend * (a**2 - 1.0), 0.5))
    numpyro.sample("c", dist.Normal(0.0, jnp.exp(twist * jnp.tanh(b))).expand([num]).to_event(1))


def warped_data(rng: np.random.Generator) -> Data:
    """Draw how much it is bent, and its number of dimensions."""
    return float(rng.uniform(0.5, 2.0)), float(rng.uniform(0.5, 2.0)), int(rng.integers(1, 12))


def warped_draws(data: Data, seed: int, num: int) -> dict[str, np.ndarray]:
    """Draw the warped noise."""
    bend, twist, size = data
    rng = np.random.default_rng(seed)
    a = rng.normal(size=num)
    b = bend * (a**2 - 1.0) + 0.5 * rng.normal(size=num)
    return {"a": a, "b": b, "c": np.exp(twist * np.tanh(b))[:, None] * rng.normal(size=(num, size))}


def islands(centers: Any, scales: Any, log_shares: Any) -> None:
    """Mixture of normals of different sizes around random centers; log evidence 0."""
    x = numpyro.sample("x", dist.ImproperUniform(dist.constraints.real_vector, (), (centers.shape[1],)))
    z = (x - centers) / scales[:, None]
    log_parts = log_shares - 0.5 * jnp.sum(z**2 + jnp.log(2.0 * jnp.pi), -1) - centers.shape[1] * jnp.log(scales)
    numpyro.factor("islands", jax.nn.logsumexp(log_parts))


def islands_data(rng: np.random.Generator) -> Data:
    """Draw two to five normals in one to eight dimensions; they may overlap."""
    num, dim = int(rng.integers(2, 6)), int(rng.integers(1, 9))
    centers = rng.uniform(2.0, 8.0) * rng.normal(size=(num, dim)) / np.sqrt(dim)
    return centers, rng.uniform(0.4, 1.5, num), np.log(rng.dirichlet(np.full(num, 5.0)))


def islands_draws(data: Data, seed: int, num: int) -> dict[str, np.ndarray]:
    """Draw from the islands."""
    centers, scales, log_shares = data
    rng = np.random.default_rng(seed)
    which = rng.choice(len(scales), num, p=np.exp(log_shares))
    return {"x": centers[which] + scales[which, None] * rng.normal(size=(num, centers.shape[1]))}


# Model, data, and, where they are known, exact draws of a posterior whose log evidence is 0.
RECIPES: dict[str, tuple[Callable[..., None], Callable[[np.random.Generator], Data], Any]] = {
    "linear": (linear, linear_data, None),
    "robust": (robust, robust_data, None),
    "logistic": (logistic, logistic_data, None),
    "counts": (counts, counts_data, None),
    "groups": (groups, groups_data, None),
    "rates": (rates, rates_data, None),
    "survival": (survival, survival_data, None),
    "two-parts": (two_parts, two_parts_data, None),
    "process": (process, process_data, None),
    "series": (series, series_data, None),
    "warped": (warped, warped_data, warped_draws),
    "islands": (islands, islands_data, islands_draws),
}


def _drawn(kind: str, number: int) -> Benchmark:
    model, make, draws = RECIPES[kind]
    seed = FIRST_SEED + DRAWS * list(RECIPES).index(kind) + number

    def load() -> Data:
        return make(np.random.default_rng(seed))

    title = f"{kind.capitalize().replace('-', ' ')}, draw {number + 1}"
    exact = None if draws is None else lambda key, num: draws(load(), key, num)
    # Arguments that are no arrays shape the model.
    bound = partial(_with_arguments, model, load)
    return Benchmark(
        f"{kind}-{number}", title, bound, tuple, log_evidence=None if draws is None else 0.0, exact_draws=exact
    )


def _with_arguments(model: Callable[..., None], load: Callable[[], Data]) -> None:
    model(*load())


HELD_OUT: dict[str, Benchmark] = {f"{kind}-{n}": _drawn(kind, n) for kind in RECIPES for n in range(DRAWS)}
