"""Globals, blocks, chains and dense blocks are seen from the pattern of second derivatives."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints
from scipy.sparse import csr_array

import bernflow as bf
from bernflow.errors import FileFormatError
from bernflow.fit.structure import find_structure, pattern_of, scale_dimensions
from bernflow.flows.structure import Structure
from bernflow.target import Target


def pattern(dim, pairs):
    dense = np.zeros((dim, dim), bool)
    for i, j in pairs:
        dense[i, j] = dense[j, i] = True
    return csr_array(dense)


def test_hubs_are_globals_and_what_is_left_falls_into_blocks():
    groups = [(2 * i + 2, 2 * i + 3) for i in range(20)]
    pairs = [(hub, member) for hub in (0, 1) for pair in groups for member in pair] + groups + [(0, 1)]
    structure = find_structure(pattern(42, pairs))
    assert structure.leaders == (0, 1)
    assert sorted(map(sorted, structure.blocks)) == [list(pair) for pair in groups]
    assert not structure.chained


def test_a_random_walk_is_a_chain():
    pairs = [(0, i) for i in range(1, 50)] + [(i, i + 1) for i in range(1, 49)]
    structure = find_structure(pattern(50, pairs))
    assert structure.leaders == (0,)
    assert structure.chained
    assert [len(block) for block in structure.blocks] == [1] * 49


def test_crossed_effects_are_one_dense_block_given_the_scales():
    rows, columns = range(2, 42), range(42, 82)
    pairs = [(i, j) for i in rows for j in columns] + [(0, i) for i in rows] + [(1, j) for j in columns]
    structure = find_structure(pattern(82, pairs), scales=[0, 1])
    assert structure.leaders == (0, 1)
    assert len(structure.blocks) == 1
    assert len(structure.blocks[0]) == 80


def test_without_globals_there_is_no_structure():
    assert find_structure(pattern(40, [])) is None


def test_a_scale_of_one_other_parameter_is_not_a_global():
    pairs = [(0, 1), *((2, i) for i in range(3, 40))]
    assert 0 not in find_structure(pattern(40, pairs), scales=[0]).leaders


def test_second_derivatives_count_relative_to_the_curvature():
    hessian = np.diag([-1.0, -1e6, -1e-6])
    hessian[0, 1] = hessian[1, 0] = 1e-9
    hessian[1, 2] = hessian[2, 1] = 1e-3
    assert (pattern_of([csr_array(hessian)]) != pattern(3, [(1, 2)])).nnz == 0


def test_scales_are_seen_on_half_lines_and_intervals():
    model = bf.Model(
        prior={
            "b": dist.Normal(0.0, 1.0).expand([2]).to_event(1),
            "s": dist.HalfNormal(1.0),
            "t": dist.Uniform(0.0, 100.0),
            "u": dist.Uniform(-1.0, 1.0),
        },
        likelihood=lambda theta: dist.Normal(theta["b"][0], theta["s"] + theta["t"]),
        y=np.zeros(3),
    )
    layout = Target(model).layout
    assert [layout.labels()[i] for i in scale_dimensions(layout)] == ["s", "t"]


def test_many_scales_belong_to_single_parameters():
    density = bf.from_log_density(
        lambda theta: -jnp.sum(theta["local"]), init={"local": jnp.ones(40)}, support={"local": constraints.positive}
    )
    assert scale_dimensions(Target(density).layout) == []


def test_values_by_block_and_back():
    structure = Structure(6, (3,), ((0, 5), (1,), (2, 4)))
    values = np.arange(5.0) + 1.0
    blocks = structure.by_block(values)
    np.testing.assert_array_equal(blocks, [[1.0, 2.0], [3.0, 0.0], [4.0, 5.0]])
    np.testing.assert_array_equal(structure.flat(blocks), values)
    np.testing.assert_array_equal(structure.order[structure.places], np.arange(6))


def test_json_and_back():
    structure = Structure(4, (1,), ((0,), (2, 3)), chained=True)
    assert Structure.from_json(structure.to_json()) == structure
    for broken in ({"leaders": [0]}, {"blocks": []}, {"dim": 5}):
        with pytest.raises(FileFormatError, match="not a partition"):
            Structure.from_json(structure.to_json() | broken)


def test_people_and_items_have_the_items_as_globals():
    """A block of all of them would be dense, and far from Gaussian."""
    people, items = range(4, 104), range(104, 144)
    pairs = [(i, j) for i in people for j in items] + [(j, j + 20) for j in range(104, 124)]
    pairs += (
        [(0, i) for i in people] + [(1, j) for j in range(104, 124)] + [(k, j) for k in (2, 3) for j in range(124, 144)]
    )
    structure = find_structure(pattern(144, pairs), scales=[0, 1, 2])
    assert structure.leaders == (0, 1, 2, *items)
    # Given the items, what some of them have in common is as independent of the people.
    assert [len(block) for block in structure.blocks] == [1] * 101
