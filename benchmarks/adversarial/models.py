"""Models that people have, whose posterior is known in closed form or by quadrature."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from scipy import special, stats

from benchmarks.adversarial.case import Case, Moments

CONFLICT, PRIOR_MODE = "prior in conflict", "mode within ten prior sds"
# Spike and slab of a robust prior, and the share of the slab.
SPIKE, SLAB, SHARE = 1.0, 10.0, 0.1


def robust_alone(y, sigma):
    """Effects, each with a robust prior of its own."""
    scales = dist.Normal(jnp.zeros(2), jnp.array([SPIKE, SLAB]))
    prior = dist.MixtureSameFamily(dist.Categorical(jnp.array([1.0 - SHARE, SHARE])), scales)
    theta = numpyro.sample("theta", prior.expand([len(y)]).to_event(1))
    numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def robust_together(y, sigma):
    """Effects that are all in the spike or all in the slab."""
    theta = numpyro.sample("theta", dist.ImproperUniform(dist.constraints.real_vector, (), (len(y),)))
    logs = [jnp.sum(dist.Normal(0.0, scale).log_prob(theta)) for scale in (SPIKE, SLAB)]
    numpyro.factor("prior", jnp.logaddexp(jnp.log1p(-SHARE) + logs[0], jnp.log(SHARE) + logs[1]))
    numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def conflicts(num: int, num_weak: int) -> list[Case]:
    """Robust priors that disagree with the data; data of unit noise, and then weaker ones."""
    cases = []
    for i in range(num + num_weak):
        random = np.random.default_rng([26, 11, i])
        together, size, weak = i % 2 == 0, (4, 2, 6, 1)[i % 4], i >= num
        sigma = np.exp(random.uniform(0.0, np.log(10.0))) if weak else 1.0
        y = random.uniform(2.0, 6.0) * sigma + sigma * random.normal(size=size)
        logs = np.stack([stats.norm.logpdf(y, 0.0, np.hypot(scale, sigma)) for scale in (SPIKE, SLAB)])
        logs = np.tile(logs.sum(1, keepdims=True), size) if together else logs
        weights = special.softmax(logs + np.log([[1.0 - SHARE], [SHARE]]), axis=0)
        shrink = np.array([[scale**2 / (scale**2 + sigma**2)] for scale in (SPIKE, SLAB)])
        truth = {"theta": _mixed(weights, shrink * y, sigma * np.sqrt(shrink) + 0.0 * y)}
        model = robust_together if together else robust_alone
        cases.append(Case(f"conflict-{i}", CONFLICT, lambda m=model, y=y, s=sigma: (m, (y, s)), truth, num_keys=1))
    return cases


def two_places(locs, scales, logs, prior_sd):
    """A normal prior, and a likelihood with two modes."""
    x = numpyro.sample("x", dist.Normal(0.0, prior_sd).expand([locs.shape[1]]).to_event(1))
    numpyro.factor("y", logsumexp(logs + jnp.sum(dist.Normal(locs, scales[:, None]).log_prob(x), -1)))


def modes_of_likelihoods(num: int) -> list[Case]:
    """A second mode of the likelihood, up to ten standard deviations of the prior away from its center."""
    cases = []
    for i in range(num):
        random = np.random.default_rng([26, 16, i])
        dim, prior_sd = (1, 2, 3, 5, 10, 20)[i % 6], np.exp(random.uniform(-2.0, 2.0))
        directions = random.normal(size=(2, dim))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        locs = prior_sd * np.array([[random.uniform(0.0, 1.0)], [random.uniform(0.0, 10.0)]]) * directions
        scales = prior_sd * np.exp(
            random.uniform(np.log(0.05), np.log(0.5)) + np.array([0.0, random.uniform(-0.7, 0.7)])
        )
        # Parts of the posterior, and the weights of the likelihood that give the second its share of the mass.
        shrink = prior_sd**2 / (prior_sd**2 + scales[:, None] ** 2)
        share = random.uniform(0.05, 0.5)
        wide = np.hypot(prior_sd, scales)[:, None]
        logs = np.log([1.0 - share, share]) - np.sum(stats.norm.logpdf(locs, 0.0, wide), 1)
        weights = np.array([[1.0 - share], [share]])
        truth = {"x": _mixed(weights, shrink * locs, scales[:, None] * np.sqrt(shrink) + 0.0 * locs)}
        args = locs, scales, logs - logs.max(), prior_sd
        name = f"prior-mode-{i}"
        cases.append(Case(name, PRIOR_MODE, lambda args=args: (two_places, args), truth, num_keys=1))
    return cases


def two_means(y):
    """A mixture of two normals, whose labels may be switched."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    each = dist.Normal(mu[:, None], 1.0).log_prob(y) + jnp.log(jnp.array([[0.4], [0.6]]))
    numpyro.factor("y", jnp.sum(logsumexp(each, axis=0)))


def label_switching(num: int) -> list[Case]:
    """Mixtures of unequal weights with few data: two modes of unequal mass."""
    cases = []
    for i in range(num):
        random = np.random.default_rng([26, 12, i])
        size, gap = random.integers(6, 16), random.uniform(2.0, 5.0)
        y = np.where(random.random(size) < 0.4, 0.0, gap) + random.normal(size=size)

        def log_density(a, b, y=y):
            each = np.stack([stats.norm.logpdf(y, m[..., None]) for m in (a, b)])
            likelihood = np.sum(np.logaddexp(np.log(0.4) + each[0], np.log(0.6) + each[1]), -1)
            return likelihood + stats.norm.logpdf(a, 0.0, 10.0) + stats.norm.logpdf(b, 0.0, 10.0)

        grid = np.linspace(np.min(y) - 25.0, np.max(y) + 25.0, 700)
        truth = {"mu": _by_grid(log_density, grid, grid)}
        cases.append(_case(f"labels-{i}", "label switching", two_means, (y,), truth))
    return cases


