"""See the structure of a posterior: from which of its second derivatives are zero."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Array, Float
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee

from bernflow.background import Effort, background_jit
from bernflow.flows.structure import Structure
from bernflow.models.base import Theta
from bernflow.target import AbstractLayout

# A second derivative counts as zero below this share of the geometric mean of the two diagonal ones.
NEGLIGIBLE = 1e-7
# More globals than this make the flow of the globals too expensive.
MAX_LEADERS = 64
# Blocks and bands of more locals than this are not seen as structure.
MAX_BLOCK = 8
MAX_BAND = 32
# A chain is worth it where it saves more globals than this: its blocks are drawn one after the other.
CHAIN_COST = 4
# A dense block costs as much as so many globals, one for every eight dimensions, and the square of its dimensions over
# this: all entries of its matrix depend on the globals.
MAX_DENSE, DENSE_COST, LARGE_DENSE = 1024, 8, 32
# Scales that fewer interact with are not globals; more of a site than this are scales of single parameters.
MIN_DEGREE, MAX_SCALES = 3, 16
# An unconstrained value at which scales are nearly zero.
LOW = -30.0

# What it costs, the blocks, and whether they form a chain.
Arrangement = tuple[float, list[np.ndarray], bool]


def pattern_of(hessians: Sequence[csr_array]) -> csr_array:
    """Tell which pairs of dimensions interact at any of several points: a symmetric pattern without its diagonal."""
    pattern = csr_array(hessians[0].shape, dtype=bool)
    for hessian in hessians:
        scale = np.sqrt(np.abs(hessian.diagonal()))
        scale = np.maximum(scale, 1e-12 * max(scale.max(), 1e-300))
        rows, columns = hessian.nonzero()
        large = np.abs(hessian.data) > NEGLIGIBLE * scale[rows] * scale[columns]
        seen = large & (rows != columns)
        pattern = pattern + csr_array((np.ones(seen.sum(), bool), (rows[seen], columns[seen])), hessian.shape)
    return csr_array(pattern + pattern.T)


def find_structure(pattern: csr_array, scales: Sequence[int] = ()) -> Structure | None:
    """Choose globals such that the other dimensions fall into small blocks, a chain of them, or one dense block.

    Scales that many others depend on are globals: what they govern is nearly Gaussian given them, and the mode of both
    together is useless. Then dimensions that interact with most others are removed one after the other; of all
    numbers of them, the one with the fewest globals and the smallest blocks is taken.

    Args:
        pattern: which pairs of dimensions interact.
        scales: dimensions that are scales.

    Returns:
        The structure, or None where no few globals separate the others.
    """
    dim = pattern.shape[0]
    degree = np.diff(pattern.indptr)
    leaders = [int(i) for i in scales if degree[i] >= MIN_DEGREE]
    rest = np.setdiff1d(np.arange(dim), leaders)
    best: tuple[float, Structure] | None = None
    may_be_dense = True
    while len(leaders) <= min(MAX_LEADERS, dim // 2):
        graph = pattern[rest][:, rest]
        dense = _dense(graph) if may_be_dense and leaders else []
        # More globals make a dense block smaller, and nothing simpler.
        may_be_dense &= not leaders
        for cost, blocks, chained in (*_arrangements(graph), *dense):
            total = len(leaders) + cost
            if leaders and (best is None or total < best[0]):
                members = tuple(tuple(int(rest[i]) for i in block) for block in blocks)
                best = total, Structure(dim, tuple(sorted(leaders)), members, chained)
        if best is not None and len(leaders) >= best[0]:
            break
        degree = np.diff(graph.indptr)
        hub = int(np.argmax(degree))
        if degree[hub] == 0:
            break
        leaders.append(int(rest[hub]))
        rest = np.delete(rest, hub)
    return None if best is None else best[1]


def _arrangements(graph: csr_array) -> list[Arrangement]:
    """Return the ways in which a graph falls apart."""
    found: list[Arrangement] = []
    label = connected_components(graph, directed=False)[1]
    sizes = np.bincount(label)
    if sizes.max() <= MAX_BLOCK:
        blocks = np.split(np.argsort(label, kind="stable"), np.cumsum(sizes)[:-1])
        found.append((int(sizes.max()), blocks, False))
    for order in (np.arange(graph.shape[0]), np.asarray(reverse_cuthill_mckee(graph, symmetric_mode=True))):
        width = _bandwidth(graph, order)
        if 0 < width <= MAX_BAND:
            blocks = [order[i : i + width] for i in range(0, len(order), width)]
            if len(blocks) > 2:
                found.append((width + CHAIN_COST, blocks, True))
    return found


def _dense(graph: csr_array) -> list[Arrangement]:
    """Return all dimensions as one block, if they are not too many."""
    num = graph.shape[0]
    return [(DENSE_COST + num / 8 + (num / LARGE_DENSE) ** 2, [np.arange(num)], False)] if num <= MAX_DENSE else []


def scale_dimensions(layout: AbstractLayout) -> list[int]:
    """Return the dimensions of parameters that go to zero with x, if they are few: scales, on whatever support."""
    low, middle = (_constrain(layout, np.full(layout.dim, value)) for value in (LOW, 0.0))
    found: list[int] = []
    start = 0
    for i in layout.order:
        name, size = layout.sites[i].name, layout.sizes[i]
        there, here = np.asarray(low[name]), np.asarray(middle[name])
        if here.size == size <= MAX_SCALES and np.all(np.abs(there) < 1e-6) and np.all(here > 1e-3):
            found += range(start, start + size)
        start += size
    return found


@background_jit(Effort.LEAST)
def _constrain(layout: AbstractLayout, x: Float[Array, " p"]) -> Theta:
    return layout.constrain(x)[0]


def _bandwidth(graph: csr_array, order: np.ndarray) -> int:
    place = np.argsort(order)
    rows, columns = graph.nonzero()
    return int(np.abs(place[rows] - place[columns]).max(initial=0))
