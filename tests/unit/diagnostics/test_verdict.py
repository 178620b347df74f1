import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

from bernflow.cli.printing import figure_lines
from bernflow.diagnostics import Finding, judge
from bernflow.diagnostics.elsewhere import NOT_SEARCHED, Elsewhere
from bernflow.diagnostics.findings import STOPPED, remark
from bernflow.diagnostics.verdict import _of_weights, improper, with_search
from bernflow.errors import ArgumentError
from bernflow.posterior import display
from bernflow.report import page

S = 20_000
SEEDS = range(3)


def normal(x, loc=0.0, sd=1.0):
    return stats.norm.logpdf(x, loc, sd)


def draws(seed, dim=1, sd=1.0):
    return sd * np.random.default_rng(seed).normal(size=(S, dim))


def shifted(shift, dim=1):
    return lambda seed: (lambda x: (normal(x, shift) - normal(x)).sum(axis=1))(draws(seed, dim))


def scaled(sd, dim=1):
    return lambda seed: (lambda x: (normal(x) - normal(x, 0, sd)).sum(axis=1))(draws(seed, dim, sd))


def student(df):
    return lambda seed: (lambda x: (stats.t.logpdf(x, df) - normal(x))[:, 0])(draws(seed))


def mean_field(rho):
    sd = np.sqrt(1 - rho**2)
    joint = stats.multivariate_normal([0, 0], [[1, rho], [rho, 1]])
    return lambda seed: (lambda x: joint.logpdf(x) - normal(x, 0, sd).sum(axis=1))(draws(seed, 2, sd))


def contaminated(share, sd):
    """A posterior of which q misses a share that is spread widely."""

    def weights(seed):
        x = draws(seed)[:, 0]
        return np.logaddexp(np.log1p(-share) + normal(x), np.log(share) + normal(x, 0, sd)) - normal(x)

    return weights


def two_modes(distance):
    """Half of the posterior lies in a mode that q misses."""

    def weights(seed):
        x = draws(seed)[:, 0]
        return np.logaddexp(normal(x), normal(x, distance)) - np.log(2) - normal(x)

    return weights


GOOD = {
    "mean off by 0.1": shifted(0.1),
    "sd 0.98 in 10 dimensions": scaled(0.98, 10),
    "sd 1.05": scaled(1.05),
    "t100": student(100),
}
BIASED = {
    "mean off by 0.25": shifted(0.25),
    "mean off by 0.25 in 10 dimensions": shifted(0.25, 10),
    "mean off by 1": shifted(1.0),
    "sd 0.8": scaled(0.8),
    "sd 0.8 in 10 dimensions": scaled(0.8, 10),
    "sd 0.5": scaled(0.5),
    "sd 1.2": scaled(1.2),
    "t3": student(3),
    "mean field of correlation 0.6": mean_field(0.6),
    "5 % of sd 5": contaminated(0.05, 5.0),
    "2 % of sd 10": contaminated(0.02, 10.0),
    "0.5 % of sd 10": contaminated(0.005, 10.0),
}
POOR = {
    "sd 0.5 in 10 dimensions": scaled(0.5, 10),
    "mean field of correlation 0.9": mean_field(0.9),
    "mode missed 4 sd away": two_modes(4),
    "mode missed 6 sd away": two_modes(6),
}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", GOOD)
def test_good_fits_are_called_good(name, seed):
    assert judge(GOOD[name](seed)).verdict == "good"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", BIASED)
def test_errors_that_matter_are_never_called_good(name, seed):
    found = judge(BIASED[name](seed))
    assert found.verdict in ("usable", "poor")
    assert found.status.startswith(found.verdict.capitalize())


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", POOR)
def test_gross_errors_are_called_poor(name, seed):
    assert judge(POOR[name](seed)).verdict == "poor"


def test_a_far_mode_is_invisible_to_the_weights_and_caught_by_missing_mass():
    raw = two_modes(12)(0)
    assert judge(raw).verdict == "good"
    assert "components=5 or more" in judge(raw, missing_mass=0.5, num_parts=4).status
    found = judge(raw, missing_mass=0.5)
    assert found.verdict == "poor"
    assert "other starts found 50.0 % of the posterior mass" in found.status
    assert "components=2" in found.status


