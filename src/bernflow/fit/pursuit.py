"""Choose atoms: orthogonal matching pursuit over products of functions of the globals."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from bernflow.flows.atoms import EXPONENTS, MAX_FACTORS, NUM_FUNCTIONS, TANH, Atoms
from bernflow.flows.views import LINEAR

# Selection ends where so little is left, of the norm of all responses.
EXPLAINED = 1e-7
# Atoms that differ from those before them by less than this, in units of themselves, are left out.
MIN_NEW = 1e-5
# Products are tried with functions of the views that explain most alone; and the most candidates that are kept.
MAX_PARTNERS, MAX_CANDIDATES = 16, 4096
# Exponentials may grow by so many nats within reach; tanh and 1 / cosh are tried where a view is this near zero.
MAX_GROWTH, NEAR_ZERO = 40.0, 4.0


def pursue(
    atoms: Atoms,
    globals_: Float[np.ndarray, "k c"],
    left: Float[np.ndarray, "k m"],
    weights: Float[np.ndarray, " k"],
    most: int,
) -> Int[np.ndarray, "a 3"]:
    """Return the factors of atoms by orthogonal matching pursuit; the constant is the first.

    Products with functions of another view become candidates when what they are products of is chosen.

    Args:
        atoms: whose factors are ignored.
        globals_: values of the globals.
        left: what is to be explained, at these values.
        weights: of the values.
        most: number of atoms.
    """
    table = np.asarray(atoms.table(globals_, np)).T
    functions = _simple(atoms)
    enough = EXPLAINED**2 * np.sum(left**2)
    pool = _Pool(left, weights)
    seen: set[tuple[int, ...]] = {()}
    pool.add([()], np.ones((1, len(left))))
    chosen: list[tuple[int, ...]] = []
    while len(chosen) < max(1, most) and np.sum(pool.left**2) > enough:
        atom = pool.take()
        if atom is None:
            break
        chosen.append(atom)
        new = {product: function for product, function in _products(atom, functions) if product not in seen}
        pool.add(list(new), np.prod(table[list(atom)], 0) * table[list(new.values())])
        seen |= new.keys()
        if len(chosen) == 1:  # the constant: all functions are candidates now
            functions = _partners(functions, pool.gains())
    return np.array([[*atom, *(0,) * (MAX_FACTORS - len(atom))] for atom in chosen], np.int32)


class _Pool:
    """Candidates, and how much each would explain beyond what is chosen.

    What a new atom takes away is subtracted from all of them, which is one product with the candidates as they came.

    Attributes:
        names: factors of the candidates.
        left: what is left to explain.
    """

    def __init__(self, left: Float[np.ndarray, "k m"], weights: Float[np.ndarray, " k"]):
        self.names: list[tuple[int, ...]] = []
        self.left = left
        self._weights = weights
        self._columns = np.zeros((0, len(left)))
        self._along = np.zeros((0, left.shape[1]))
        self._squares = np.zeros(0)
        self._basis = np.zeros((0, len(left)))

    def gains(self) -> Float[np.ndarray, " n"]:
        """Return how much of the squares of what is left every candidate explains."""
        explained = np.sum(self._along**2, 1) / np.maximum(self._squares, MIN_NEW**2)
        return np.where(self._squares > MIN_NEW**2, explained, 0.0)

    def add(self, names: list[tuple[int, ...]], values: Float[np.ndarray, "n k"]) -> None:
        """Add candidates; of too many, the products that explain least are dropped."""
        columns = values * self._weights
        columns = columns / np.maximum(np.linalg.norm(columns, axis=1, keepdims=True), 1e-300)
        squares = 1.0 - np.sum((columns @ self._basis.T) ** 2, 1)
        self.names += names
        self._columns = np.concatenate([self._columns, columns])
        self._along = np.concatenate([self._along, columns @ self.left])
        self._squares = np.concatenate([self._squares, squares])
        if len(self.names) > MAX_CANDIDATES:
            # A function of one view may be needed however little it explains while others explain more.
            worth = np.where([len(name) < 2 for name in self.names], np.inf, self.gains())
            self._keep(np.sort(np.argsort(-worth, kind="stable")[:MAX_CANDIDATES]))

    def take(self) -> tuple[int, ...] | None:
        """Choose the best candidate; None where none explains anything."""
        while self.names:
            gains = self.gains()
            best = int(np.argmax(gains))
            if gains[best] <= 0.0:
                return None
            name, column = self.names[best], self._columns[best]
            self._keep(np.arange(len(gains)) != best)
            for _ in range(2):  # the second time for what rounding has left
                column = column - (column @ self._basis.T) @ self._basis
            norm = np.linalg.norm(column)
            if norm > MIN_NEW:
                self._explain(column / norm)
                return name
        return None

    def _explain(self, column: Float[np.ndarray, " k"]) -> None:
        own, explained = self._columns @ column, column @ self.left
        self._along -= own[:, None] * explained
        self._squares -= own**2
        self.left = self.left - column[:, None] * explained
        self._basis = np.concatenate([self._basis, column[None]])

    def _keep(self, which: np.ndarray) -> None:
        self.names = [self.names[i] for i in np.arange(len(self.names))[which]]
        self._columns, self._along, self._squares = self._columns[which], self._along[which], self._squares[which]


def _products(atom: tuple[int, ...], functions: list[int]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Return products of an atom with functions of other views than its own or a second tanh, and those functions."""
    if len(atom) < MAX_FACTORS:
        own = {(factor - 1) // NUM_FUNCTIONS for factor in atom}
        for function in functions:
            view, place = divmod(function - 1, NUM_FUNCTIONS)
            if view not in own or (place == TANH and function in atom):
                yield tuple(sorted((*atom, function))), function


def _partners(functions: list[int], gains: Float[np.ndarray, " n"]) -> list[int]:
    """Return the functions of the views of which some function explains most by itself."""
    best: dict[int, float] = {}
    for function, gain in zip(functions, gains, strict=True):
        view = (function - 1) // NUM_FUNCTIONS
        best[view] = max(best.get(view, 0.0), float(gain))
    leading = sorted(best, key=lambda view: -best[view])[:MAX_PARTNERS]
    return [function for function in functions if (function - 1) // NUM_FUNCTIONS in leading]


def _simple(atoms: Atoms) -> list[int]:
    """Return the functions of the table that are worth a try."""
    usable = []
    spans = np.max(np.abs(atoms.reach), 0) * atoms.unit
    for number, (view, center, span) in enumerate(zip(atoms.views, atoms.center, spans, strict=True)):
        first = 1 + number * NUM_FUNCTIONS
        usable += [first + i for i, a in enumerate(EXPONENTS) if abs(a) * span < MAX_GROWTH]
        usable += [first + len(EXPONENTS), first + len(EXPONENTS) + 1]
        if view.kind in LINEAR and abs(center) < NEAR_ZERO:
            usable += [first + TANH, first + TANH + 1]
    return usable
