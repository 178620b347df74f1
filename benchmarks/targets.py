"""The posteriors of the paper, and Neal's funnel, as NumPyro models with their exact evidence.

Each model follows the Stan program in the paper's appendix. The evidences are checked by quadrature in
`tests/statistical/test_targets.py`.

Example:
    >>> from benchmarks.targets import BENCHMARKS
    >>> schools = BENCHMARKS["eight-schools-centered"]
    >>> schools.log_evidence
    -31.311347
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from benchmarks import data, exact

FUNNEL_DIM = 10
FUNNEL_SD = 3.0

# The draws of the published script come from another posterior than the one that the paper defines.
_OTHER_POSTERIOR = "The published script omits the log-Jacobian of the positive parameter: another posterior."


@dataclass(frozen=True)
class Benchmark:
    """One posterior to approximate.

    Attributes:
        name: how the command line calls it.
        title: how tables call it.
        model: a NumPyro model function.
        load: returns the arguments of the model; nothing is read before it is needed.
        log_evidence: the exact log p(data), or None where it is unknown.
        order: order of the polynomial that the paper needs here, or None for bernflow's default.
        paper: the figures that the paper reports.
        exact_draws: makes independent draws of the posterior, {site: (num, *shape)}, from a seed and a number; None
            where only a long run of NUTS tells.
        choices: what a user who knows the posterior would say to `bf.fit`: `components` for separate modes.
    """

    name: str
    title: str
    model: Callable[..., None]
    load: Callable[[], tuple[Any, ...]]
    log_evidence: float | None = None
    order: int | None = None
    paper: Mapping[str, Any] = field(default_factory=dict)
    exact_draws: Callable[[int, int], dict[str, Any]] | None = None
    choices: Mapping[str, Any] = field(default_factory=dict)

    @property
    def args(self) -> tuple[Any, ...]:
        """The arguments of the model: data and known constants."""
        return self.load()


def bernoulli(y: jax.Array) -> None:
    """Probability of success with a Beta(1.1, 1.1) prior; the posterior of (1, 1) is Beta(3.1, 1.1)."""
    p = numpyro.sample("p", dist.Beta(1.1, 1.1))
    with numpyro.plate("observations", len(y)):
        numpyro.sample("y", dist.Bernoulli(p), obs=y)


def cauchy(y: jax.Array, scale: float) -> None:
    """Location of a Cauchy distribution fitted to a mixture of two: the posterior has several modes."""
    xi = numpyro.sample("xi", dist.Normal(0.0, 1.0))
    with numpyro.plate("observations", len(y)):
        numpyro.sample("y", dist.Cauchy(xi, scale), obs=y)


def toy_regression(x: jax.Array, y: jax.Array) -> None:
    """Linear regression on two strongly correlated predictors, six observations, unknown noise."""
    b = numpyro.sample("b", dist.Normal(0.0, 10.0))
    w = numpyro.sample("w", dist.Normal(0.0, 10.0).expand([2]).to_event(1))
    sigma = numpyro.sample("sigma", dist.LogNormal(0.5, 1.0))
    with numpyro.plate("observations", len(y)):
        numpyro.sample("y", dist.Normal(x @ w + b, sigma), obs=y)


def eight_schools_noncentered(y: jax.Array, sigma: jax.Array) -> None:
    """Eight schools with standardized effects: theta = mu + tau * theta_trans."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    theta_trans = numpyro.sample("theta_trans", dist.Normal(0.0, 1.0).expand([len(y)]).to_event(1))
    theta = numpyro.deterministic("theta", mu + tau * theta_trans)
    with numpyro.plate("schools", len(y)):
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def eight_schools_centered(y: jax.Array, sigma: jax.Array) -> None:
    """Eight schools with the effects as parameters: a funnel between tau and theta."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([len(y)]).to_event(1))
    with numpyro.plate("schools", len(y)):
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def diamonds(x: jax.Array, y: jax.Array) -> None:
    """Regress log prices of 5,000 diamonds on 24 centered, nearly collinear predictors."""
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([x.shape[1]]).to_event(1))
    intercept = numpyro.sample("Intercept", dist.StudentT(3.0, 8.0, 10.0))
    sigma = numpyro.sample("sigma", dist.FoldedDistribution(dist.StudentT(3.0, 0.0, 10.0)))
    with numpyro.plate("observations", len(y)):
        numpyro.sample("y", dist.Normal(x @ b + intercept, sigma), obs=y)


def nn_regression(x: jax.Array, y: jax.Array, sigma: float) -> None:
    """Regression by a network with one hidden layer of three sigmoid units: ten weights, many equal modes."""
    unit = dist.Normal(0.0, 1.0)
    bias_first = numpyro.sample("bias_first", unit.expand([3]).to_event(1))
    bias_output = numpyro.sample("bias_output", unit)
    w_first = numpyro.sample("w_first", unit.expand([3]).to_event(1))
    w_output = numpyro.sample("w_output", unit.expand([3]).to_event(1))
    with numpyro.plate("observations", len(y)):
        numpyro.sample("y", dist.Normal(nn_mean(x, w_first, bias_first, w_output, bias_output), sigma), obs=y)


def nn_mean(x: Any, w_first: Any, bias_first: Any, w_output: Any, bias_output: Any) -> jax.Array:
    """Evaluate the small network at inputs (n,); weights may carry leading axes, which come first in the result."""
    hidden = jax.nn.sigmoid(jnp.asarray(x)[:, None] * w_first[..., None, :] + bias_first[..., None, :])
    return jnp.sum(hidden * w_output[..., None, :], -1) + bias_output[..., None]


def funnel() -> None:
    """Neal's funnel: v ~ N(0, 3) sets the scale exp(v / 2) of nine others; no data, so the evidence is 1."""
    # v comes first: flows that are autoregressive in model order can then condition every x on its scale.
    v = numpyro.sample("v", dist.Normal(0.0, FUNNEL_SD))
    numpyro.sample("x", dist.Normal(0.0, jnp.exp(v / 2)).expand([FUNNEL_DIM - 1]).to_event(1))


