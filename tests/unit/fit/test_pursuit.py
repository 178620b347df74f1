"""Atoms are found by what they explain, however many globals and candidates there are."""

import numpy as np

from bernflow.fit import pursuit
from bernflow.fit.pursuit import pursue
from bernflow.flows.atoms import MAX_FACTORS, NUM_FUNCTIONS, TANH, Atoms
from bernflow.flows.views import View, evaluate, plain_views


def atoms_at(globals_, views):
    values = evaluate(views, globals_, np)
    center, unit = values.mean(0), values.std(0)
    moved = (values - center) / unit
    return Atoms(center, unit, np.stack([moved.min(0), moved.max(0)]), np.zeros((1, MAX_FACTORS), np.int32), views)


def left_after(atoms, globals_, response, chosen):
    values = np.prod(np.asarray(atoms.table(globals_, np))[:, chosen], -1)
    return np.linalg.norm(response - values @ np.linalg.lstsq(values, response, rcond=None)[0])


def found_in(globals_, views, response, most):
    atoms = atoms_at(globals_, views)
    chosen = pursue(atoms, globals_, response, np.ones(len(globals_)), most)
    return left_after(atoms, globals_, response, chosen) / np.linalg.norm(response)


def test_precisions_of_a_scale_on_an_interval_are_found():
    """As in a model whose scale is uniform on (0, 5): 1 / sigma^2 is no exponential of its unconstrained value."""
    globals_ = np.random.default_rng(0).normal(size=(150, 2))
    sigma = 5.0 / (1.0 + np.exp(-globals_[:, 0]))
    response = np.stack([1.0 + sigma**-2.0, globals_[:, 1] * sigma**-2.0], -1)
    views = (View("log-interval", (0,), 0.0, 5.0), View("half", (0,)), View("identity", (1,)))
    assert found_in(globals_, views, response, 4) < 1e-6
    assert found_in(globals_, plain_views(2), response, 4) > 1e-3


def test_precisions_of_an_autoregression_are_found():
    globals_ = np.random.default_rng(0).normal(size=(150, 2)) * (1.0, 0.5)
    phi, precision = np.tanh(0.5 * globals_[:, 0]), np.exp(-2.0 * globals_[:, 1])
    response = np.stack([(1.0 + phi**2) * precision, -phi * precision], -1)
    assert found_in(globals_, (View("half", (0,)), View("identity", (1,))), response, 6) < 1e-6


def test_a_second_tanh_of_the_same_view_is_a_product_and_no_other_function_is():
    tanh = 1 + TANH
    assert dict(pursuit._products((tanh,), list(range(1, 1 + NUM_FUNCTIONS)))) == {(tanh, tanh): tanh}


def test_many_globals_are_searched_with_few_candidates(monkeypatch):
    monkeypatch.setattr(pursuit, "MAX_CANDIDATES", 400)
    rng = np.random.default_rng(0)
    globals_ = 0.3 * rng.normal(size=(400, 40))
    slopes = rng.normal(size=(40, 3)) * np.where(np.arange(40) < 2, 3.0, 1.0)[:, None]
    response = 1.0 + globals_ @ slopes + (globals_[:, :1] * globals_[:, 1:2])
    assert found_in(globals_, plain_views(40), response, 70) < 1e-2
