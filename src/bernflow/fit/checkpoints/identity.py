"""What a fit depends on, so that a checkpoint of another one is recognised."""

import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.compiled import filter_jit
from bernflow.fingerprint import fingerprint
from bernflow.fit.judging import DIAGNOSTIC_PRECISION
from bernflow.fit.settings import Settings
from bernflow.models.base import AbstractJointModel, AbstractModel
from bernflow.models.inputs import Opaque, is_data
from bernflow.precision import use_precision
from bernflow.target import AbstractLayout, layout_of

# Rows behind the trial of the density of a model that is fitted on batches.
NUM_ROWS = 64
# Points at which the density is tried, beside two that lie near zero.
NUM_POINTS, RADIUS = 2, 2.0
# Another machine rounds a term of the log density otherwise: relative to the term, or to one nat.
TOLERANCE = 1e-9
DENSITY = "log_density"
# Their values would tell a reader nothing.
OBSCURE = (DENSITY, "data", "code_or_constants", "flow", "optimizer")


def identify(
    model: AbstractModel, settings: Settings, key: Key[Array, ""], batch_size: int | None = None
) -> dict[str, Any]:
    """Describe a fit by its settings, its key, its parameters, its data, its code, and a trial of the density.

    Code and constants are compared by `fingerprint`. It cannot see into compiled code, so the terms of the log density
    at fixed points are compared, too: to rounding, so that a fit may be resumed on another machine.
    """
    layout = layout_of(model)
    with use_precision(DIAGNOSTIC_PRECISION):
        densities = _try_density(layout, model)
    identity = {
        **settings.describe(),
        "flow": fingerprint(settings.family),
        "optimizer": fingerprint(settings.optimizer),
        "batch_size": batch_size,
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "model": type(model).__name__,
        "parameters": layout.labels(),
        "data": digest_of(model),
        "code_or_constants": _digest_of_rest(model),
        DENSITY: densities,
    }
    return json.loads(json.dumps(identity))


def differences(there: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Name what differs between two descriptions."""
    names = [name for name in {**there, **here} if not _agree(name, there.get(name), here.get(name))]
    told = [n for n in names if n not in OBSCURE]
    return [f"{n}={_short(there.get(n))} there, {_short(here.get(n))} now" for n in told] + [
        f"another {n.replace('_', ' ')}" for n in names if n in OBSCURE
    ]


def digest_of(model: Any) -> str:
    """Return a checksum of the arrays of a model; of giant arrays, a part of their content counts."""
    leaves = jax.tree_util.tree_leaves_with_path(model)
    values = {jax.tree_util.keystr(path): leaf.value if isinstance(leaf, Opaque) else leaf for path, leaf in leaves}
    return fingerprint({path: value for path, value in values.items() if is_data(value)})


def _digest_of_rest(model: Any) -> str:
    """Return a checksum of all of a model but its arrays."""
    return fingerprint(jax.tree.map(lambda leaf: None if is_data(leaf) else leaf, model))


def _try_density(layout: AbstractLayout, model: AbstractModel) -> dict[str, list[str]]:
    """Return the terms of the log density at fixed points, by name."""
    others = np.random.default_rng(0).uniform(-RADIUS, RADIUS, (NUM_POINTS, layout.dim))
    points = jnp.asarray(np.stack([np.full(layout.dim, 0.1), np.linspace(-0.5, 0.5, layout.dim), *others]))
    if isinstance(model, AbstractJointModel) and len(jax.tree.leaves(model.rows())):
        num = getattr(model, "batch_size", None) or min(NUM_ROWS, model.num_rows())
        batch = jax.tree.map(lambda leaf: np.asarray(leaf[:num]), model.rows())
        light, (weights, state) = model.without_rows(), model.trained()
        values = _terms_of_batch(layout_of(light), light, weights, state, batch, points)
    else:
        values = _terms(layout, model, points)
    # As text, because JSON has no infinity.
    return {name: [repr(float(value)) for value in np.asarray(term)] for name, term in sorted(values.items())}


@filter_jit
def _terms(layout: AbstractLayout, model: AbstractModel, points: Float[Array, "k p"]) -> dict[str, Float[Array, " k"]]:
    def one(x):
        theta, log_jacobian = layout.constrain(x)
        terms = {f"term {name}": jnp.sum(term) for name, term in model.log_terms(theta).items()}
        return {**terms, "log Jacobian": log_jacobian}

    return jax.lax.map(one, points)


@filter_jit
def _terms_of_batch(layout, model, weights, state, batch, points):
    def one(x):
        theta, log_jacobian = layout.constrain(x)
        value, _ = model.log_density_of_batch(theta, weights, state, batch, jax.random.key(0))
        return {"batch": value, "log Jacobian": log_jacobian}

    return jax.lax.map(one, points)


def _agree(name: str, there: Any, here: Any) -> bool:
    if name != DENSITY or there == here:
        return there == here
    try:
        return there.keys() == here.keys() and all(_close(there[term], here[term]) for term in here)
    except (AttributeError, KeyError, TypeError, ValueError):  # not written by us
        return False


def _close(there: list[str], here: list[str]) -> bool:
    pairs = [(float(a), float(b)) for a, b in zip(there, here, strict=True)]
    return all(
        a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        for a, b in pairs
    )


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