def draw_funnel(seed: int, num: int) -> dict[str, np.ndarray]:
    """Draw the funnel exactly."""
    rng = np.random.default_rng(seed)
    v = rng.normal(0.0, FUNNEL_SD, num)
    return {"v": v, "x": np.exp(v / 2)[:, None] * rng.normal(size=(num, FUNNEL_DIM - 1))}


_ALL = (
    Benchmark(
        "bernoulli",
        "Bernoulli",
        bernoulli,
        lambda: (data.load_bernoulli(),),
        log_evidence=-1.114361,
        exact_draws=exact.bernoulli,
    ),
    Benchmark(
        "cauchy",
        "Cauchy",
        cauchy,
        data.load_cauchy,
        log_evidence=-21.430686,
        order=50,
        paper={"log_evidence": -21.43069},
        exact_draws=exact.cauchy,
    ),
    Benchmark(
        "toy-regression",
        "Toy regression",
        toy_regression,
        data.load_toy_regression,
        log_evidence=-13.026490,
        paper={
            "khat": 0.68,
            "khat_interval": (0.51, 0.86),
            "khat_mean_field_gaussian": 0.90,
            "note": _OTHER_POSTERIOR,
        },
        exact_draws=exact.toy_regression,
    ),
    Benchmark(
        "eight-schools-noncentered",
        "8 schools, non-centered",
        eight_schools_noncentered,
        data.load_eight_schools,
        log_evidence=-31.311347,
        paper={
            "khat": 0.36,
            "khat_interval": (0.17, 0.55),
            "khat_mean_field_gaussian": 0.7,
            "khat_mean_field_student": 0.6,
            "khat_nvp": 1.2,
            "khat_planar": 0.7,
            "note": _OTHER_POSTERIOR + " Text and table name NVP and planar in opposite order; this is the table.",
        },
        exact_draws=exact.eight_schools,
    ),
    Benchmark(
        "eight-schools-centered",
        "8 schools, centered",
        eight_schools_centered,
        data.load_eight_schools,
        log_evidence=-31.311347,
        paper={
            "khat": 0.53,
            "khat_interval": (0.11, 0.95),
            "khat_mean_field_gaussian": 0.9,
            "khat_mean_field_student": 0.9,
            "khat_nvp": 1.3,
            "khat_planar": 1.1,
            "note": _OTHER_POSTERIOR + " Text and table name NVP and planar in opposite order; this is the table.",
        },
        exact_draws=exact.eight_schools_centered,
    ),
    Benchmark(
        "diamonds",
        "Diamonds",
        diamonds,
        data.load_diamonds,
        log_evidence=3190.5973,
        paper={
            "khat": 5.34,
            "khat_interval": (-2.52, 13.20),
            "khat_mean_field_gaussian": 1.2,
            "khat_mean_field_student": 1.3,
            "khat_nvp": float("inf"),
            "khat_planar": float("inf"),
        },
    ),
    Benchmark("nn-regression", "Small neural network", nn_regression, data.load_nn_regression),
    Benchmark("funnel", "Neal's funnel, 10 dimensions", funnel, tuple, log_evidence=0.0, exact_draws=draw_funnel),
)

BENCHMARKS: dict[str, Benchmark] = {benchmark.name: benchmark for benchmark in _ALL}
