import numpy as np
import pytest

from bernflow.models.stan.points import NUM_TRIES, RADIUS, shrinking_points


@pytest.mark.parametrize("num", [1, 8, 96, NUM_TRIES])
def test_points_shrink_to_the_origin(num):
    points = shrinking_points(np.random.default_rng(0), 50, num)
    assert points.shape == (num, 50)
    np.testing.assert_array_equal(points[-1], 0.0)
    assert np.abs(points).max() < RADIUS


def test_the_range_is_halved_every_twenty_points():
    points = shrinking_points(np.random.default_rng(0), 50)
    largest = np.abs(points).reshape(5, 20, 50).max(axis=(1, 2))
    radius = RADIUS * 0.5 ** np.arange(5)
    assert np.all(largest < radius)
    assert np.all(largest > 0.9 * radius)  # of 950 uniform numbers or more: fails once in 10^43
