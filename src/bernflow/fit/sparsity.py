"""Sparse Hessians from few products: a pattern guessed from some rows, and verified.

Parameters of models with local structure interact with others at a fixed distance within their sites, and with a few
that interact with nearly all. Some rows of the Hessian suggest such a pattern; columns that share no row of it are
summed in one product; and products with random vectors tell whether anything was missed. Then all rows are computed.
"""

import itertools

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse import csr_array, vstack

from bernflow.fit.conditionals import derivatives_of_pairs
from bernflow.target import Target

# With fewer dimensions all rows are computed.
MIN_GUESSED = 512
# Sites of up to so many dimensions are computed row by row, so many rows in all.
SMALL_SITE, MAX_ROWS = 64, 512
# Of larger ones some rows: at the start, in the middle, at the end, so many in each place and elsewhere.
IN_A_ROW, ELSEWHERE = 3, 6
# What this share of the rows of a site interacts with is computed itself.
IS_HUB = 1 / 3
# Distances between parameters that interact, and groups of columns, of which there may be so many.
MAX_DISTANCES, MAX_COLORS = 64, 256
# Products with random vectors agree to this, in units of the curvature.
NUM_PROBES, AGREES = 2, 1e-7
# Rows at once. With more nonzero entries in a row than this, on average, there is no structure.
ROWS_AT_ONCE, MAX_SEEN = 512, 512


def sparse_hessians(target: Target, points: Float[np.ndarray, "k p"]) -> list[csr_array] | None:
    """Return Hessians without their zeros; None where they are not finite, or have too few zeros."""
    if target.dim > MIN_GUESSED:
        guessed = _guessed(target, points)
        if guessed is not None:
            return guessed
    return _row_by_row(target, points)


def _row_by_row(target: Target, points: Float[np.ndarray, "k p"]) -> list[csr_array] | None:
    """Compute all rows, and keep no zeros: memory is linear in the number of dimensions if few entries are not zero."""
    parts: list[list[csr_array]] = [[] for _ in points]
    num_seen = 0
    for start in range(0, target.dim, ROWS_AT_ONCE):
        found = _products(target, points, np.eye(min(ROWS_AT_ONCE, target.dim), target.dim, start))
        for rows, products in zip(parts, found, strict=True):
            if not np.isfinite(products).all():
                return None
            rows.append(csr_array(products))
            num_seen += rows[-1].nnz
        if num_seen > MAX_SEEN * len(points) * max(target.dim, ROWS_AT_ONCE):
            return None
    return [vstack(rows, format="csr")[: target.dim] for rows in parts]


def _products(
    target: Target, points: Float[np.ndarray, "k p"], directions: Float[np.ndarray, "t p"]
) -> Float[np.ndarray, "k t p"]:
    return derivatives_of_pairs(target, points, directions)[2].reshape(len(points), *directions.shape)


def _guessed(target: Target, points: Float[np.ndarray, "k p"]) -> list[csr_array] | None:
    """Return Hessians if a guess of their pattern holds; None if not."""
    sites = _sites(target)
    sampled = {start: _some_rows(start, size) for start, size in sites}
    rows = np.unique(np.concatenate(list(sampled.values())))
    if len(rows) > MAX_ROWS:
        return None
    exact = _products(target, points, _units(rows, target.dim))
    seen = np.any(exact != 0.0, 0)
    is_hub = _hubs(seen, rows, sites)
    hubs = np.setdiff1d(np.flatnonzero(is_hub), rows)
    distances = _distances(seen, rows, sites, is_hub)
    if distances is None or len(rows) + len(hubs) > MAX_ROWS or not np.isfinite(exact).all():
        return None
    if len(hubs):
        exact = np.concatenate([exact, _products(target, points, _units(hubs, target.dim))], 1)
        rows = np.concatenate([rows, hubs])
    rest = np.setdiff1d(np.arange(target.dim), rows)
    columns, guessed_rows = _pairs(distances, sites, rest, target.dim)
    color = _colors(columns, guessed_rows, target.dim)
    if color.max(initial=0) >= MAX_COLORS:
        return None
    directions = np.zeros((int(color.max(initial=-1)) + 1, target.dim))
    directions[color[rest], rest] = 1.0
    if not len(directions):
        return None
    compressed = _products(target, points, directions)
    found = [
        _assembled(target.dim, rows, own, guessed_rows, columns, products[color[columns], guessed_rows])
        for own, products in zip(exact, compressed, strict=True)
    ]
    return found if all(_holds(target, point, hessian) for point, hessian in zip(points, found, strict=True)) else None


def _sites(target: Target) -> list[tuple[int, int]]:
    """Return the first dimension and the size of every site."""
    sizes = [target.layout.sizes[i] for i in target.layout.order]
    return list(zip(np.cumsum([0, *sizes[:-1]]).tolist(), sizes, strict=True))


