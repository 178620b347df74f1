"""What a fit depends on, so that a checkpoint of another one is recognised."""

import hashlib
import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Key

from bernflow.compiled import filter_jit
from bernflow.fit.settings import Settings
from bernflow.models.base import AbstractJointModel, AbstractModel
from bernflow.models.inputs import Opaque, is_data
from bernflow.target import AbstractLayout, layout_of
from bernflow.target import log_density as density_of

# Of larger arrays so many bytes are looked at: in blocks spread evenly, the first and the last among them.
MAX_HASHED_BYTES, NUM_BLOCKS = 2**26, 64
# Rows behind the trial of the density of a model that is fitted on batches.
NUM_ROWS = 64
# Another machine rounds these otherwise; another model differs by more than the tolerance.
COMPUTED = ("log_density", "optimizer")
TOLERANCE = 1e-4
# Their values would tell a reader nothing.
OBSCURE = (*COMPUTED, "data")


def identify(
    model: AbstractModel, settings: Settings, key: Key[Array, ""], batch_size: int | None = None
) -> dict[str, Any]:
    """Describe a fit by its settings, its key, its parameters, its data, and a trial of density and optimiser.

    What a model computes cannot be told from its code; the log density at fixed points stands for it. What is computed
    is compared with a tolerance, so that a fit may be resumed on another machine.
    """
    layout = layout_of(model)
    identity = {
        **settings.describe(),
        "optimizer": _try_optimizer(settings.optimizer),
        "batch_size": batch_size,
        "key": np.asarray(jax.random.key_data(key)).tolist(),
        "model": type(model).__name__,
        "parameters": layout.labels(),
        "data": digest_of(model),
        "log_density": _try_density(layout, model),
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
    total = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(model):
        value = leaf.value if isinstance(leaf, Opaque) else leaf
        name = jax.tree_util.keystr(path)
        # The number of a Stan program is counted anew in every process.
        if not is_data(value) or name.endswith(".handle"):
            continue
        total.update(f"{name} {value.dtype} {value.shape}".encode())
        for block in _blocks(value):
            total.update(np.ascontiguousarray(block).tobytes())
    return total.hexdigest()


def _blocks(value: Any) -> list[Any]:
    if value.nbytes <= MAX_HASHED_BYTES or value.ndim == 0 or len(value) < 2 * NUM_BLOCKS:
        return [value]
    num = max(1, math.ceil(MAX_HASHED_BYTES / NUM_BLOCKS / (value.nbytes / len(value))))
    starts = np.linspace(0, len(value) - num, NUM_BLOCKS).astype(int)
    return [value[start : start + num] for start in starts]


def _try_optimizer(optimizer: optax.GradientTransformation) -> list[float] | None:
    """Return the first updates for a fixed gradient; None for an optimiser that takes no plain vector."""
    try:
        values = jnp.array([1.0, -2.0, 0.5])
        state, moves = optimizer.init(values), []
        for scale in (1.0, 0.3):
            move, state = optimizer.update(scale * values, state, values)
            moves.append(move)
    except Exception:  # optimisers of the user's own may want anything
        return None
    return [float(move) for move in np.concatenate(moves)]


def _try_density(layout: AbstractLayout, model: AbstractModel) -> list[str]:
    points = np.stack([np.full(layout.dim, 0.1), np.linspace(-0.5, 0.5, layout.dim)])
    if isinstance(model, AbstractJointModel) and len(jax.tree.leaves(model.rows())):
        num = getattr(model, "batch_size", None) or min(NUM_ROWS, model.num_rows())
        batch = jax.tree.map(lambda leaf: np.asarray(leaf[:num]), model.rows())
        light, (weights, state) = model.without_rows(), model.trained()
        values = _densities_of_batch(layout_of(light), light, weights, state, batch, jnp.asarray(points))
    else:
        values = _densities(layout, model, jnp.asarray(points))
    # As text, because JSON has no infinity.
    return [repr(float(value)) for value in np.asarray(values)]


@filter_jit
def _densities(layout: AbstractLayout, model: AbstractModel, points: Float[Array, "k p"]) -> Float[Array, " k"]:
    return jax.lax.map(lambda x: density_of(layout, model, x), points)


@filter_jit
def _densities_of_batch(layout, model, weights, state, batch, points):
    def one(x):
        theta, log_jacobian = layout.constrain(x)
        return log_jacobian + model.log_density_of_batch(theta, weights, state, batch, jax.random.key(0))[0]

    return jax.lax.map(one, points)


def _agree(name: str, there: Any, here: Any) -> bool:
    if name not in COMPUTED or there is None or here is None or len(there) != len(here):
        return there == here
    pairs = [(float(a), float(b)) for a, b in zip(there, here, strict=True)]
    return all(a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=TOLERANCE) for a, b in pairs)


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
