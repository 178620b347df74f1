"""Factors and maps without a matrix must do what the matrix would do."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bernflow.errors import ArgumentError
from bernflow.flows import FAMILIES, factors
from bernflow.flows.affine import DiagonalAffine, LowRankAffine, TriangularAffine
from bernflow.flows.factors import DenseFactor, LowRankFactor, as_factor, unit_factor
from bernflow.flows.families import Spec
from bernflow.flows.wide import WideBernsteinFlow

DIM, LEADING, NUM_DIRECTIONS = 9, 3, 2


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def low_rank():
    rng = np.random.default_rng(0)
    num = DIM - LEADING
    leading = np.tril(0.3 * rng.normal(size=(LEADING, LEADING)), -1) + np.diag(0.5 + rng.uniform(size=LEADING))
    basis, _ = np.linalg.qr(rng.normal(size=(num, NUM_DIRECTIONS)))
    scale = 0.5 + rng.uniform(size=num)
    return LowRankFactor(leading, rng.normal(size=(num, LEADING)), scale, basis, np.array([-0.6, 3.0]))


def as_matrix(factor):
    return np.stack([factor.color(row) for row in np.eye(DIM)], 1)


def test_a_factor_is_its_matrix(low_rank):
    matrix, rng = as_matrix(low_rank), np.random.default_rng(1)
    x = rng.normal(size=(4, DIM))
    np.testing.assert_allclose(low_rank.color(x), x @ matrix.T, rtol=1e-12)
    np.testing.assert_allclose(low_rank.transposed(x[0]), matrix.T @ x[0], rtol=1e-12)
    np.testing.assert_allclose(low_rank.whiten(x), np.linalg.solve(matrix, x.T).T, rtol=1e-10)
    np.testing.assert_allclose(low_rank.log_det(), np.linalg.slogdet(matrix)[1], rtol=1e-12)
    np.testing.assert_allclose(low_rank.reach(np.full(DIM, 2.0)), np.diagonal(matrix) / 2.0, rtol=1e-12)


def test_both_kinds_of_factors_agree(low_rank):
    covariance = as_matrix(low_rank) @ as_matrix(low_rank).T
    tril = np.asarray(low_rank.matrix())
    np.testing.assert_array_equal(tril, np.tril(tril))
    np.testing.assert_allclose(tril @ tril.T, covariance, rtol=1e-10, atol=1e-12)
    dense = as_factor(tril)
    assert isinstance(dense, DenseFactor)
    assert as_factor(low_rank) is low_rank
    exact = 1.0 / np.sqrt(np.diagonal(np.linalg.inv(covariance)))
    np.testing.assert_allclose(low_rank.conditional_scales(), exact, rtol=1e-10)
    np.testing.assert_allclose(dense.conditional_scales(), exact, rtol=1e-10)
    x = np.random.default_rng(1).normal(size=(4, DIM))
    np.testing.assert_allclose(np.sum(dense.whiten(x) ** 2, 1), np.sum(low_rank.whiten(x) ** 2, 1), rtol=1e-9)
    assert dense.log_det() == pytest.approx(low_rank.log_det(), rel=1e-12)


def trained(outer):
    rng = np.random.default_rng(2)
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: leaf if "start_" in jax.tree_util.keystr(path) else leaf + 0.3 * rng.normal(size=leaf.shape),
        outer,
    )


@pytest.mark.parametrize("kind", ["triangular", "diagonal", "low-rank"])
def test_an_outer_map_is_its_jacobian(kind, low_rank):
    rng = np.random.default_rng(3)
    loc, y = jnp.asarray(rng.normal(size=DIM)), jnp.asarray(rng.normal(size=DIM))
    low_rank = jax.tree.map(jnp.asarray, low_rank)
    outer = {
        "triangular": lambda: TriangularAffine(loc, low_rank.matrix()),
        "diagonal": lambda: DiagonalAffine(loc, low_rank.conditional_scales()),
        "low-rank": lambda: LowRankAffine(loc, low_rank),
    }[kind]()
    outer = trained(outer)
    jacobian = np.asarray(jax.jacobian(lambda y: outer.transform_and_log_det(y)[0])(y))
    x, log_det = outer.transform_and_log_det(y)
    np.testing.assert_allclose(outer.matrix(), jacobian, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(jacobian)[1], rtol=1e-10)
    np.testing.assert_allclose(outer.inverse(x), y, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(outer.pull_back(y), np.linalg.solve(jacobian.T, y), rtol=1e-9)
    np.testing.assert_allclose(outer.row_norms(), np.linalg.norm(jacobian, axis=1), rtol=1e-10)
    assert outer.recipe()["outer"] == kind


def test_a_matrix_only_where_it_is_affordable(monkeypatch):
    monkeypatch.setattr(factors, "MAX_DIM_DENSE", 100)
    assert unit_factor(100).shape == (100, 100)
    unit = unit_factor(101)
    assert max(leaf.size for leaf in unit) <= 101 * factors.BORDER
    z = np.random.default_rng(0).normal(size=(2, 101))
    np.testing.assert_array_equal(unit.color(z), z)


@pytest.mark.parametrize("name", ["bernstein", "bernstein-meanfield", "gaussian", "gaussian-fullrank", "student-t"])
def test_families_start_from_a_factor_without_a_matrix(name, monkeypatch):
    monkeypatch.setattr(factors, "MAX_DIM_DENSE", 100)
    rng = np.random.default_rng(4)
    unit = unit_factor(120, jnp)
    coupling = jnp.asarray(0.1 * rng.normal(size=unit.coupling.shape))
    factor = unit._replace(coupling=coupling, scale=jnp.asarray(0.5 + rng.uniform(size=unit.scale.shape)))
    loc = jnp.asarray(rng.normal(size=120))
    flow = FAMILIES[name].build(jax.random.key(0), Spec(120, 8, "normal", 6), loc, factor)
    z = jnp.asarray(rng.normal(size=120))
    # Compiled as a whole: faster than operation by operation.
    x, log_det = eqx.filter_jit(flow.transform_and_log_det)(z)
    if name == "bernstein":
        assert isinstance(flow, WideBernsteinFlow)
        np.testing.assert_allclose(x, loc + factor.color(z), atol=1e-5)
    np.testing.assert_allclose(eqx.filter_jit(flow.inverse_and_log_det)(x)[0], z, atol=1e-6)
    if name != "student-t":
        jacobian = np.asarray(jax.jit(jax.jacobian(lambda z: flow.transform_and_log_det(z)[0]))(z))
        np.testing.assert_allclose(log_det, np.linalg.slogdet(jacobian)[1], rtol=1e-9, atol=1e-9)
    score = jax.grad(lambda x: flow.log_prob(x[None])[0])(x) if name.startswith("gaussian") else None
    if score is not None:
        np.testing.assert_allclose(flow.score(z), score, rtol=1e-8, atol=1e-10)


def test_a_matrix_that_does_not_fit_is_refused():
    with pytest.raises(ArgumentError, match="20,001 rows and columns"):
        FAMILIES["gaussian-fullrank"].check(20_001)
    FAMILIES["gaussian-fullrank"].check(20_000)
