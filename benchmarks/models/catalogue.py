"""The models of the suite: eleven posteriors with real data, and eleven with simulated data.

Example:
    >>> from benchmarks.models.catalogue import catalogue
    >>> catalogue()["volatility-1000"].dim
    1003
"""

from collections.abc import Callable
from functools import partial
from os import PathLike
from typing import Any

from benchmarks.models import collapsed, fields, grouped, real, sparse
from benchmarks.models.data import find_folder, load_data
from benchmarks.models.entry import GROUPS, REAL, SIMULATED, Entry, Sampling
from bernflow import ArgumentError

# Name, data set, p, model, how the reference is sampled.
_REAL: tuple[tuple[str, str, int, Callable[..., None], Sampling], ...] = (
    ("radon-centered", "radon_mn", 88, real.radon_centered, Sampling()),
    ("radon-noncentered", "radon_mn", 88, real.radon_noncentered, Sampling()),
    ("radon-slopes-noncentered", "radon_mn", 175, real.radon_slopes_noncentered, Sampling()),
    ("poisson-years", "GLMM_Poisson_data", 45, real.poisson_years, Sampling(noncentered=("eps",), dense=True)),
    ("rats", "rats_data", 65, real.rats, Sampling()),
    ("irt-2pl", "irt_2pl", 144, real.irt_2pl, Sampling()),
    (
        "seeds-centered",
        "seeds_data",
        26,
        real.seeds_centered,
        Sampling(noncentered=("c",), target_accept=0.98, dense=True),
    ),
    (
        "uk-drivers",
        "uk_drivers",
        389,
        real.uk_drivers,
        Sampling(model=collapsed.uk_drivers_scales, collapsed=collapsed.uk_drivers_given_scales, dense=True),
    ),
    (
        "election-88",
        "election88",
        90,
        real.election_88,
        Sampling(noncentered=("a", "b", "c", "d", "e"), target_accept=0.95, dense=True),
    ),
    (
        "mcycle-splines",
        "mcycle_splines",
        82,
        real.mcycle_splines,
        Sampling(
            model=collapsed.mcycle_splines_marginal,
            collapsed=collapsed.mcycle_splines_given,
            target_accept=0.95,
            dense=True,
        ),
    ),
    ("prophet", "rstan_downloads", 62, real.prophet, Sampling(dense=True)),
)

_SIMULATED = (
    Entry("slopes-lkj", SIMULATED, 176, grouped.slopes_lkj, partial(grouped.slopes_lkj_data, 85, 919, 11)),
    Entry("slopes-lkj-1000", SIMULATED, 2006, grouped.slopes_lkj, partial(grouped.slopes_lkj_data, 1_000, 10_000, 12)),
    Entry("slopes-centered", SIMULATED, 175, grouped.slopes_centered, partial(grouped.slopes_lkj_data, 85, 919, 11)),
    Entry("poisson-lkj", SIMULATED, 125, grouped.poisson_lkj, grouped.poisson_lkj_data),
    Entry("irt-400", SIMULATED, 461, grouped.item_response, grouped.item_response_data),
    Entry("crossed-200", SIMULATED, 404, grouped.crossed, grouped.crossed_data),
    Entry(
        "volatility-1000",
        SIMULATED,
        1003,
        fields.volatility,
        fields.volatility_data,
        Sampling(model=fields.volatility_noncentered),
    ),
    Entry("bym-400", SIMULATED, 804, fields.bym, fields.bym_data, Sampling(model=fields.bym_spectral)),
    Entry("gp-200", SIMULATED, 203, fields.gaussian_process, fields.gaussian_process_data),
    Entry(
        "horseshoe-40",
        SIMULATED,
        83,
        sparse.horseshoe,
        partial(sparse.horseshoe_data, 40, 100, 19),
        Sampling(target_accept=0.99),
    ),
    Entry(
        "horseshoe-400",
        SIMULATED,
        803,
        sparse.horseshoe,
        partial(sparse.horseshoe_data, 400, 300, 20),
        Sampling(target_accept=0.98),
    ),
)


def catalogue(folder: str | PathLike | None = None) -> dict[str, Entry]:
    """Return every model by its name.

    Args:
        folder: the folder with the real data; nothing is read from it before the data of a model are needed.
    """
    entries = [
        Entry(name, REAL, dim, model, partial(_load, data, folder), sampling)
        for name, data, dim, model, sampling in _REAL
    ]
    return {entry.name: entry for entry in (*entries, *_SIMULATED)}


def choose(entries: dict[str, Entry], names: list[str] | None) -> dict[str, Entry]:
    """Return the models of these names or groups, in the order of the catalogue; None: all of them."""
    if names is None:
        return entries
    unknown = [name for name in names if name not in entries and name not in GROUPS]
    if unknown:
        raise ArgumentError(
            f"There is no model {', '.join(unknown)}: expected a group ({', '.join(GROUPS)}) or some of "
            f"{', '.join(entries)}."
        )
    return {name: entry for name, entry in entries.items() if name in names or entry.group in names}


def without_missing(entries: dict[str, Entry], folder: str | PathLike | None) -> tuple[dict[str, Entry], str | None]:
    """Leave out the models whose data are not there, and return a sentence that says so."""
    if all(entry.group != REAL for entry in entries.values()):
        return entries, None
    try:
        find_folder(folder)
    except ArgumentError as error:
        kept = {name: entry for name, entry in entries.items() if entry.group != REAL}
        return kept, f"The {len(entries) - len(kept)} models with real data are skipped. {error}"
    return entries, None


def _load(data: str, folder: str | PathLike | None) -> tuple[dict[str, Any]]:
    values = load_data(data, folder)
    return (real.uk_drivers_data(values) if data == "uk_drivers" else values,)
