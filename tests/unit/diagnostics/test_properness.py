"""Rays whose mass goes on and on are told from those that end, on both sides of every limit."""

import numpy as np
import pytest

from bernflow.diagnostics.properness import endless_until

LOG_RADIUS = np.arange(15.0)
LAST = np.exp(LOG_RADIUS[-1])


def steps(*slopes, start=0.0):
    """Log masses at radii one apart that rise by given slopes."""
    return start + np.concatenate([[0.0], np.cumsum(slopes)])


def until(log_mass, **known):
    return endless_until(log_mass, LOG_RADIUS[: len(log_mass)], **known)


@pytest.mark.parametrize(("slope", "endless"), [(-0.019, True), (-0.021, False), (0.0, True), (-1.0, False)])
def test_a_plateau_may_fall_by_a_fiftieth(slope, endless):
    assert until(steps(*[slope] * 14)) == (pytest.approx(LAST) if endless else None)


def test_slopes_are_per_unit_of_the_log_radius():
    # It falls by 0.03 a step, which is 0.015 of a unit.
    assert endless_until(steps(*[-0.03] * 14), 2.0 * LOG_RADIUS) is not None
    assert endless_until(steps(*[-0.03] * 14), LOG_RADIUS) is None


@pytest.mark.parametrize(("num", "endless"), [(3, True), (2, False)])
def test_three_last_steps_are_enough(num, endless):
    found = until(steps(*[-1.0] * (14 - num), *[0.0] * num))
    assert found == (pytest.approx(LAST) if endless else None)


@pytest.mark.parametrize(("level", "endless"), [(-29.9, True), (-30.1, False)])
def test_a_plateau_far_below_the_evidence_is_nothing(level, endless):
    log_mass = np.full(15, level)
    log_mass[:3] = 0.0
    assert (until(log_mass) is not None) is endless
    # It is the height above the evidence that counts.
    assert (until(log_mass + 7.0, log_evidence=7.0) is not None) is endless


@pytest.mark.parametrize(
    ("num", "level", "endless"), [(4, 0.0, True), (3, 0.0, False), (4, -4.9, True), (4, -5.1, False)]
)
def test_a_ridge_that_is_left_must_last_and_matter(num, level, endless):
    log_mass = steps(-3.0, -3.0, *[0.0] * num, *[-3.0] * (12 - num), start=level + 6.0)
    found = until(log_mass)
    assert found == (pytest.approx(np.exp(2.0 + num)) if endless else None)


def test_a_step_that_falls_begins_the_count_again():
    assert until(steps(0.0, 0.0, 0.0, -1.0, 0.0, 0.0, 0.0, *[-1.0] * 7, start=3.0)) is None


@pytest.mark.parametrize(("num", "endless"), [(4, True), (3, False)])
def test_without_evidence_nothing_may_fall_before_the_density_overflows(num, endless):
    log_mass = np.full(15, -np.inf)
    log_mass[: 3 + num] = steps(-1.0, -1.0, *[1.0] * num)
    assert until(log_mass, log_evidence=None) == (pytest.approx(np.exp(2.0 + num)) if endless else None)
    falls = log_mass.copy()
    falls[2 + num] = falls[1 + num] - 1.0
    assert until(falls, log_evidence=None) is None
    assert until(np.full(15, -np.inf), log_evidence=None) is None
    # Up to the end of the ray, where nothing overflows.
    assert until(steps(*[1.0] * 14), log_evidence=None) == pytest.approx(LAST)
