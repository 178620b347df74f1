"""Part `profile`: where the time of a step goes, by timing its pieces as compiled functions of their own.

The shares are approximate: XLA fuses pieces that follow each other, so that they do not add up to the whole.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

from benchmarks.speed.clock import median_of, ratios, spread, time_calls
from benchmarks.speed.part import Case, Part, Scale, Section
from benchmarks.speed.training import RATE, Training, schools
from benchmarks.study.plan import Result
from benchmarks.study.records import Record
from benchmarks.study.tables import Table
from bernflow.fit.evaluation import pick
from bernflow.flows.autoregressive import BernsteinFlow
from bernflow.flows.bernstein import centered_polynomial, increments
from bernflow.flows.wide import WideBernsteinFlow
from bernflow.objectives import Noise, stratified_noise
from bernflow.precision import use_precision

WHOLE = "whole step"
# Keeps the iterations of a loop from being recognized as the same: too small to change a number.
WHISPER = 1e-30


def basis(training: Training, flow: Any, noise: Noise) -> Array:
    """Evaluate every polynomial and its slope."""
    raw = _raw(flow)
    t = 0.5 + noise.z / 8.0
    value, slope = jax.vmap(lambda row: centered_polynomial(increments(raw), row))(t)
    return jnp.sum(value + slope)


def _raw(flow: Any) -> Array:
    """Return raw increments of all dimensions, before any conditioning."""
    if isinstance(flow, WideBernsteinFlow):
        return jnp.concatenate([_raw(flow.leaders), flow.followers.raw])
    return flow.bias[:, -flow.order :]


def conditioner(training: Training, flow: Any, noise: Noise) -> Array:
    """Evaluate every network."""

    def one(z):
        if isinstance(flow, WideBernsteinFlow):
            first = z[: flow.context]
            return jnp.sum(full(flow.leaders, first)) + jnp.sum(flow.followers.out @ flow.followers.hidden(first))
        return jnp.sum(full(flow, z))

    def full(flow: BernsteinFlow, z):
        return flow.network.readout() @ flow.network.hidden(z) if flow.network is not None else jnp.zeros(())

    return jnp.sum(jax.vmap(one)(noise.z))


def transform(training: Training, flow: Any, noise: Noise) -> Array:
    """Evaluate the whole flow."""
    x, log_det = jax.vmap(flow.transform_and_log_det)(noise.z)
    return jnp.sum(x) + jnp.sum(log_det)


def score(training: Training, flow: Any, noise: Noise) -> Array:
    """Evaluate the gradient of log q."""
    return jnp.sum(jax.vmap(flow.score)(noise.z))


def density(training: Training, flow: Any, noise: Noise) -> Array:
    """Evaluate the log density of the model and its gradient."""
    values, gradients = jax.vmap(jax.value_and_grad(training.target.log_density))(noise.z)
    return jnp.sum(values) + jnp.sum(gradients)


def optimizer(training: Training, flow: Any, noise: Noise) -> Array:
    """Turn a gradient into updates, check and apply them."""
    vector, _ = ravel_pytree(eqx.filter(flow, eqx.is_inexact_array))
    state = jax.tree.map(lambda leaf: leaf[0], training.state.optimizer_state)
    # The weights stand in for their gradient.
    updates, state = training.settings.optimizer.update(vector, state, vector)
    kept = jnp.where(jnp.all(jnp.isfinite(updates)), vector + RATE * updates, vector)
    return sum((jnp.sum(leaf) for leaf in jax.tree.leaves(state)), start=jnp.sum(kept))


Piece = Callable[[Training, Any, Noise], Array]
# What is differentiated in a step is timed with its gradient in the flow.
PIECES: dict[str, tuple[Piece, bool]] = {
    "basis": (basis, True),
    "conditioner": (conditioner, True),
    "flow, basis and conditioner included": (transform, True),
    "score": (score, False),
    "model density": (density, False),
    "optimizer": (optimizer, False),
}


def cases(scale: Scale) -> list[Case]:
    """Return one case per number of dimensions."""
    dims = scale.pick(tiny=(4,), quick=(10, 256), normal=(10, 256))
    chunk = scale.pick(tiny=3, quick=50, normal=50)
    names = (*PIECES, WHOLE)
    return [
        Case(f"p = {dim}", {n: {"dim": dim, "chunk": chunk, "seconds": scale.seconds} for n in names}, scale.rounds)
        for dim in dims
    ]


def measure(case: str, subject: str, settings: Mapping[str, Any]) -> Result:
    """Time one piece, repeated in a compiled loop as the steps are."""
    chunk = settings["chunk"]
    training = Training(lambda: schools(settings["dim"]), settings, chunk)
    if subject == WHOLE:
        return {**time_calls(training.run, chunk, settings["seconds"]), **training.described()}
    piece, differentiated = PIECES[subject]
    with use_precision(training.settings.precision):
        flow: Any = pick(training.state.flow, 0)
        noise = stratified_noise(flow, jax.random.split(jax.random.key(2)), training.settings.num_particles)
        repeated = eqx.filter_jit(lambda flow, noise: _repeat(piece, training, flow, noise, chunk, differentiated))
        taken = time_calls(lambda: jax.block_until_ready(repeated(flow, noise)), chunk, settings["seconds"])
    return {**taken, **training.described()}


def _repeat(piece: Piece, training: Training, flow: Any, noise: Noise, num: int, differentiated: bool) -> Array:
    """Run a piece several times, each time with inputs that depend on the time before."""
    arrays, fixed = eqx.partition((flow, noise), eqx.is_inexact_array)

    def body(whisper, _):
        moved, moved_noise = eqx.combine(jax.tree.map(lambda leaf: leaf + whisper, arrays), fixed)
        if not differentiated:
            return WHISPER * piece(training, moved, moved_noise), None
        value, gradient = eqx.filter_value_and_grad(lambda flow: piece(training, flow, moved_noise))(moved)
        return WHISPER * (value + _total(gradient)), None

    return jax.lax.scan(body, jnp.zeros((), noise.z.dtype), None, length=num)[0]


def _total(tree: PyTree) -> Array:
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))
    return sum((jnp.sum(leaf) for leaf in leaves), start=jnp.zeros(()))


def present(records: Sequence[Record]) -> Section:
    """Show the share of every piece."""
    medians = median_of(records, "seconds")
    here = list(dict.fromkeys(case for case, _ in medians))
    rows = []
    for name in (*PIECES, WHOLE):
        cells: list[Any] = []
        for case in here:
            mine = [r for r in records if r["case"] == case]
            shares = [100.0 * value for value in ratios(mine, "seconds", name, WHOLE)]
            known = medians.get((case, name))
            cells += [None if known is None else 1e6 * known, spread(shares)]
        rows.append([name, *cells])
    columns = ["piece", *(text for case in here for text in (f"µs, {case}", f"% of a step, {case}"))]
    text = (
        "Pieces of a step of the default flow, each compiled and timed separately; basis, conditioner and flow "
        "include their gradients. The numbers are approximate: XLA fuses consecutive operations of a step, so the "
        "shares do not add up to 100 %, and the flow includes the two pieces above it."
    )
    return Section([text, Table(columns, rows)])


PART = Part("profile", "Where the time of a step goes", cases, measure, present)
