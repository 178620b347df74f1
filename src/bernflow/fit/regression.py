"""The conditional part of a structured flow from conditional modes and curvatures: a sparse regression on atoms.

Precision and potential of the locals given the globals are sums of matrices and vectors times functions of the globals.
Which functions is found greedily, one atom after the other, each the one that explains most of what is left.
"""

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np
import scipy.linalg
from jaxtyping import Bool, Float, Int

from bernflow.fit.conditionals import Moments
from bernflow.fit.marginal import GlobalGaussian
from bernflow.fit.pursuit import pursue
from bernflow.flows.atoms import MAX_FACTORS, Atoms
from bernflow.flows.base import Fixed
from bernflow.flows.natural import Natural
from bernflow.flows.structure import Structure
from bernflow.flows.structured import Conditional
from bernflow.flows.views import evaluate
from bernflow.placement import placed

# Main directions of all responses that the selection looks at.
MAX_COMPONENTS = 48
# An atom needs so many points.
POINTS_PER_ATOM = 2
RCOND = 1e-10
# Every so many points, one has no part in the choice of atoms, and tells how many of them to take.
HELD_EVERY = 5
# Logarithms of divisors that differ by no more than this, at any point, are alike; and the most kinds of them.
ALIKE, MAX_KINDS = 0.7, 12
# Of the smallest pivot at any point, the least that the flow has between them.
LEAST_PIVOT = 0.1


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
    responses = Responses.of(natural)
    globals_ = at.x[:, list(structure.leaders)]
    num = conditional.atoms.value.factors.shape[0]
    atoms = _around(gaussian, globals_, conditional.atoms.value)
    factors = select(atoms, globals_, responses, num)
    padded = np.concatenate([factors, np.zeros((num - len(factors), MAX_FACTORS), np.int32)])
    atoms = dataclasses.replace(atoms, factors=padded)
    values = np.prod(_table(atoms, globals_)[:, factors], -1)
    precision, link, potential = _without_strangers(structure, _filled_up(responses.solve(values), num))
    least = LEAST_PIVOT * np.where(structure.is_member, np.min(pivots(structure, at, unit), 0), 1.0)
    new = {"atoms": atoms, "center": center, "unit": unit, "precision": precision, "potential": potential}
    new["least"] = least
    if link is not None:
        new["link"] = link
    new = {name: Fixed(placed(value)) for name, value in new.items()}
    return eqx.tree_at(lambda c: [getattr(c, name) for name in new], conditional, list(new.values()))


def _around(gaussian: GlobalGaussian, globals_: Float[np.ndarray, "k c"], atoms: Atoms) -> Atoms:
    """Return atoms whose views are centered and scaled for a Gaussian, and reach as far as given globals."""
    center, values = (evaluate(atoms.views, g, np) for g in (gaussian.loc, globals_))
    # That of a global itself is its standard deviation.
    spread = np.linalg.norm(gaussian.tril, axis=1)
    unit = np.array([spread[view.members[0]] if view.kind == "identity" else 0.0 for view in atoms.views])
    unit = np.where(unit > 0.0, unit, np.maximum(np.std(values, 0), 1e-6))
    moved = (values - center) / unit
    return Atoms(center, unit, np.stack([moved.min(0), moved.max(0)]), np.asarray(atoms.factors), atoms.views)


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


def pivots(structure: Structure, at: Moments, unit: Float[np.ndarray, " n"]) -> Float[np.ndarray, "k b s"]:
    """Return the squared diagonals of the factors of precisions at all points, as blocks are eliminated in the flow."""
    inverse = np.linalg.inv(at.locals.factor)
    scale = np.where(structure.is_member, structure.by_block(unit), 1.0)
    lower = np.linalg.cholesky(np.swapaxes(inverse, -1, -2) @ inverse)
    return (np.diagonal(lower, axis1=-2, axis2=-1) * scale) ** 2


