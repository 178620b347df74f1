import jax
import numpy as np
import pytest

from bernflow.errors import ArgumentError
from bernflow.fit.batches import rows as batches_module
from bernflow.fit.batches.rows import Batches, permuted
from bernflow.precision import use_precision

ROWS = {"x": np.arange(23), "y": np.arange(46.0).reshape(23, 2), "none": None}


def test_an_epoch_takes_every_row_at_most_once():
    batches = Batches(ROWS, 23, 5, seed=0)
    assert batches.steps_per_epoch == 4
    epochs = [batches.indices(4 * epoch, 4) for epoch in range(3)]
    for rows in epochs:
        assert rows.shape == (4, 5)
        assert len(np.unique(rows)) == 20
    assert not np.array_equal(epochs[0], epochs[1])
    np.testing.assert_array_equal(batches.indices(2, 4), np.concatenate([epochs[0][2:], epochs[1][:2]]))


def test_the_same_seed_gives_the_same_batches():
    first, again, other = (Batches(ROWS, 23, 5, seed=seed).indices(0, 8) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_streamed_batches_are_those_on_the_device():
    lengths, first_step = [3, 2, 2], 2
    resident = Batches(ROWS, 23, 5, seed=0, resident=True).chunks(lengths, first_step)
    streamed = Batches(ROWS, 23, 5, seed=0, resident=False).chunks(lengths, first_step)
    num = 0
    for (rows, indices), (batch, nothing) in zip(resident, streamed, strict=True):
        assert nothing is None
        taken = jax.tree.map(lambda leaf, at=indices: leaf[at], rows)
        jax.tree.map(np.testing.assert_array_equal, taken, batch)
        num += len(indices)
    assert num == 7


def test_large_rows_are_streamed(tmp_path):
    mapped = np.memmap(tmp_path / "rows", dtype=np.float32, mode="w+", shape=(10, 2))
    assert not Batches({"x": mapped}, 10, 2, seed=0).resident
    assert Batches(ROWS, 23, 5, seed=0).resident


def test_rows_in_order_are_all_rows():
    parts = list(Batches(ROWS, 23, 5, seed=0).in_order())
    assert [len(part) for part in parts] == [5, 5, 5, 5, 3]
    np.testing.assert_array_equal(np.concatenate(parts), np.arange(23))


def test_a_batch_is_no_larger_than_the_data():
    with pytest.raises(ArgumentError, match="batch_size=24 with 23 rows: expected at most as many"):
        Batches(ROWS, 23, 24, seed=0)


def test_the_order_of_many_rows_is_not_stored(monkeypatch):
    monkeypatch.setattr(batches_module, "MAX_SHUFFLED_ROWS", 20)
    batches = Batches(ROWS, 23, 5, seed=0)
    epochs = [batches.indices(4 * epoch, 4) for epoch in range(3)]
    for rows in epochs:
        assert rows.shape == (4, 5)
        assert rows.dtype == np.int32
        assert len(np.unique(rows)) == 20
    assert not np.array_equal(epochs[0], epochs[1])
    np.testing.assert_array_equal(batches.indices(2, 4), np.concatenate([epochs[0][2:], epochs[1][:2]]))
    assert batches._order[1].size == 0
    assert len(np.unique(batches.sample(23))) == 23


def test_few_rows_are_shuffled_as_ever():
    batches = Batches(ROWS, 23, 5, seed=7)
    for epoch in (0, 1, 0):
        order = np.random.default_rng([7, epoch]).permutation(23)
        np.testing.assert_array_equal(batches.indices(4 * epoch, 4), order[:20].reshape(4, 5))
    np.testing.assert_array_equal(batches.sample(9), np.random.default_rng([7, 0]).permutation(23)[:9])


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_streamed_batches_keep_the_precision(precision):
    # They are gathered by another thread, which does not share the precision of this one.
    with use_precision(precision):
        streamed = Batches(ROWS, 23, 5, seed=0, resident=False).chunks([3, 2])
        assert [str(batch["y"].dtype) for batch, _ in streamed] == [precision] * 2


def test_each_of_several_processes_brings_its_share():
    batches = Batches(ROWS, 23, 5, seed=0, num_processes=4)
    assert batches.total_rows == 92
    assert batches.share(100) == 25
    assert batches.indices(0, 1).shape == (1, 5)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 17, 64, 1000, 4097])
def test_every_row_comes_once(size):
    np.testing.assert_array_equal(np.sort(permuted(np.arange(size), size, [3, 0])), np.arange(size))


def test_the_order_depends_on_the_seed_and_on_nothing_else():
    whole = permuted(np.arange(1000), 1000, [1, 0])
    np.testing.assert_array_equal(permuted(np.array([7, 400]), 1000, [1, 0]), whole[[7, 400]])
    for seed in ([2, 0], [1, 1]):
        assert np.mean(permuted(np.arange(1000), 1000, seed) == whole) < 0.02


def test_the_order_is_random():
    # Ranks and places are uncorrelated, and so are neighbors: four standard errors of 1 / sqrt(n), one false alarm in
    # 8,000 per comparison, and three of them.
    size = 10**5 + 7
    rows = permuted(np.arange(size), size, [0, 0]).astype(float)
    limit = 4 / np.sqrt(size)
    assert abs(np.corrcoef(rows, np.arange(size))[0, 1]) < limit
    assert abs(np.corrcoef(rows[1:], rows[:-1])[0, 1]) < limit
    assert abs(np.corrcoef(rows % 2, np.arange(size) % 2)[0, 1]) < limit


def test_rows_beyond_32_bits():
    size = 10**12
    rows = permuted(np.arange(1000), size, [0, 0])
    assert len(np.unique(rows)) == 1000
    assert rows.max() < size
    assert rows.max() > 0.98 * size
