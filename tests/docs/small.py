"""Stand-ins that make a tutorial small: real fits, of few steps and few draws, so that a page takes seconds.

Everything on a page runs as it stands: starts, training, the verdict, draws, predictions and figures. Only its numbers
mean nothing. A Stan program is translated by stanc and not compiled; a NumPyro model of the same names goes on.
"""

import dataclasses
import functools
import importlib

import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

import bernflow as bf

STEPS = 10
EPOCHS = 1
# Large enough for a Pareto fit of the weights.
NUM_DIAGNOSTIC_DRAWS = 1000


def install(setattr_=setattr, family="bernstein"):
    """Put the stand-ins in place, by a function like pytest's `monkeypatch.setattr`.

    Args:
        setattr_: sets an attribute.
        family: what is fitted where a page names no family; others than the default compile faster.

    Returns:
        A list that gets the number of steps of every training.
    """
    trained = []
    api, engine, evaluation = (
        importlib.import_module(f"bernflow.fit.{name}") for name in ("api", "engine", "evaluation")
    )
    estimator = importlib.import_module("bernflow.semistructured.estimator")
    setattr_(api, "resolve_settings", _small_settings(api.resolve_settings, family))
    setattr_(estimator, "resolve_settings", _small_settings(estimator.resolve_settings, family))
    setattr_(engine, "recipe_for", _few_steps(engine.recipe_for, trained))
    setattr_(evaluation, "NUM_DIAGNOSTIC_DRAWS", NUM_DIAGNOSTIC_DRAWS)
    setattr_(bf.SemiStructured, "fit", _few_epochs(bf.SemiStructured.fit))
    setattr_(bf, "from_stan", _from_stan)
    return trained


def _small_settings(resolve, default):
    def resolved(*, family, **others):
        settings = resolve(family=default if family == "bernstein" else family, **others)
        return dataclasses.replace(settings, steps=min(settings.steps or STEPS, STEPS))

    return resolved


def _few_steps(recipe_for, trained):
    """Also where a fit goes on to train by itself, as after a network."""

    def short(settings, flows):
        recipe = recipe_for(settings, flows)
        recipe = dataclasses.replace(recipe, steps=min(recipe.steps or STEPS, STEPS))
        trained.append(recipe.steps)
        return recipe

    return short


def _few_epochs(fit):
    @functools.wraps(fit)
    def fitted(self, *args, epochs=20, **kwargs):
        return fit(self, *args, epochs=min(epochs, EPOCHS), **kwargs)

    return fitted


def _from_stan(program, data):
    """Let stanc read the program, and return the same model as NumPyro would write it."""
    from bernflow.models import as_model
    from bernflow.models.stan.build import Program, translate

    translate(Program(program, "model"))
    return as_model(_crossings, (jnp.asarray(data["accidents"]), jnp.asarray(data["years"])))


def _crossings(accidents, years):
    mu = numpyro.sample("mu", dist.Normal(0, 2))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    z = numpyro.sample("z", dist.Normal(0, 1).expand([len(years)]).to_event(1))
    rate = numpyro.deterministic("rate", jnp.exp(mu + tau * z))
    numpyro.sample("accidents", dist.Poisson(rate * years), obs=accidents)