@pytest.mark.parametrize(("missing", "verdict"), [(0.0, "good"), (0.01, "good"), (0.03, "usable"), (0.06, "poor")])
def test_missing_mass_caps_the_verdict(missing, verdict):
    assert judge(np.zeros(2000), missing_mass=missing).verdict == verdict
    assert judge(POOR["mode missed 4 sd away"](0), missing_mass=missing).verdict == "poor"


def test_nearly_constant_weights_are_good_whatever_their_tail():
    # Noise of 1e-3 with a Cauchy tail: k-hat near 1, though no weight is off by 20 %.
    raw = np.clip(1e-4 * np.random.default_rng(0).standard_cauchy(S), -0.2, 0.2)
    found = judge(raw)
    assert found.khat > 0.5
    assert found.ess_fraction > 0.999
    assert found.verdict == "good"
    assert "weights are nearly equal" in found.status
    assert "k-hat" not in found.status


def level(log_weights, khat, ess, ess_se=0.0, elsewhere=None):
    """Return the verdict on given figures."""
    found = _of_weights(log_weights, khat, ess, ess_se)
    figures = {"khat": khat, "ess_fraction": ess, "findings": (found,)}
    return with_search(dataclasses.replace(judge(np.zeros(100)), **figures), None, elsewhere).verdict


# Just inside and just outside of every limit of the rule.
@pytest.mark.parametrize(
    ("khat", "ess", "ess_se", "verdict"),
    [
        (0.5, 0.96, 0.0, "good"),
        (0.501, 0.96, 0.0, "usable"),
        (0.5, 0.959, 0.0, "usable"),
        (0.5, 0.98, 0.0101, "usable"),
        (0.7, 0.995, 0.0, "good"),
        (0.701, 0.995, 0.0, "usable"),
        (0.7, 0.1, 0.0, "usable"),
        (0.7, 0.099, 0.0, "poor"),
        (0.701, 0.899, 0.0, "poor"),
        (1.0, 0.9, 0.0, "usable"),
        (1.001, 0.9, 0.0, "poor"),
        (1.5, 0.99, 0.0, "usable"),
        (1.5, 0.989, 0.0, "poor"),
        (1.501, 0.99, 0.0, "poor"),
        (9.0, 0.999, 0.0, "usable"),
        (9.0, 0.998, 0.0, "poor"),
    ],
)
def test_the_limits_of_the_rule(khat, ess, ess_se, verdict):
    uneven = np.where(np.arange(2000) == 0, 1.0, 0.0)
    assert level(uneven, khat, ess, ess_se) == verdict


@pytest.mark.parametrize(("ratio", "verdict"), [(1.249, "good"), (1.251, "usable")])
def test_the_limit_of_constant_weights(ratio, verdict):
    # One weight of so many times the mean of all.
    num = 2000
    raw = np.where(np.arange(num) == 0, np.log(ratio * (num - 1) / (num - ratio)), 0.0)
    assert level(raw, 9.0, 0.999) == verdict
    assert level(raw, 9.0, 0.998) == "poor"


def test_figures_and_advice():
    found = judge(shifted(0.5)(0), num_failed_steps=3)
    assert found.status.startswith(f"Usable (ESS {100 * found.ess_fraction:.1f} % of the draws, k-hat {found.khat:.2f}")
    assert "draws, summaries and figures are weighted by default" in found.status
    assert found.status.endswith("3 training steps were not finite and were skipped.")
    assert found.num_draws == S
    assert abs(found.log_evidence) < 5 * found.log_evidence_se
    assert abs(found.elbo + 0.125) < 5 * found.elbo_se
    assert "far tails are not" in judge(contaminated(0.005, 10.0)(0)).status
    assert "far from the posterior" in judge(POOR["sd 0.5 in 10 dimensions"](0)).status
    # Quantiles of a Pareto tail with k = 0.9 on top of constant weights: a middling ESS and a high k-hat.
    heavy = np.log1p(0.01 * ((np.arange(S) + 0.5) / S) ** -0.9)
    assert "does not cover the tails of the posterior" in judge(heavy).status
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.khat = 0.0
    with pytest.raises(AttributeError):
        found.status = "Good."


