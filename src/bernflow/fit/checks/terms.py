"""Modes of the single terms of a density that sums out a discrete variable.

A mixture, a spike and a slab or a robust likelihood has the log density log sum_k exp(l_k(x)). Far from a mode that is
narrower than others, their terms are larger by hundreds of nats, so that neither the density nor its derivatives tell
of it, and in many dimensions no search by points comes near. The terms themselves do: with all others left out, the
density of one is climbed from anywhere. `fit.checks.sums` finds them.

Where such a climb ends is only a start: from there paths follow the density itself.
"""

import math
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Array, Float, Int, Key
from scipy.optimize import minimize

from bernflow.compiled import filter_jit
from bernflow.fit.checks.evidence import Evidence, Subject
from bernflow.fit.checks.sums import Selection, Sum, selected, sums_of
from bernflow.fit.work import work
from bernflow.keys import generator
from bernflow.target import Target

# Climbs by default, the steps of each, and the numbers that all of them may compute together; a gradient is as much
# work as so many densities.
NUM_CLIMBS, NUM_STEPS, MAX_WORK, WORK_OF_GRADIENT = 16, 100, 4e8, 4
# Ends that agree to so many digits, in standard deviations of the fit, are the same.
DIGITS = 3
# With fewer climbs not even two terms are told apart.
MIN_CLIMBS = 2


class Terms:
    """Where are the modes of single terms of the sums in the density?"""

    def applies(self, subject: Subject, evidence: Evidence) -> bool:
        """Fits that paths search the surroundings of, if the density has such sums and is cheap."""
        searched = evidence.points is not None and subject.probes is not None
        return searched and _num_climbs(subject) >= MIN_CLIMBS and bool(sums_of(subject.target))

    def run(self, subject: Subject, evidence: Evidence) -> Evidence:
        """Climb single terms; keep the ends as starts of paths."""
        draws = subject.draws[np.isfinite(subject.draws).all(1)]
        ends = climb_terms(subject.target, np.median(draws, 0), _num_climbs(subject), subject.search_keys[6])
        # Several choices of terms may have the same mode.
        scale = np.maximum(np.std(draws, 0), np.finfo(float).tiny)
        _, first = np.unique(np.round(ends / scale, DIGITS), axis=0, return_index=True)
        if not len(first):
            return evidence
        modes = "one mode" if len(first) == 1 else f"{len(first)} modes"
        looked = (*evidence.looked, f"{modes} of single terms of the density")
        return evidence.replace(ends=ends[np.sort(first)], looked=looked)


def climb_terms(
    target: Target, start: Float[np.ndarray, " p"], num: int, key: Key[Array, ""]
) -> Float[np.ndarray, "n p"]:
    """Return where climbs of single terms end, from one start.

    Args:
        target: the posterior.
        start: where all climbs begin.
        num: their number.
        key: chooses the terms.
    """
    found = [_climb(target, start, terms) for terms in choose(sums_of(target), num, generator(key))]
    ends = [end for end in found if end is not None]
    return np.array(ends) if ends else np.empty((0, target.dim))


def choose(sums: Sequence[Sum], num: int, random: np.random.Generator) -> list[tuple[Int[np.ndarray, "..."], ...]]:
    """Return choices of one term of every sum: first the same one for all values and sums, then random ones."""
    most = max(each.num for each in sums)
    same = range(most) if most <= num else random.permutation(most)[: (num + 1) // 2]
    choices = [tuple(np.full(each.shape, k % each.num) for each in sums) for k in map(int, same)]
    values = sum(math.prod(each.shape) for each in sums)
    if values > 1:  # of a single value there are no other choices
        choices += [
            tuple(random.integers(each.num, size=each.shape) for each in sums) for _ in range(num - len(choices))
        ]
    return choices


def _climb(
    target: Target, start: Float[np.ndarray, " p"], terms: tuple[Int[np.ndarray, "..."], ...]
) -> Float[np.ndarray, " p"] | None:
    """Return where a climb of chosen terms ends; None where there is no density."""

    def descent(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = _value_and_slope(target, x, terms)
        return -float(value), -np.asarray(slope, np.float64)

    if not all(np.isfinite(part).all() for part in descent(start)):
        return None
    # A trial step may leave the support or overflow; the line search then shortens it.
    with np.errstate(all="ignore"):
        end = minimize(descent, start, jac=True, method="L-BFGS-B", options={"maxiter": NUM_STEPS}).x
    return end if np.isfinite(end).all() else None


@filter_jit
def _value_and_slope(
    target: Target, x: Float[Array | np.ndarray, " p"], terms: tuple[Int[Array | np.ndarray, "..."], ...]
) -> tuple[Float[Array, ""], Float[Array, " p"]]:
    return jax.value_and_grad(lambda x: selected(target, x, Selection(terms)))(x)


def _num_climbs(subject: Subject) -> int:
    """Return how many climbs are affordable."""
    times = subject.settings.checks.times
    each = NUM_STEPS * WORK_OF_GRADIENT * max(work(subject.target), 1.0)
    return int(min(NUM_CLIMBS, MAX_WORK / each) * times) if math.isfinite(each) else 0
