import functools
import json

import pytest

from benchmarks.commands import benchmark
from bernflow.cli import main


def runner(tasks, jobs, seconds):
    for task in tasks:
        yield (
            task,
            {"status": "ok", "elbo": -1.2, "elbo_se": 0.01, "khat": 0.2, "ess_fraction": 0.9, "kl": 0.1}
            | {
                "seconds": 2.0,
                "gradients": 1000,
                "verdict": "good",
            },
        )


@pytest.fixture
def made_up(monkeypatch):
    monkeypatch.setattr(benchmark, "Suite", functools.partial(benchmark.Suite, runner=runner))


def run(capsys, *words):
    code = main(["benchmark", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_accuracy_writes_and_names_its_page(capsys, tmp_path, made_up):
    folder = tmp_path / "new" / "folder"
    words = ("accuracy", "--tier", "quick", "--targets", "bernoulli", "--methods", "bernflow-thorough", "pymc-advi")
    code, out, err = run(capsys, *words, "--out", str(folder))
    assert (code, out) == (0, f"{folder / 'README.md'}\n")
    assert "[1/2] bernoulli, bernflow-thorough, key 0: KL 0.1000" in err
    assert len(json.loads((folder / "accuracy.json").read_text())["records"]) == 3  # one of them with our budget
    assert "| Bernoulli |" in (folder / "README.md").read_text(encoding="utf-8")
    assert "--tier quick`." in (folder / "README.md").read_text(encoding="utf-8")


def test_results_lie_in_the_current_folder_by_default(capsys, tmp_path, monkeypatch, made_up):
    monkeypatch.chdir(tmp_path)
    for tier, folder in (("full", "results"), ("quick", "results-quick")):
        assert run(capsys, "accuracy", "--tier", tier, "--targets", "bernoulli", "--methods", "bernflow")[0] == 0
        assert (tmp_path / folder / "accuracy" / "README.md").is_file()


def test_lists_targets_and_methods(capsys):
    code, out, _ = run(capsys, "accuracy", "--list")
    assert code == 0
    for words in ("paper        diamonds\n", "stress       funnel-10\n", "posteriordb  sblrc-blr\n", "flowjax-spline"):
        assert words in out


def speed_runner(tasks, jobs, seconds):
    machine = {"processor": "abacus", "cores": 1, "memory_gb": None, "system": "s", "python": "3", "platform": "cpu"}
    machine |= {"device": "1 x cpu", "load": None, "packages": {}}
    for task in tasks:
        yield task, {"status": "ok", "seconds": 0.5, **machine}


def test_speed_writes_and_names_its_page(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark.speed, "Suite", functools.partial(benchmark.speed.Suite, runner=speed_runner))
    monkeypatch.chdir(tmp_path)
    for option, folder in (("--tiny", "results-tiny"), ("--quick", "results-quick"), ("--full", "results")):
        code, out, err = run(capsys, "speed", option, "--parts", "restarts")
        assert (code, out) == (0, f"{folder}/speed/README.md\n")
        assert "restarts, restarts, 1, round 1: seconds 0.5" in err
        page = (tmp_path / folder / "speed" / "README.md").read_text(encoding="utf-8")
        assert "Measured on abacus, 1 cores; JAX computes on 1 x cpu (cpu)." in page
        assert f"Made by `bernflow benchmark speed {option}`." in page
        assert (tmp_path / folder / "speed" / "speed.json").is_file()


def test_lists_parts(capsys):
    code, out, _ = run(capsys, "speed", "--list")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()][:3] == ["steps", "wall", "growth"]


def test_every_suite_explains_itself(capsys):
    for suite in benchmark.SUITES:
        code, out, _ = run(capsys, suite.name, "--help")
        assert code == 0
        assert f"usage: bernflow benchmark {suite.name}" in out
    assert "accuracy " in run(capsys, "--help")[1]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ((), 2, "the following arguments are required: SUITE"),
        (("speeed",), 2, "Did you mean 'speed'?"),
        (("accuracy", "--tier", "huge"), 2, "there is no 'huge': expected one of"),
        (("accuracy", "--targets", "fnnel", "--out", "x"), 1, "There is no target fnnel"),
        (("speed", "--parts", "stps"), 2, "Did you mean 'steps'?"),
        (("speed", "--quick", "--full"), 2, "not allowed with argument"),
        (("speed", "--time-limit", "0", "--out", "x"), 1, "--time-limit 0: expected a positive number"),
        (("accuracy", "--keys", "0", "--out", "x"), 1, "--keys 0: expected a whole number"),
    ],
)
def test_wrong_command_lines(capsys, tmp_path, monkeypatch, words, code, message):
    monkeypatch.chdir(tmp_path)
    found = run(capsys, *words)
    assert found[:2] == (code, "")
    assert message in found[2]