def change_point(y):
    """Counts whose rate changes once, at an unknown time that is summed out."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 0.5).expand([2]).to_event(1))
    terms = dist.Poisson(rate[:, None]).log_prob(y)
    before, after = jnp.cumsum(terms[0]), jnp.cumsum(terms[1])
    numpyro.factor("y", logsumexp(before + after[-1] - after))


def change_points(num: int) -> list[Case]:
    """Change points early, late and between: a mixture of products of gamma distributions."""
    cases = []
    for i in range(num):
        random = np.random.default_rng([26, 13, i])
        size, at = 12, random.integers(2, 10)
        y = random.poisson(np.where(np.arange(size) < at, 2.0, random.uniform(3.0, 12.0)))
        counts = np.cumsum(y)
        first, num_first = counts + 2.0, np.arange(1, size + 1) + 0.5
        second, num_second = counts[-1] - counts + 2.0, size - np.arange(1, size + 1) + 0.5
        logs = sum(special.gammaln(a) - a * np.log(b) for a, b in ((first, num_first), (second, num_second)))
        weights = special.softmax(logs)[:, None]
        shape, rate = np.stack([first, second], 1), np.stack([num_first, num_second], 1)
        truth = {"rate": _mixed(np.repeat(weights, 2, 1), shape / rate, np.sqrt(shape) / rate)}
        cases.append(_case(f"change-point-{i}", "discrete mixture", change_point, (y,), truth))
    return cases


def robust_line(x, y):
    """A line with heavy-tailed errors."""
    b = numpyro.sample("b", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.StudentT(2.0, b[0] + b[1] * x, 0.3), obs=y)


def clusters(num: int) -> list[Case]:
    """Robust regressions on two clusters of data that disagree about the line."""
    cases = []
    for i in range(num):
        random = np.random.default_rng([26, 14, i])
        x = np.repeat([-1.0, 1.0, 1.2], (5, 4, 3)) + 0.2 * random.normal(size=12)
        gap = random.uniform(3.0, 8.0)
        y = x + np.repeat([0.0, 0.0, gap], (5, 4, 3)) + 0.3 * random.normal(size=12)

        def log_density(a, b, x=x, y=y):
            likelihood = np.sum(stats.t.logpdf(y, 2.0, a[..., None] + b[..., None] * x, 0.3), -1)
            return likelihood + stats.norm.logpdf(a, 0.0, 10.0) + stats.norm.logpdf(b, 0.0, 10.0)

        grid = np.linspace(-15.0, 15.0, 900)
        cases.append(
            _case(f"clusters-{i}", "robust regression", robust_line, (x, y), {"b": _by_grid(log_density, grid, grid)})
        )
    return cases


def horseshoe(y):
    """Means with a half-Cauchy scale each, and no scale in common."""
    scale = numpyro.sample("scale", dist.HalfCauchy(1.0).expand([len(y)]).to_event(1))
    theta = numpyro.sample("theta", dist.Normal(0.0, scale).to_event(1))
    numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)


def horseshoes(num: int) -> list[Case]:
    """Few means, of which some are near zero and some are not."""
    cases = []
    for i in range(num):
        random = np.random.default_rng([26, 15, i])
        y = random.normal(size=(2, 4, 3, 1)[i % 4]) + random.choice([0.0, 5.0], (2, 4, 3, 1)[i % 4])
        logs = np.linspace(-30.0, 30.0, 6001)[:, None]
        variance = np.exp(2.0 * logs)
        weights = stats.norm.logpdf(y, 0.0, np.sqrt(variance + 1.0)) + stats.halfcauchy.logpdf(np.exp(logs)) + logs
        weights = special.softmax(weights, axis=0)
        shrink = variance / (variance + 1.0)
        truth = {
            "theta": _mixed(weights, shrink * y, np.sqrt(shrink) + 0.0 * y),
            "log scale": _mixed(weights, logs + 0.0 * y, 0.0 * logs + 0.0 * y),
        }
        cases.append(_case(f"horseshoe-{i}", "horseshoe", horseshoe, (y,), truth))
    return cases


def _case(name: str, family: str, model: Callable, args: tuple[Any, ...], truth: dict[str, Moments] | None) -> Case:
    return Case(name, family, lambda: (model, args), truth)


def _mixed(weights: np.ndarray, means: np.ndarray, sds: np.ndarray) -> Moments:
    """Return the moments of mixtures, whose parts are along the first axis."""
    mean = np.sum(weights * means, 0)
    return Moments(mean, np.sqrt(np.sum(weights * (sds**2 + (means - mean) ** 2), 0)))


def _by_grid(log_density: Callable[..., np.ndarray], first: np.ndarray, second: np.ndarray) -> Moments:
    """Return the moments of two parameters by quadrature, refined to where the mass is."""
    for _ in range(2):
        logs = np.stack([log_density(np.full_like(second, a), second) for a in first])
        weights = np.exp(logs - logs.max())
        sides = [(first, weights.sum(1)), (second, weights.sum(0))]
        first, second = (_around(values, share) for values, share in sides)
    moments = []
    for values, share in sides:
        mean = share @ values / share.sum()
        moments.append((mean, np.sqrt(share @ (values - mean) ** 2 / share.sum())))
    return Moments(*(np.array(column) for column in zip(*moments, strict=True)))


def _around(values: np.ndarray, share: np.ndarray) -> np.ndarray:
    """Return a grid of as many points where nearly all of the mass is."""
    kept = values[share > 1e-9 * share.max()]
    step = values[1] - values[0]
    return np.linspace(kept[0] - step, kept[-1] + step, len(values))
