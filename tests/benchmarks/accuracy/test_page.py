import pytest

from benchmarks.accuracy import page, summary
from benchmarks.accuracy.cases import all_cases
from benchmarks.accuracy.summary import estimated_evidence

CASES = all_cases()
REAL = "sblrc-blr"


def record(target="funnel-10", method="bernflow", key=0, matched=False, elbo=-0.1, **more):
    figures = {
        "elbo": elbo,
        "elbo_se": 0.001,
        "largest_share": 0.003,
        "khat": 0.2,
        "ess_fraction": 0.99,
        "kl": -elbo,
        "seconds": 5.0,
    }
    figures |= {"gradients": 96000, "log_evidence_estimate": 0.5, "log_evidence_estimate_se": 0.01}
    figures |= {"mean_error": -0.02, "mean_error_se": 0.01, "sd_error": 0.03, "sd_error_se": 0.01}
    figures |= {"wasserstein": 0.03, "wasserstein_floor": 0.02, "truly_good": True, "false_good": False}
    figures |= {"false_bad": False, "verdict": "good", "verdict_is_right": True, "status": "ok"}
    return {"target": target, "method": method, "key": key, "matched": matched, **figures, **more}


RECORDS = [
    record(),
    record(key=1, elbo=-0.2, verdict="poor", false_bad=True, verdict_is_right=False),
    record(key=2, elbo=-0.1),
    record(method="AutoMultivariateNormal", elbo=-2.0, verdict=None, verdict_is_right=None),
    record(method="AutoIAFNormal", elbo=-0.0999, verdict=None, verdict_is_right=None),
    record(method="pymc-advi", elbo=-0.01, verdict=None, verdict_is_right=None, matched=True),
    record(target="bernoulli", elbo=-1.2, khat="inf"),
    {"target": "bernoulli", "method": "AutoIAFNormal", "key": 0, "matched": False, "status": "refuses 1-D"},
    record(target=REAL, elbo=-3.0, kl=None, ess_fraction=0.97),
    record(target=REAL, method="AutoMultivariateNormal", elbo=-2.0, kl=None, verdict=None, verdict_is_right=None),
    record(target="nn-regression", elbo=-20.0, kl=None, khat=0.9, truly_good=None, verdict_is_right=None),
]


def test_medians_and_evidence():
    table = summary.rows(RECORDS, CASES, matched=False)
    assert table["funnel-10"]["bernflow"].kl == pytest.approx(0.1)
    # The evidence of a real posterior is estimated, that of one whose weights have heavy tails is not.
    assert table[REAL]["bernflow"].kl == pytest.approx(3.5)
    assert table["nn-regression"]["bernflow"].kl is None
    # A fit that is known to be wrong says nothing about the evidence, however even its weights are.
    wrong = record(target=REAL, truly_good=False, log_evidence_estimate=9.0, log_evidence_estimate_se=0.0)
    assert summary.rows([*RECORDS, wrong], CASES, matched=False)[REAL]["AutoMultivariateNormal"].kl == pytest.approx(
        2.5
    )
    assert table["funnel-10"]["bernflow"].verdicts == "good 2, poor 1"
    assert table["funnel-10"]["bernflow"].truth == "yes, false bad"
    assert table["bernoulli"]["AutoIAFNormal"].status == "refuses 1-D"
    assert list(summary.rows(RECORDS, CASES, matched=True)["funnel-10"]) == ["bernflow", "pymc-advi"]


def test_goals():
    lines = summary.goals(RECORDS, CASES)
    assert lines[0] == "Test set: not measured."
    # Better by 0.0001 with an error of 0.001 is no better; better by 1 is. Without a rival there is nothing to win.
    assert lines[1] == (
        "Targets of development: with the defaults of the other methods, bernflow with its defaults has the best KL, "
        f"or one within 2 standard errors of it, on 1 of 2 targets ({REAL})."
    )
    assert "with equal numbers of gradients, bernflow with its defaults has" in lines[2]
    assert "on 0 of 1 targets (funnel-10)." in lines[2]
    assert f"Targets of development: bernflow is worse than a full-rank normal on 1 of 2 targets ({REAL})." in lines
    told = "Targets of development: 1 of 5 runs of other methods gave no result (refuses 1-D 1); of bernflow 0."
    assert told in lines
    late = {**RECORDS[0], "method": "nuts", "status": "exceeded the time limit of 9 s"}
    assert "2 of 6 runs of other methods gave no result (refuses 1-D 1, exceeded the time limit 1)" in "".join(
        summary.goals([*RECORDS, late], CASES)
    )
    assert f"posteriordb: the ESS fraction is at least 0.98 on 0 of 1 targets ({REAL})." in lines
    assert "Verdicts of bernflow: 0 false good and 1 false bad (funnel-10) in 5 runs." in lines


