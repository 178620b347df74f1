"""The conditional part of a structured flow from conditional modes and curvatures: a sparse regression on atoms.

Precision and potential of the locals given the globals are sums of matrices and vectors times functions of the globals.
Which functions is found greedily, one atom after the other, each the one that explains most of what is left.
"""

from collections.abc import Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from bernflow.fit.conditionals import Moments
from bernflow.fit.marginal import GlobalGaussian
from bernflow.flows.atoms import EXPONENTS, MAX_FACTORS, NUM_FUNCTIONS, REACH, Atoms
from bernflow.flows.base import Fixed
from bernflow.flows.natural import Natural
from bernflow.flows.structure import Structure
from bernflow.flows.structured import Conditional

# Selection ends where so little is left, of the norm of all responses.
EXPLAINED = 1e-7
# Main directions of all responses that the selection looks at.
MAX_COMPONENTS = 48
# An atom needs so many points.
POINTS_PER_ATOM = 2
# Atoms that differ from those before them by less than this, in units of themselves, are left out.
MIN_NEW = 1e-5
RCOND = 1e-10
# Exponentials may grow by so many nats within reach; tanh and 1 / cosh are tried where a global is this near zero.
MAX_GROWTH, NEAR_ZERO = 40.0, 4.0


def regress(conditional: Conditional, gaussian: GlobalGaussian, at: Moments) -> Conditional:
    """Return the conditional flow with the natural parameters of given moments.

    Args:
        conditional: the flow without them.
        gaussian: of the globals; the locals at its mean give center and units.
        at: moments at several values of the globals.
    """
    structure = conditional.structure
    center = gaussian.x[structure.order[structure.num_leaders :]]
    unit = structure.flat(np.linalg.norm(gaussian.locals.factor[0], axis=-1))
    natural = natural_parameters(structure, at, center, unit)
    responses = _Responses.of(natural)
    globals_ = at.x[:, list(structure.leaders)]
    num = conditional.atoms.value.factors.shape[0]
    empty = Atoms(gaussian.loc, np.linalg.norm(gaussian.tril, axis=1), np.zeros((num, MAX_FACTORS), np.int32))
    factors = select(empty, globals_, responses, min(num, max(1, len(globals_) // POINTS_PER_ATOM)))
    atoms = Atoms(empty.center, empty.unit, np.concatenate([factors, np.zeros((num - len(factors), 3), np.int32)]))
    values = np.prod(_table(atoms, globals_)[:, factors], -1)
    precision, link, potential = _without_strangers(structure, _filled_up(responses.solve(values), num))
    new = {"atoms": atoms, "center": center, "unit": unit, "precision": precision, "potential": potential}
    if link is not None:
        new["link"] = link
    new = {name: Fixed(_on_device(value)) for name, value in new.items()}
    return eqx.tree_at(lambda c: [getattr(c, name) for name in new], conditional, list(new.values()))


def natural_parameters(
    structure: Structure, at: Moments, center: Float[np.ndarray, " n"], unit: Float[np.ndarray, " n"]
) -> Natural:
    """Return precisions and potentials of (l - center) / unit at all points."""
    factor, link = at.locals.factor, at.locals.chain
    inverse = np.linalg.inv(factor)
    precision = np.swapaxes(inverse, -1, -2) @ inverse
    scale = np.where(structure.is_member, structure.by_block(unit), 1.0)
    if link is not None:
        # The factors are those of a block given the blocks before it.
        half = (np.swapaxes(factor, -1, -2) @ link)[:, 1:]
        precision[:, :-1] += np.swapaxes(half, -1, -2) @ half
        before = np.concatenate([np.ones_like(scale[:1]), scale[:-1]])
        link = link * scale[..., None] * before[:, None, :]
        link[:, 0] = 0.0
    precision = precision * scale[..., None] * scale[:, None, :]
    mode = (at.mode - structure.by_block(center)) / scale * structure.is_member
    potential = (precision @ mode[..., None])[..., 0]
    if link is not None:
        potential[:, 1:] += (link[:, 1:] @ mode[:, :-1, :, None])[..., 0]
        potential[:, :-1] += (np.swapaxes(link[:, 1:], -1, -2) @ mode[:, 1:, :, None])[..., 0]
    return Natural(precision, link, potential)


class _Responses(NamedTuple):
    """Natural parameters as the rows of a matrix; potentials weigh as much in it as precisions do.

    Attributes:
        rows: one for each point.
        weights: of the points, such that all rows have the same norm.
        shapes: of precision, link and potential.
        factor: of the potentials.
    """

    rows: Float[np.ndarray, "k d"]
    weights: Float[np.ndarray, " k"]
    shapes: list[tuple[int, ...] | None]
    factor: float

    @classmethod
    def of(cls, natural: Natural) -> "_Responses":
        num = len(natural.precision)
        norms = [
            float(np.median(np.linalg.norm(np.reshape(part, (num, -1)), axis=1)))
            for part in (natural.precision, natural.potential)
        ]
        factor = norms[0] / norms[1] if norms[1] > 0.0 else 1.0
        parts = natural.precision, natural.link, factor * natural.potential
        rows = np.concatenate([np.reshape(part, (num, -1)) for part in parts if part is not None], 1)
        shapes = [None if part is None else part.shape[1:] for part in natural]
        return cls(rows, 1.0 / np.linalg.norm(rows, axis=1), shapes, factor)

    def main_directions(self) -> Float[np.ndarray, "k m"]:
        """Return scores of the weighted rows along the directions in which they are largest."""
        weighted = self.rows * self.weights[:, None]
        squares, left = np.linalg.eigh(weighted @ weighted.T)
        sizes = np.sqrt(np.maximum(squares[::-1], 0.0))
        num = min(MAX_COMPONENTS, int(np.sum(sizes > 1e-9 * sizes[0])))
        return left[:, ::-1][:, :num] * sizes[:num]

    def solve(self, values: Float[np.ndarray, "k a"]) -> Natural:
        """Return coefficients of precision, link and potential for given atoms."""
        design = values * self.weights[:, None]
        norms = np.linalg.norm(design, axis=0)
        solved = np.linalg.lstsq(design / norms, self.rows * self.weights[:, None], rcond=RCOND)[0] / norms[:, None]
        sizes = [0 if shape is None else int(np.prod(shape)) for shape in self.shapes]
        parts = np.split(solved, np.cumsum(sizes)[:-1], 1)
        parts[2] = parts[2] / self.factor
        shaped = zip(parts, self.shapes, strict=True)
        return Natural(*(None if shape is None else part.reshape(-1, *shape) for part, shape in shaped))  # type: ignore[arg-type]


def select(
    atoms: Atoms, globals_: Float[np.ndarray, "k c"], responses: _Responses, most: int
) -> Int[np.ndarray, "a 3"]:
    """Choose the factors of atoms by orthogonal matching pursuit; the constant is the first.

    Products with functions of another global become candidates when what they are products of is chosen.
    """
    table = _table(atoms, globals_)
    simple = _simple(atoms)
    weights = responses.weights
    left = responses.main_directions()
    enough = EXPLAINED**2 * np.sum(left**2)
    chosen: list[tuple[int, ...]] = []
    candidates: dict[tuple[int, ...], np.ndarray] = {(): np.ones(len(globals_))}
    basis = np.zeros((len(globals_), 0))
    while len(chosen) < most and candidates and np.sum(left**2) > enough:
        names = list(candidates)
        columns = np.stack(list(candidates.values()), 1) * weights[:, None]
        columns /= np.maximum(np.linalg.norm(columns, axis=0), 1e-300)
        columns -= basis @ (basis.T @ columns)
        norms = np.linalg.norm(columns, axis=0)
        gains = np.where(norms > MIN_NEW, np.sum((columns.T @ left) ** 2, 1) / np.maximum(norms, MIN_NEW) ** 2, 0.0)
        best = int(np.argmax(gains))
        if gains[best] <= 0.0:
            break
        atom, column = names[best], columns[:, best] / norms[best]
        column -= basis @ (basis.T @ column)
        column /= np.linalg.norm(column)
        basis = np.concatenate([basis, column[:, None]], 1)
        left = left - column[:, None] * (column @ left)
        values = candidates.pop(atom)
        chosen.append(atom)
        for product, function in _products(atom, simple):
            if product not in chosen and product not in candidates:
                candidates[product] = values * table[:, function]
    return np.array([[*atom, *(0,) * (MAX_FACTORS - len(atom))] for atom in chosen], np.int32)


def _products(atom: tuple[int, ...], simple: list[int]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Return products of an atom with functions of other globals than its own, and those functions."""
    if len(atom) < MAX_FACTORS:
        own = {(factor - 1) // NUM_FUNCTIONS for factor in atom}
        for function in simple:
            if (function - 1) // NUM_FUNCTIONS not in own:
                yield tuple(sorted((*atom, function))), function


def _simple(atoms: Atoms) -> list[int]:
    """Return the functions of the table that are worth a try."""
    usable = []
    for number, (center, unit) in enumerate(zip(atoms.center, atoms.unit, strict=True)):
        first = 1 + number * NUM_FUNCTIONS
        usable += [first + i for i, a in enumerate(EXPONENTS) if abs(a) * REACH * unit < MAX_GROWTH]
        usable += [first + len(EXPONENTS), first + len(EXPONENTS) + 1]
        if abs(center) < NEAR_ZERO:
            usable += [first + len(EXPONENTS) + 2, first + len(EXPONENTS) + 3]
    return usable


def _table(atoms: Atoms, globals_: Float[np.ndarray, "k c"]) -> Float[np.ndarray, "k t"]:
    return np.asarray(atoms.table(globals_, np))


def _filled_up(natural: Natural, num: int) -> Natural:
    """Return coefficients for more atoms, which are zero."""
    return jax.tree.map(lambda part: np.concatenate([part, np.zeros((num - len(part), *part.shape[1:]))]), natural)


def _without_strangers(structure: Structure, natural: Natural) -> Natural:
    """Return exact ones and zeros where blocks are filled up."""
    inside = structure.is_member
    both = inside[:, :, None] & inside[:, None, :]
    constant = np.zeros(len(natural.precision))
    constant[0] = 1.0
    unit = constant[:, None, None, None] * np.eye(structure.size)
    return natural._replace(
        precision=np.where(both, natural.precision, unit), potential=np.where(inside, natural.potential, 0.0)
    )


def _on_device(value):
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value