class Responses(NamedTuple):
    """Natural parameters as the rows of a matrix, and how much every entry weighs at every point.

    What counts is the error of a precision in units of itself: in one posterior a scale near zero makes some entries
    thousands of times as large as others. An entry is therefore divided by the roots of the two diagonal entries that
    belong to it; columns with much the same divisors form a group.

    Attributes:
        rows: one for each point.
        group: of every column.
        weights: of every group at every point.
        shapes: of precision, link and potential.
    """

    rows: Float[np.ndarray, "k d"]
    group: Int[np.ndarray, " d"]
    weights: Float[np.ndarray, "g k"]
    shapes: list[tuple[int, ...] | None]

    @classmethod
    def of(cls, natural: Natural) -> "Responses":
        """Lay out natural parameters at several points."""
        num = len(natural.precision)
        roots = 0.5 * np.log(np.maximum(np.diagonal(natural.precision, axis1=-2, axis2=-1), 1e-30))
        kind, kinds = _cluster(roots.reshape(num, -1).T)
        kind = kind.reshape(roots.shape[1:])
        base = len(kinds) + 1
        before = np.concatenate([np.zeros_like(kind[:1]), kind[:-1]])
        pairs = {
            "precision": kind[:, :, None] * base + kind[:, None, :],
            "link": kind[:, :, None] * base + before[:, None, :],
            "potential": kind * base + len(kinds),  # the last one weighs nothing
        }
        parts = {name: part for name, part in natural._asdict().items() if part is not None}
        pair, group = np.unique(np.concatenate([pairs[name].ravel() for name in parts]), return_inverse=True)
        logs = np.concatenate([kinds, np.zeros((1, num))])
        weights = np.exp(-logs[pair // base] - logs[pair % base])
        rows = np.concatenate([np.reshape(part, (num, -1)) for part in parts.values()], 1)
        return cls(rows, group, weights, [None if part is None else part.shape[1:] for part in natural])

    def groups(self) -> Iterator[tuple[Int[np.ndarray, " m"], Float[np.ndarray, " k"]]]:
        """Return the columns and the weights of every group."""
        order = np.argsort(self.group, kind="stable")
        ends = np.cumsum(np.bincount(self.group, minlength=len(self.weights)))
        return zip(np.split(order, ends[:-1]), self.weights, strict=True)

    def main_directions(self) -> Float[np.ndarray, "k m"]:
        """Return scores of rows of norm one along the directions in which they are largest."""
        weighted = self.rows / np.linalg.norm(self.rows, axis=1, keepdims=True)
        squares, left = np.linalg.eigh(weighted @ weighted.T)
        sizes = np.sqrt(np.maximum(squares[::-1], 0.0))
        num = min(MAX_COMPONENTS, int(np.sum(sizes > 1e-9 * sizes[0])))
        return left[:, ::-1][:, :num] * sizes[:num]

    def solve(self, values: Float[np.ndarray, "k a"]) -> Natural:
        """Return coefficients of precision, link and potential for given atoms."""
        solved = np.empty((values.shape[1], self.rows.shape[1]))
        for columns, weights in self.groups():
            design = values * weights[:, None]
            norms = np.linalg.norm(design, axis=0)
            right = self.rows[:, columns] * weights[:, None]
            solved[:, columns] = np.linalg.lstsq(design / norms, right, rcond=RCOND)[0] / norms[:, None]
        sizes = [0 if shape is None else int(np.prod(shape)) for shape in self.shapes]
        shaped = zip(np.split(solved, np.cumsum(sizes)[:-1], 1), self.shapes, strict=True)
        parts = [None if shape is None else part.reshape(-1, *shape) for part, shape in shaped]
        return Natural(*parts)  # type: ignore[arg-type]

    def held_errors(self, values: Float[np.ndarray, "k a"], held: Bool[np.ndarray, " k"]) -> Float[np.ndarray, " a"]:
        """Return the errors at points that are held out, by the number of atoms that are taken."""
        squares = np.zeros((values.shape[1], int(held.sum())))
        for columns, weights in self.groups():
            design, right = values * weights[:, None], self.rows[:, columns] * weights[:, None]
            basis, triangle = np.linalg.qr(design[~held])
            np.fill_diagonal(triangle, np.where(np.diag(triangle) == 0.0, 1e-300, np.diag(triangle)))
            # Of both, k atoms need the first k columns: one pass shows the errors of all numbers of them.
            seen = scipy.linalg.solve_triangular(triangle, design[held].T, trans=1).T
            along, left = basis.T @ right[~held], right[held]
            for i in range(len(squares)):
                left = left - seen[:, i, None] * along[i]
                squares[i] += np.sum(left**2, 1)
        return np.sum(np.sqrt(squares), 1)


def _cluster(logs: Float[np.ndarray, "n k"]) -> tuple[Int[np.ndarray, " n"], Float[np.ndarray, "c k"]]:
    """Return labels of vectors, and one vector for each label from which none of its own is far."""
    label, nearest = np.zeros(len(logs), int), np.full(len(logs), np.inf)
    chosen: list[int] = []
    while len(chosen) < MAX_KINDS and nearest.max() > ALIKE:
        chosen.append(int(np.argmax(nearest)))
        distance = np.max(np.abs(logs - logs[chosen[-1]]), 1)
        label = np.where(distance < nearest, len(chosen) - 1, label)
        nearest = np.minimum(nearest, distance)
    return label, logs[chosen]


def select(atoms: Atoms, globals_: Float[np.ndarray, "k c"], responses: Responses, most: int) -> Int[np.ndarray, "a 3"]:
    """Choose the factors of atoms: greedily, and as many as predict points best that had no part in the choice."""
    held = np.arange(len(globals_)) % HELD_EVERY == HELD_EVERY - 1
    scores, weights = responses.main_directions()[~held], 1.0 / np.linalg.norm(responses.rows[~held], axis=1)
    path = pursue(atoms, globals_[~held], scores, weights, min(most, int(np.sum(~held)) // POINTS_PER_ATOM))
    if not held.any():
        return path
    errors = responses.held_errors(np.prod(_table(atoms, globals_)[:, path], -1), held)
    return path[: 1 + int(np.nanargmin(errors))]


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
