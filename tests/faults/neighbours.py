"""Fits beside other code in one process: a program that `test_neighbours.py` starts, once for every combination.

Its argument is a JSON object with a `neighbour`, which runs before or after the fits (`order`), a `setting`, and lists
of `fronts`, `kinds` of data and `precisions`. It prints one JSON object for every front end and kind of data.

The posterior of b in y ~ Normal(b x, 1), b ~ Normal(0, 1), is known exactly.
"""

import json
import sys
import threading
import warnings
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

import bernflow as bf

NUM_DRAWS = 40_000
PROGRAM = """
data { int N; vector[N] x; vector[N] y; }
parameters { real b; }
model { b ~ normal(0, 1); y ~ normal(b * x, 1); }
"""


class Case:
    """Functions and data of their own, which no other case of the process has seen."""

    def __init__(self, kind, closes_over):
        rng = np.random.default_rng(7)
        x = rng.normal(size=20)
        y = 0.5 * x + rng.normal(size=20)
        self.exact = {"x": x, "y": y}
        convert = {"numpy": np.copy, "list": np.ndarray.tolist, "jax32": in_single, "jax64": in_double}[kind]
        self.x, self.y = convert(x), convert(y)
        as_array = jnp.asarray if kind == "list" else lambda values: values

        def likelihood(b, x):
            return dist.Normal(b * as_array(x), 1.0)

        def model(x, y):
            b = numpyro.sample("b", dist.Normal(0.0, 1.0))
            numpyro.sample("y", likelihood(b, x), obs=as_array(y))

        def closed():
            model(self.x, self.y)

        def log_density(b, x, y):
            return dist.Normal(0.0, 1.0).log_prob(b) + likelihood(b, x).log_prob(as_array(y)).sum()

        self.likelihood, self.log_density = likelihood, log_density
        self.function, self.args = (closed, ()) if closes_over else (model, (self.x, self.y))
        self.densities = (lambda b: log_density(b, self.x, self.y)) if closes_over else log_density


def in_single(values):
    return jnp.asarray(values, jnp.float32)


def in_double(values):
    with jax.enable_x64(True):
        return jnp.asarray(values)


# Front ends: what is fitted.


def numpyro_model(case):
    return case.function, *case.args


def declared_arguments(case):
    prior = {"b": dist.Normal(0.0, 1.0)}
    return (bf.Model(prior=prior, likelihood=lambda th, x: case.likelihood(th["b"], x), x=case.x, y=case.y),)


def declared_closure(case):
    prior = {"b": dist.Normal(0.0, 1.0)}
    return (bf.Model(prior=prior, likelihood=lambda th: case.likelihood(th["b"], case.x), y=case.y),)


def log_density(case):
    return (bf.from_log_density(lambda theta: case.densities(theta["b"]), {"b": 0.0}),)


def pymc_model(case):
    import pymc as pm

    with pm.Model() as model:
        b = pm.Normal("b")
        pm.Normal("y", b * np.asarray(case.x), 1.0, observed=np.asarray(case.y))
    return (bf.from_pymc(model),)


FRONTS = {
    "NumPyro arguments": (numpyro_model, False),
    "NumPyro closure": (numpyro_model, True),
    "bf.Model arguments": (declared_arguments, False),
    "bf.Model closure": (declared_closure, True),
    "from_log_density": (log_density, True),
    "from_pymc": (pymc_model, True),
}


def fit(*model, precision):
    training = bf.Training(precision=precision)
    post = bf.fit(*model, family="gaussian-fullrank", steps=200, training=training, progress=False)
    draws = post.draws(NUM_DRAWS)["b"]
    return {
        "precision": post.settings["precision"],
        "mean": float(draws.mean()),
        "sd": float(draws.std()),
        "log_evidence": post.diagnostics.log_evidence,
    }


# Neighbours: each prepares once, and `run` returns the mean and the standard deviation of b.


class Nothing:
    def __init__(self, case):
        pass

    def run(self):
        return None


class Nuts(Nothing):
    def __init__(self, case):
        self.args = case.args
        self.sampler = MCMC(NUTS(case.function), num_warmup=150, num_samples=300, progress_bar=False)

    def run(self):
        self.sampler.run(jax.random.key(0), *self.args)
        return moments(self.sampler.get_samples()["b"])


class Svi(Nothing):
    def __init__(self, case):
        self.args, self.guide = case.args, AutoNormal(case.function)
        self.svi = SVI(case.function, self.guide, numpyro.optim.Adam(0.02), Trace_ELBO(num_particles=8))

    def run(self):
        params = self.svi.run(jax.random.key(0), 500, *self.args, progress_bar=False).params
        return float(params["b_auto_loc"]), float(params["b_auto_scale"])


