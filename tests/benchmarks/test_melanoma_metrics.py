import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.melanoma.metrics import (
    adjust,
    auc,
    auc_difference,
    bootstrap,
    calibration_curve,
    delong,
    log_score,
    paired_difference,
    roc_curve,
)
from bernflow.errors import ArgumentError


def example(num=400, seed=0, digits=None):
    rng = np.random.default_rng(seed)
    logit = rng.normal(-1.5, 1.2, num)
    p = 1 / (1 + np.exp(-logit))
    target = (rng.random(num) < p).astype(int)
    return target, p if digits is None else p.round(digits)


def pairs(target, score):
    positive, negative = score[target == 1][:, None], score[target == 0][None]
    return (positive > negative) + 0.5 * (positive == negative)


@pytest.mark.parametrize("digits", [None, 1])
def test_against_scikit_learn(digits):
    sklearn = pytest.importorskip("sklearn.metrics")
    target, p = example(digits=digits)
    np.testing.assert_allclose(auc(target, p), sklearn.roc_auc_score(target, p), rtol=1e-12)
    fpr, tpr, thresholds = sklearn.roc_curve(target, p, drop_intermediate=False)
    ours = roc_curve(target, p)
    np.testing.assert_allclose(ours.false_positive, fpr)
    np.testing.assert_allclose(ours.true_positive, tpr)
    np.testing.assert_allclose(ours.threshold, thresholds)
    target, p = example()
    np.testing.assert_allclose(log_score(target, p), -sklearn.log_loss(target, p), rtol=1e-12)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=1, max_size=30))
def test_auc_is_the_share_of_pairs_and_the_area_under_the_curve(rows):
    # One row of each outcome is always there.
    target = np.array([0, 1, *(int(t) for t, _ in rows)])
    score = np.array([2.0, 3.0, *(s for _, s in rows)])
    np.testing.assert_allclose(auc(target, score), pairs(target, score).mean())
    curve = roc_curve(target, score)
    np.testing.assert_allclose(np.trapezoid(curve.true_positive, curve.false_positive), auc(target, score))
    assert (np.diff(curve.false_positive) >= 0).all()
    assert (curve.false_positive[-1], curve.true_positive[-1]) == (1.0, 1.0)
    for fpr, tpr, threshold in zip(*curve, strict=True):
        np.testing.assert_allclose(fpr, (score[target == 0] >= threshold).mean())
        np.testing.assert_allclose(tpr, (score[target == 1] >= threshold).mean())


@pytest.mark.parametrize("digits", [None, 1])
def test_delong_against_its_definition(digits):
    target, p = example(120, digits=digits)
    psi = pairs(target, p)
    variance = psi.mean(1).var(ddof=1) / psi.shape[0] + psi.mean(0).var(ddof=1) / psi.shape[1]
    found = delong(target, p)
    np.testing.assert_allclose(found.estimate, psi.mean())
    np.testing.assert_allclose(found.high - found.estimate, 1.959963985 * np.sqrt(variance), rtol=1e-8)
    np.testing.assert_allclose(found.estimate - found.low, 1.959963985 * np.sqrt(variance), rtol=1e-8)


def test_delong_covers():
    """95 % intervals of 400 repetitions; binomial, 4 standard errors: a false alarm in 16,000 seeds."""
    truth = 0.7602499389065233  # P(N(1, 1) > N(0, 1))
    rng = np.random.default_rng(1)
    target = np.repeat([1, 0], [60, 240])
    covered = 0
    for _ in range(400):
        interval = delong(target, rng.normal(target))
        covered += interval.low < truth < interval.high
    assert abs(covered / 400 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 400)


def test_bootstrap_agrees_with_delong_and_with_the_standard_error():
    target, p = example(2000)
    found = bootstrap(target, p, seed=1, num=1000)
    assert found["auc"].estimate == auc(target, p)
    assert found["log_score"].estimate == log_score(target, p)
    np.testing.assert_allclose(found["auc"][1:], delong(target, p)[1:], atol=0.005)
    scores = np.where(target == 1, np.log(p), np.log1p(-p))
    half = 1.96 * scores.std() / np.sqrt(len(p))
    np.testing.assert_allclose(found["log_score"].high - found["log_score"].low, 2 * half, rtol=0.1)
    assert bootstrap(target, p, seed=1, num=1000) == found


def test_bootstrap_resamples_as_by_hand():
    target, p = example(50, digits=1)
    p = p.clip(0.05, 0.95)
    rng = np.random.default_rng(7)
    drawn = [rng.integers(50, size=50) for _ in range(20)]
    by_hand = {f: np.quantile([f(target[i], p[i]) for i in drawn], [0.025, 0.975]) for f in (auc, log_score)}
    found = bootstrap(target, p, seed=7, num=20)
    np.testing.assert_allclose(found["auc"][1:], by_hand[auc])
    np.testing.assert_allclose(found["log_score"][1:], by_hand[log_score])


def test_bootstrap_of_groups_is_wider_where_rows_repeat():
    target, p = example(200)
    target, p, group = (np.repeat(values, 10) for values in (target, p, np.arange(200)))
    alone = bootstrap(target, p, seed=1, num=500)["auc"]
    together = bootstrap(target, p, seed=1, num=500, groups=group)["auc"]
    assert 2.5 < (together.high - together.low) / (alone.high - alone.low) < 4.0  # sqrt(10)