def _some_rows(start: int, size: int) -> Int[np.ndarray, " n"]:
    if size <= SMALL_SITE:
        return start + np.arange(size)
    places = [0, (size - IN_A_ROW) // 2, size - IN_A_ROW]
    elsewhere = np.random.default_rng(size).integers(size, size=ELSEWHERE)
    return start + np.unique(np.concatenate([*(place + np.arange(IN_A_ROW) for place in places), elsewhere]))


def _units(rows: Int[np.ndarray, " n"], dim: int) -> Float[np.ndarray, "n p"]:
    units = np.zeros((len(rows), dim))
    units[np.arange(len(rows)), rows] = 1.0
    return units


def _hubs(
    seen: Bool[np.ndarray, "n p"], rows: Int[np.ndarray, " n"], sites: list[tuple[int, int]]
) -> Bool[np.ndarray, " p"]:
    """Tell which dimensions interact with a large share of the rows of a large site."""
    hubs = np.zeros(seen.shape[1], bool)
    for start, size in sites:
        own = seen[(rows >= start) & (rows < start + size)]
        if size > SMALL_SITE:
            hubs |= np.mean(own, 0) >= IS_HUB
    return hubs


def _distances(
    seen: Bool[np.ndarray, "n p"],
    rows: Int[np.ndarray, " n"],
    sites: list[tuple[int, int]],
    is_hub: Bool[np.ndarray, " p"],
) -> list[tuple[int, int, Int[np.ndarray, " d"]]] | None:
    """Return, for pairs of large sites, how far apart within them parameters are that interact; None if it varies."""
    found = []
    large = [(number, start, size) for number, (start, size) in enumerate(sites) if size > SMALL_SITE]
    for number, start, size in large:
        own = np.flatnonzero((rows >= start) & (rows < start + size) & ~is_hub[rows])
        for other, begin, count in large:
            row, column = np.nonzero(seen[own, begin : begin + count] & ~is_hub[begin : begin + count])
            apart = np.unique(column - (rows[own[row]] - start))
            if len(apart) > MAX_DISTANCES:
                return None
            found.append((number, other, apart))
    return found


def _pairs(
    distances: list[tuple[int, int, Int[np.ndarray, " d"]]],
    sites: list[tuple[int, int]],
    rest: Int[np.ndarray, " r"],
    dim: int,
) -> tuple[Int[np.ndarray, " m"], Int[np.ndarray, " m"]]:
    """Return columns and rows of the entries of the guess, among dimensions whose rows are not computed themselves."""
    inside = np.zeros(dim, bool)
    inside[rest] = True
    pattern = csr_array((dim, dim), dtype=bool)
    for number, other, apart in distances:
        (start, size), (begin, count) = sites[number], sites[other]
        first = np.repeat(np.arange(size), len(apart))
        second = first + np.tile(apart, size)
        fits = (second >= 0) & (second < count)
        first, second = start + first[fits], begin + second[fits]
        fits = inside[first] & inside[second]
        entries = np.ones(fits.sum(), bool), (first[fits], second[fits])
        pattern = pattern + csr_array(entries, (dim, dim))
    diagonal = csr_array((np.ones(len(rest), bool), (rest, rest)), (dim, dim))
    return csr_array(pattern + pattern.T + diagonal).nonzero()


def _colors(columns: Int[np.ndarray, " m"], rows: Int[np.ndarray, " m"], dim: int) -> Int[np.ndarray, " p"]:
    """Number columns such that no two with the same number share a row; -1 for those of no entry."""
    color = np.full(dim, -1)
    taken: list[set[int]] = [set() for _ in range(dim)]
    order = np.argsort(columns, kind="stable")
    ends = np.flatnonzero(np.diff(columns[order], append=-1)) + 1
    for own in np.split(order, ends[:-1]):
        touched = rows[own]
        forbidden = set().union(*(taken[row] for row in touched))
        number = next(number for number in itertools.count() if number not in forbidden)
        color[columns[own[0]]] = number
        for row in touched:
            taken[row].add(number)
    return color


def _assembled(
    dim: int,
    rows: Int[np.ndarray, " n"],
    exact: Float[np.ndarray, "n p"],
    guessed_rows: Int[np.ndarray, " m"],
    columns: Int[np.ndarray, " m"],
    values: Float[np.ndarray, " m"],
) -> csr_array:
    """Put rows that are known and the entries of the guess together to a symmetric matrix."""
    known = csr_array(exact)
    own, others = known.nonzero()
    own = rows[own]
    is_known = np.zeros(dim, bool)
    is_known[rows] = True
    mirrored = ~is_known[others]
    data = np.concatenate([known.data, known.data[mirrored], values])
    first = np.concatenate([own, others[mirrored], guessed_rows])
    second = np.concatenate([others, own[mirrored], columns])
    hessian = csr_array((data, (first, second)), (dim, dim))
    hessian.eliminate_zeros()
    return hessian


def _holds(target: Target, point: Float[np.ndarray, " p"], hessian: csr_array) -> bool:
    """Tell whether products of the Hessian with random vectors are those of a sparse matrix."""
    unit = np.sqrt(np.abs(hessian.diagonal()))
    unit = 1.0 / np.maximum(unit, 1e-12 * max(unit.max(), 1e-300))
    probes = np.random.default_rng(0).normal(size=(NUM_PROBES, target.dim)) * unit
    expected = (hessian @ probes.T).T
    left = (_products(target, point[None], probes)[0] - expected) * unit
    return bool(np.all(np.abs(left) < AGREES))