@pytest.mark.parametrize(
    ("khat", "verdict", "words"),
    [(0.7, "usable", "0.1235"), (0.71, "usable", "0.1235 or more"), (0.71, "good", "0.1235")],
)
def test_where_an_error_is_a_lower_bound_all_that_show_it_say_so(khat, verdict, words):
    changed = {"khat": khat, "log_evidence": -3.0, "log_evidence_se": 0.12345}
    found = dataclasses.replace(judge(np.zeros(100)), findings=(Finding("weights", verdict, "so"),), **changed)
    assert dict(display._figures(found))["log evidence"] == f"-3.0000 ± {words}"
    assert {row[0]: row[2] for row in page._statistics(found)}["Log evidence"] == words
    fit = SimpleNamespace(diagnostics=found, settings={"wall_seconds": 1.0, "steps": 1})
    assert any(line.endswith(f"-3.0000 ± {words}") for line in figure_lines(fit))


def test_few_draws_are_never_good():
    found = judge(np.zeros(500))
    assert found.verdict == "usable"
    assert "judged by 500 draws only; at least 1000" in found.status


def test_zero_density_is_counted():
    found = judge(np.where(np.arange(S) % 100, 0.0, -np.inf))
    assert found.num_nonfinite == S // 100
    assert "The target density is zero at 200 of 20000 draws" in found.status
    assert judge(np.full(2000, -np.inf)).verdict == "poor"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_broken_weights_are_poor(bad):
    found = judge(np.where(np.arange(2000) == 5, bad, 0.0))
    assert found.verdict == "poor"
    assert "NaN or +inf at 1 of 2000 draws" in found.status
    assert found.num_nonfinite == 1
    assert not np.isnan([found.khat, found.ess_fraction, found.elbo, found.log_evidence]).any()


@pytest.mark.parametrize("missing", [-0.1, 1.1, float("nan")])
def test_missing_mass_is_a_share(missing):
    with pytest.raises(ArgumentError, match=r"missing_mass=.*: expected a share between 0 and 1"):
        judge(np.zeros(100), missing_mass=missing)


def test_the_sentence_is_written_from_the_findings():
    stopped = remark(STOPPED, "interrupted after 250 steps", "post.refine() continues the training", steps=250)
    found = judge(shifted(0.5)(0), missing_mass=0.03, num_failed_steps=3).adding(stopped)
    assert [finding.kind for finding in found.findings] == ["weights", "skipped", "missing", "stopped"]
    assert found.findings[2].figures["share"] == 0.03
    assert found.status.startswith("Usable (ESS ")
    assert (
        "): other starts found 3.0 % of the posterior mass in modes that this fit does not cover; fit a" in found.status
    )
    assert found.status.endswith(
        "or more. 3 training steps were not finite and were skipped. Interrupted after 250 steps; post.refine() "
        "continues the training."
    )
    endless = found.adding(improper("b[0]", 2e7))
    assert (endless.verdict, endless.improper) == ("poor", "b[0]")
    assert "the density does not decay along b[0] within 2e+07 standard deviations" in endless.status
    assert "other starts" not in endless.status
    assert "Interrupted after 250 steps" in endless.status


def test_what_limits_less_is_said_after_what_limits_more():
    found = judge(POOR["sd 0.5 in 10 dimensions"](0), missing_mass=0.03)
    assert found.status.startswith("Poor (ESS")
    assert "the fit is far from the posterior" in found.status
    assert "do not use the draws. Other starts found 3.0 %" in found.status


def test_khat_is_left_out_only_where_weights_are_nearly_equal():
    assert "k-hat" not in judge(np.zeros(2000)).status
    assert "k-hat" in judge(shifted(0.12)(0)).status
    assert "k-hat" in judge(shifted(0.5)(0)).status


@pytest.mark.parametrize(
    ("khat", "ess", "verdict"),
    [
        (1.001, 0.9, "usable"),
        (9.0, 0.9, "usable"),
        (9.0, 0.899, "poor"),
        (0.701, 0.899, "poor"),
        (1.001, 0.899, "poor"),
    ],
)
def test_a_search_says_what_a_high_khat_leaves_open(khat, ess, verdict):
    uneven = np.where(np.arange(2000) == 0, 1.0, 0.0)
    assert level(uneven, khat, ess, elsewhere=Elsewhere(("4,000 heated draws",))) == verdict
    assert level(uneven, khat, ess, elsewhere=NOT_SEARCHED) == level(uneven, khat, ess) == "poor"
