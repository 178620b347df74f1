"""Very many rows: a mode found on all of them, and a verdict from a part of them.

Evaluating 10^8 rows at 20,000 draws takes hours. But near the mode a the density of all rows is its tangent there,
which one pass over the rows gives exactly, plus a remainder, which a random part of the rows estimates:

    log p(x) = log p(a) + g(a) (x - a) + N/m sum_{i in part} [l_i(x) - l_i(a) - g_i(a) (x - a)] + noise.

The remainder of a row is of second order, (x - a)^2 = O(1/N), so that the noise of the sum is O(m^-1/2) nats whatever N
is. How large it is follows from the spread between pieces of the part, and the verdict states it.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from bernflow.compiled import filter_jit
from bernflow.diagnostics.findings import ROWS, Diagnostics, Finding
from bernflow.fit.batches.rows import Batches
from bernflow.fit.train.objective import Anchor, BatchDensity, find_anchor
from bernflow.flows.base import AbstractDistribution
from bernflow.flows.factors import as_factor
from bernflow.placement import replicated
from bernflow.posterior import sampling

# Up to so many rows the verdict evaluates all of them.
MAX_JUDGED_ROWS = 2**20
# Rows of the part that judges more, and the pieces that tell its noise.
NUM_PART_ROWS, NUM_PIECES = 2**16, 16
# Rows at once in a pass over all of them.
PASS_ROWS = 2**16
# Passes that move the anchor towards the mode. The curvature of a part of the rows is right to a per cent: each step
# leaves a hundredth of the distance.
MAX_NEWTON_STEPS = 3
# A step that promises less than this many nats is not worth a pass.
ARRIVED = 1e-3
# Above this many nats the noise alone makes weights uneven (an ESS fraction of 0.96): "good" cannot be told.
MAX_NOISE = 0.2


class Judged(NamedTuple):
    """Log weights from a part of the rows.

    Attributes:
        log_weights: one per draw.
        noise: standard error of their differences between draws, in nats: what the weights suffer from.
        offset: standard error of their mean, in nats: what the evidence suffers from.
    """

    log_weights: Float[np.ndarray, " s"]
    noise: float
    offset: float


def find_mode(density: BatchDensity, batches: Batches, x: Float[Array, " p"], factor: Any) -> Anchor:
    """Return the anchor at the mode of all rows, by Newton steps with the covariance of some rows, given its factor."""
    best, factor = find_anchor(density, batches, x, PASS_ROWS), as_factor(factor)
    for _ in range(MAX_NEWTON_STEPS):
        slope = factor.transposed(best.gradient)
        if not 0.5 * jnp.sum(slope**2) > ARRIVED:
            break
        trial = find_anchor(density, batches, best.x + factor.color(slope), PASS_ROWS)
        if not trial.value > best.value:
            break
        best = trial
    return best


def judge_by_part(
    distribution: AbstractDistribution,
    density: BatchDensity,
    batches: Batches,
    anchor: Anchor,
    key: Key[Array, ""],
    num: int,
) -> Judged:
    """Return log weights of fresh draws, estimated from a random part of the rows."""
    x, log_q = sampling.sample(distribution, key, num)
    # Pieces of one size: one compilation.
    pieces = batches.sample(batches.share(NUM_PART_ROWS // NUM_PIECES) * NUM_PIECES).reshape(NUM_PIECES, -1)
    values = []
    for piece in pieces:
        batch = jax.tree.map(lambda leaf: leaf[0], batches.take(piece[None]))
        part = eqx.tree_at(lambda d: d.batch, density, batch)
        values.append(sampling.in_blocks(lambda block, _, part=part: _corrected(part, anchor, block), x))
    estimates = np.stack(values)
    mean = np.mean(estimates, 0)
    offsets = np.mean(np.where(np.isfinite(estimates), estimates, 0.0), 1)
    errors = np.std(estimates - offsets[:, None], 0, ddof=1)[np.isfinite(mean)] / np.sqrt(NUM_PIECES)
    noise = float(np.sqrt(np.mean(errors**2))) if errors.size else float("nan")
    return Judged(mean - log_q, noise, float(np.std(offsets, ddof=1) / np.sqrt(NUM_PIECES)))


@filter_jit
def _corrected(density: BatchDensity, anchor: Anchor, x: Float[Array, "s p"]) -> Float[Array, " s"]:
    """Estimate the log density of all rows from some, by their difference from the tangent at the anchor."""
    value, slope = jax.value_and_grad(density.log_density)(anchor.x)
    num_rows = jax.tree.leaves(density.batch)[0].shape[0]
    at_once = sampling.draws_at_once(num_rows, len(x))
    log_p = jax.lax.map(density.log_density, x, batch_size=at_once)
    return replicated(log_p + anchor.value - value + (x - anchor.x) @ (anchor.gradient - slope))


def with_part(diagnostics: Diagnostics, judged: Judged, batches: Batches) -> Diagnostics:
    """Add what the verdict rests on: a fit is not called good where the noise of the part of the rows is too large."""
    quiet = judged.noise < MAX_NOISE
    finding = Finding(
        ROWS,
        "good" if quiet else "usable",
        f"judged by a random {NUM_PART_ROWS:,} of {batches.total_rows:,} rows and the gradient of all rows at the "
        f"mode, which leaves the log weights uncertain by {judged.noise:.2g} nats"
        + ("" if quiet else ", too much to call the fit good"),
        figures={"noise": judged.noise},
    )
    return diagnostics.adding(
        finding,
        elbo_se=float(np.hypot(diagnostics.elbo_se, judged.offset)),
        log_evidence_se=float(np.hypot(diagnostics.log_evidence_se, judged.offset)),
    )