class Jitted(Nothing):
    """A function of the user's, on a grid."""

    def __init__(self, case):
        self.args, self.function = case.args, jax.jit(jax.vmap(case.densities, (0, *(None for _ in case.args))))
        self.grid = np.linspace(-2.0, 3.0, 501, dtype=np.float32)

    def run(self):
        values = np.asarray(self.function(self.grid, *self.args), np.float64)
        weights = np.exp(values - values.max())
        mean = np.average(self.grid, weights=weights)
        return float(mean), float(np.sqrt(np.average((self.grid - mean) ** 2, weights=weights)))


class PyMC(Nothing):
    def __init__(self, case):
        import pymc as pm
        import pymc.sampling.jax

        self.sample = pymc.sampling.jax.sample_numpyro_nuts
        with pm.Model() as self.model:
            pm.Normal("y", pm.Normal("b") * np.asarray(case.x), 1.0, observed=np.asarray(case.y))

    def run(self):
        with self.model:
            found = self.sample(
                tune=150, draws=300, chains=1, random_seed=1, progressbar=False, compute_convergence_checks=False
            )
        return moments(found.posterior["b"].values)


class Blackjax(Nothing):
    def __init__(self, case):
        with jax.transfer_guard("allow"):  # its import computes default values
            import blackjax

        args = case.args

        @jax.jit
        def sample(key, *args):
            kernel = blackjax.nuts(lambda b: case.densities(b, *args), step_size=0.3, inverse_mass_matrix=jnp.ones(1))
            step = lambda state, key: (lambda new: (new, new.position))(kernel.step(key, state)[0])  # noqa: E731
            return jax.lax.scan(step, kernel.init(jnp.zeros(())), jax.random.split(key, 300))[1]

        self.args, self.sample = args, sample

    def run(self):
        return moments(self.sample(jax.random.key(0), *self.args))


class SingleFit(Nothing):
    precision = "float32"

    def __init__(self, case):
        self.model = (case.function, *case.args)

    def run(self):
        result = fit(*self.model, precision=self.precision)
        return result["mean"], result["sd"]


class DoubleFit(SingleFit):
    precision = "float64"


class StanFit(SingleFit):
    precision = None

    def __init__(self, case):
        data = {"N": 20, "x": np.asarray(case.x), "y": np.asarray(case.y)}
        self.model = (bf.from_stan(PROGRAM, data=data, progress=False),)


NEIGHBOURS = {
    "nothing": Nothing,
    "NUTS": Nuts,
    "SVI": Svi,
    "jitted function": Jitted,
    "PyMC": PyMC,
    "blackjax": Blackjax,
    "float32 fit": SingleFit,
    "float64 fit": DoubleFit,
    "Stan fit": StanFit,
}


def moments(draws):
    return float(np.mean(draws)), float(np.std(draws))


SETTINGS = {
    "none": lambda: None,
    "jax_enable_x64": lambda: jax.config.update("jax_enable_x64", True),
    "numpyro.enable_x64": numpyro.enable_x64,
    "two devices": lambda: numpyro.set_host_device_count(2),
    "JAX_PLATFORMS": lambda: None,  # in the environment of the process
    "jax_debug_nans": lambda: jax.config.update("jax_debug_nans", True),
    "jax_transfer_guard": lambda: jax.config.update("jax_transfer_guard", "disallow"),
}


class Compilations:
    """Counts what this thread compiles; bernflow's own threads may still compile what a fit did not need."""

    num = 0

    def __init__(self):
        self.thread = threading.get_ident()
        jax.monitoring.register_event_duration_secs_listener(self.hear)

    def hear(self, event, duration, **_):
        self.num += event == "/jax/core/compile/backend_compile_duration" and threading.get_ident() == self.thread

    def during(self, function):
        before = self.num
        # Samplers of others move arrays to the device implicitly.
        with jax.transfer_guard("allow"):
            result = function()
        return result, self.num - before


class Cell:
    def __init__(self, front, kind, compilations):
        make, closes_over = FRONTS[front]
        self.names = {"front": front, "kind": kind}
        self.case = Case(kind, closes_over)
        self.make = make
        self.compilations = compilations

    @cached_property
    def model(self):
        return self.make(self.case)

    def run(self, neighbour, order, precisions):
        make = NEIGHBOURS[neighbour]
        fits = [] if order == "before" else self.fits(precisions)
        other = make(self.case)
        # Twice: what the second run compiles, every later one does.
        runs = [self.compilations.during(other.run) for _ in range(2)]
        fits += self.fits(precisions)
        runs.append(self.compilations.during(other.run))
        return {**self.names, "fits": fits, "runs": runs}

    def fits(self, precisions):
        return [{"asked": precision, **fit(*self.model, precision=precision)} for precision in precisions]


def main(spec):
    warnings.simplefilter("ignore")  # of other packages, and of fits whose few steps were not enough
    SETTINGS[spec["setting"]]()
    compilations = Compilations()
    for front in spec["fronts"]:
        for kind in spec["kinds"]:
            with jax.transfer_guard("allow"):
                cell = Cell(front, kind, compilations)
            print(json.dumps(cell.run(spec["neighbour"], spec["order"], spec["precisions"])), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