def test_a_paired_difference_of_aucs_against_its_definition():
    target, one = example(150)
    other = one + np.random.default_rng(2).normal(scale=0.2, size=150)
    first, second = pairs(target, one), pairs(target, other)
    variance = sum(
        np.cov(first.mean(axis), second.mean(axis)) / first.shape[1 - axis] for axis in (0, 1)
    )  # rows of axis 1 are positives: their placements are means over negatives
    expected = np.sqrt(variance[0, 0] + variance[1, 1] - 2 * variance[0, 1])
    found = auc_difference(target, one, other)
    np.testing.assert_allclose(found.estimate, first.mean() - second.mean())
    np.testing.assert_allclose(found.high - found.estimate, 1.959963985 * expected, rtol=1e-8)
    alone = auc_difference(target, one, other, np.arange(150))
    np.testing.assert_allclose(found, alone, rtol=1e-10)
    assert auc_difference(target, one, one).p_value == 1.0


def test_copies_of_rows_in_one_group_tell_nothing_new():
    target, one = example(300)
    other, group = np.clip(one + 0.05, 0, 1), np.arange(300)
    for difference in (paired_difference, auc_difference):
        noisy = other * np.random.default_rng(4).uniform(0.5, 1.0, 300)
        single = difference(target, one, noisy, group)
        copied = difference(*(np.repeat(each, 5) for each in (target, one, noisy, group)))
        np.testing.assert_allclose(single.estimate, copied.estimate)
        # The correction for estimated means is that of the number of rows.
        np.testing.assert_allclose(single.high - single.low, copied.high - copied.low, rtol=0.02)


@pytest.mark.parametrize("difference", [paired_difference, auc_difference])
def test_paired_tests_reject_at_their_level(difference):
    """5 % of 400 tests of equal models reject; binomial, 4 standard errors: a false alarm in 16,000 seeds."""
    rng = np.random.default_rng(5)
    rejected = 0
    for _ in range(400):
        signal, group = rng.normal(size=(2, 80)), np.repeat(np.arange(80), 4)
        logit = np.repeat(signal[0], 4) - 1
        target = (rng.random(320) < 1 / (1 + np.exp(-logit))).astype(int)
        one, other = (1 / (1 + np.exp(-logit - np.repeat(rng.normal(size=80), 4))) for _ in range(2))
        rejected += difference(target, one, other, group).p_value < 0.05
    assert abs(rejected / 400 - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 400)


def test_adjusted_p_values_hold_the_family_wise_level():
    """Any of 6 true hypotheses is rejected in at most 5 % of 4,000 families; binomial, 4 standard errors."""
    rng = np.random.default_rng(0)
    rejected = np.mean([min(adjust(rng.uniform(size=6))) < 0.05 for _ in range(4000)])
    assert rejected == pytest.approx(1 - (1 - 0.05 / 6) ** 6, abs=4 * np.sqrt(0.05 * 0.95 / 4000))
    assert adjust([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])


def test_calibration_curve():
    target, p = example(1000)
    curve = calibration_curve(target, p, 8)
    assert curve.num_rows.tolist() == [125] * 8
    order = np.argsort(p).reshape(8, 125)
    np.testing.assert_allclose(curve.predicted, p[order].mean(1))
    np.testing.assert_allclose(curve.observed, target[order].mean(1))


def test_calibration_curve_with_few_distinct_probabilities():
    p = np.repeat([0.1, 0.2, 0.6], [70, 20, 10])
    target = np.zeros(100, int)
    target[[0, 75, 95]] = 1
    curve = calibration_curve(target, p)
    assert curve.num_rows.tolist() == [70, 20, 10]
    np.testing.assert_allclose(curve.predicted, [0.1, 0.2, 0.6])
    np.testing.assert_allclose(curve.observed, [1 / 70, 1 / 20, 1 / 10])
    assert calibration_curve(target, np.full(100, 0.03)).num_rows.tolist() == [100]


def test_an_impossible_outcome_scores_minus_infinity():
    assert log_score([1, 0], [0.0, 0.0]) == -np.inf
    assert log_score([1, 0], [1.0, 0.0]) == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: auc([1, 1], [0.1, 0.2]), "target is 1 in every row: expected both outcomes"),
        (lambda: auc([1, 0, 1], [0.1, 0.2]), r"target has shape \(3,\), the scores \(2,\)"),
        (lambda: auc([1, 2], [0.1, 0.2]), "target has other values than 0 and 1"),
        (lambda: roc_curve([1, 0], [0.1, np.nan]), "1 of 2 scores are not numbers"),
        (lambda: log_score([1, 0], [0.1, 1.2]), r"probability is between 0.1 and 1.2: expected values in \[0, 1\]"),
        (lambda: delong([1, 0], [0.1, 0.2]), "at least two rows of each outcome"),
        (lambda: calibration_curve([1, 0], [0.1, 0.2], 0), "num_bins=0: expected"),
        (lambda: bootstrap([1, 0], [0.1, 0.2], seed=1, groups=[1]), r"groups has shape \(1,\), expected \(2,\)"),
    ],
)
def test_wrong_arguments(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()