def test_a_fit_of_ours_without_a_result_is_lost_and_named():
    late = {"status": "exceeded the time limit of 9 s", "target": "ring", "method": "bernflow", "key": 0}
    rival = record(target="ring", method="AutoIAFNormal", verdict=None, verdict_is_right=None)
    lines = summary.goals([{**late, "matched": False}, rival], CASES)
    assert "on 0 of 1 targets (ring)." in lines[1]
    assert any("of bernflow 1 (ring)." in line for line in lines)


def test_the_test_set_comes_first_and_apart():
    runs = [record(target="linear-0"), record(target="linear-0", method="AutoIAFNormal", elbo=-0.5), *RECORDS]
    lines = summary.goals(runs, CASES)
    assert lines[0].startswith("Test set: with the defaults")
    assert "on 1 of 1 targets." in lines[0]
    num = [line.startswith("Test set") for line in lines].index(False)
    assert lines[num].startswith("Targets of development")
    assert not any(line.startswith("Test set") for line in lines[num:])


def test_start_and_flow_are_told_apart():
    kls = {"start": -2.0, "start-fullrank": -1.0, "start-IAF": -0.5, "bernflow": -0.01}
    runs = [record(target="funnel-10", method=m, elbo=e, verdict=None, verdict_is_right=None) for m, e in kls.items()]
    (line,) = [line for line in summary.goals(runs, CASES) if "start or flow" in line]
    assert line.endswith(
        "median KL over the 1 targets where all of these have one: bernflow's start, untrained 2, full-rank normal, "
        "our start 1, IAF (NumPyro), our start 0.5, bernflow 0.01."
    )


def test_limits_and_keys_are_told():
    runs = [{**record(key=key), "time_limit": 900.0} for key in range(3)]
    assert page.limits(runs) == (
        "One time limit of 900 s for every measurement, from the start of the process to the last figure, bernflow's "
        "as well: runs that hit it are shown as such. 3 keys for every method."
    )
    other = {**record(method="nuts"), "time_limit": 240.0}
    told = page.limits([*runs, other])
    assert told.startswith("The limits of the measurements differ (3 under 900 s, 1 under 240 s)")
    assert told.endswith("3 keys for every method, but NUTS (NumPyro) 1.")


def test_page_and_picture(tmp_path):
    written = page.write(tmp_path, RECORDS, CASES, "bernflow benchmark accuracy")
    text = written.read_text(encoding="utf-8")
    assert (tmp_path / "accuracy.png").stat().st_size > 10_000
    assert (tmp_path / "accuracy.svg").read_text().startswith("<?xml")
    funnel = next(line for line in text.splitlines() if line.startswith("| Funnel, p = 10"))
    assert funnel == "| Funnel, p = 10 | 0.1000 | 2.0000 | **0.0999** |"
    assert "| sblrc-blr | ≈ 3.5000 | **≈ 2.5000** |  |" in text
    assert "| Small neural network | **ELBO -20.00** |  |  |" in text
    assert "| Bernoulli | **0.0856** |  | refuses 1-D |" in text
    assert (
        "| bernflow | 0.1000 | 0.0010 (0.3%) | -0.1000 | 0.20 | 0.990 | 0.020 (0.010) | 0.030 (0.010) | 0.030 (0.020) |"
        in text
    )
    assert text.count("## Every method") == 2
    assert "Made by `bernflow benchmark accuracy`. For 11 of 11 results, no date, commit, machine and versions" in text
    assert "constants of bernflow were chosen on them" in text


def test_without_any_kl_there_is_no_picture(tmp_path):
    page.write(tmp_path, RECORDS[-1:], CASES, "bernflow benchmark accuracy")
    assert not (tmp_path / "accuracy.png").exists()
    assert "accuracy.png" not in (tmp_path / "README.md").read_text(encoding="utf-8")


def test_an_evidence_below_the_bound_of_another_method_is_no_evidence():
    record = {"status": "ok", "khat": 0.1, "elbo": -3.0, "elbo_se": 0.01}
    estimate = {**record, "log_evidence_estimate": -2.0, "log_evidence_estimate_se": 0.01}
    assert estimated_evidence([estimate]) == -2.0
    higher = {**estimate, "khat": 0.9, "elbo": -1.0}  # found a mode that the other one misses
    assert estimated_evidence([estimate, higher]) is None
