"""All cases by name, those of different families in turn, so that a part of a run is a sample of all."""

import itertools

from benchmarks.adversarial import mixtures, models, shapes
from benchmarks.adversarial.case import Case

_FAMILIES = (
    mixtures.missed() + mixtures.concentric(140),
    models.modes_of_likelihoods(100),
    mixtures.known_modes() + mixtures.far_modes(15),
    shapes.wrong_signs(),
    models.conflicts(8, num_weak=32),
    mixtures.single(4),
    mixtures.slabs(4),
    mixtures.wide(8),
    models.change_points(4),
    shapes.improper(),
    models.label_switching(4),
    models.clusters(4),
    mixtures.spikes(6),
    shapes.heavy(4),
    shapes.corners(4),
    shapes.funnels(4),
    models.horseshoes(4),
)

CASES: dict[str, Case] = {
    case.name: case for round_ in itertools.zip_longest(*_FAMILIES) for case in round_ if case is not None
}
FAMILIES: tuple[str, ...] = tuple(dict.fromkeys(case.family for case in CASES.values()))
# Of these the aim is that none is wrong and called good.
NAMED: tuple[str, ...] = ("concentric", models.CONFLICT, models.PRIOR_MODE)
