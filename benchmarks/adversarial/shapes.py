"""Funnels, truncated corners, heavy tails, and densities that are no posteriors at all."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from scipy import stats

import bernflow as bf
from benchmarks.adversarial.case import Case, Moments


def funnels(num: int) -> list[Case]:
    """Neal's funnels of several widths."""
    cases = []
    for i in range(num):
        sd, dim = (1.0, 1.5, 2.0, 1.2)[i % 4], (3, 6, 2, 10)[i % 4]

        def model(sd=sd, dim=dim):
            v = numpyro.sample("v", dist.Normal(0.0, sd))
            numpyro.sample("x", dist.Normal(0.0, jnp.exp(v / 2.0)).expand([dim - 1]).to_event(1))

        width = np.full(dim - 1, np.exp(sd**2 / 4.0))
        truth = {"v": Moments(np.zeros(1), np.array([sd])), "x": Moments(np.zeros(dim - 1), width)}
        cases.append(Case(f"funnel-{i}", "funnel", lambda model=model: (model, ()), truth))
    return cases


def corners(num: int) -> list[Case]:
    """Normals cut off at a corner, by their support or by a density of zero."""
    cases = []
    for i in range(num):
        random = np.random.default_rng([26, 22, i])
        dim = (2, 3, 1, 5)[i % 4]
        least = random.uniform(-1.0, 2.0, dim)
        exact = stats.truncnorm(least, np.inf)

        def build(least=least, by_support=i % 2 == 0) -> tuple[Any, tuple[Any, ...]]:
            if by_support:
                support = {"x": constraints.independent(constraints.greater_than(jnp.asarray(least)), 1)}
                init = {"x": least + 0.5}
                return bf.from_log_density(lambda theta: -0.5 * jnp.sum(theta["x"] ** 2), init, support), ()

            def log_density(x):
                return jnp.where(jnp.all(x > least), -0.5 * jnp.sum(x**2), -jnp.inf)

            return bf.from_log_density(log_density, init=least + 0.5), ()

        cases.append(Case(f"corner-{i}", "truncated corner", build, {"x": Moments(exact.mean(), exact.std())}))
    return cases


def heavy(num: int) -> list[Case]:
    """Student-t tails: nothing is hidden."""
    cases = []
    for i in range(num):
        df, dim = (3.0, 4.0, 6.0, 5.0)[i % 4], (1, 3, 5, 10)[i % 4]

        def build(df=df, dim=dim) -> tuple[Any, tuple[Any, ...]]:
            return bf.from_log_density(
                lambda x: jnp.sum(dist.StudentT(df, 0.0, 1.0).log_prob(x)), init=np.zeros(dim)
            ), ()

        sd = np.full(dim, np.sqrt(df / (df - 2.0)))
        cases.append(Case(f"student-{i}", "heavy tails", build, {"x": Moments(np.zeros(dim), sd)}))
    return cases


def wrong_signs() -> list[Case]:
    """A missing minus sign, and a negative log likelihood returned by mistake."""
    y = np.random.default_rng([26, 23]).normal(size=(8, 2))
    line = np.stack([np.ones(8), y[:, 0]], 1)
    densities = {
        "square-1": (lambda x: 0.5 * jnp.sum(x**2), 1),
        "square-3": (lambda x: 0.5 * jnp.sum(x**2), 3),
        "nll-1": (lambda x: -jnp.sum(dist.Normal(x[0], 1.0).log_prob(y[:, 0])), 1),
        "nll-2": (lambda b: -jnp.sum(dist.Normal(line @ b, 0.5).log_prob(y[:, 1])), 2),
    }
    return [_improper(f"sign-{name}", "wrong sign", *density) for name, density in densities.items()]


def improper() -> list[Case]:
    """Posteriors without a finite mass."""
    x = np.random.default_rng([26, 24]).normal(size=(20, 2))
    signs = np.where(x[:, 0] > 0.0, 1.0, -1.0)
    densities = {
        "flat": (lambda b: -0.5 * b[0] ** 2, 2),
        "log-tail": (lambda b: -0.5 * jnp.log1p(b[0] ** 2), 1),
        "separated": (lambda b: jnp.sum(jax.nn.log_sigmoid(signs * (x @ b))), 2),
        "repeated": (lambda b: -0.5 * jnp.sum((jnp.arange(5.0) - b[0] - 3.0 * b[1]) ** 2), 2),
    }
    cases = [_improper(f"improper-{name}", "not proper", *density) for name, density in densities.items()]
    for size in (1, 2):
        for centered in (True, False):
            name = f"groups-{size}-{'centered' if centered else 'noncentered'}"
            y = np.array([1.0, 2.5])[:size]
            cases.append(Case(name, "flat mu and tau", lambda y=y, c=centered: (groups, (y, c)), None))
    return cases


def groups(y, centered):
    """Group means with flat priors of their center and scale, which take three groups to be proper."""
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.real, (), ()))
    tau = numpyro.sample("tau", dist.ImproperUniform(constraints.positive, (), ()))
    if centered:
        theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([len(y)]).to_event(1))
    else:
        theta = mu + tau * numpyro.sample("z", dist.Normal(0.0, 1.0).expand([len(y)]).to_event(1))
    numpyro.sample("y", dist.Normal(theta, 1.0), obs=y)


def _improper(name: str, family: str, log_density: Any, dim: int) -> Case:
    return Case(name, family, lambda: (bf.from_log_density(log_density, init=np.full(dim, 0.1)), ()), None)
