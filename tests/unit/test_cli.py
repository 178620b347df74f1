import runpy
import warnings

import pytest

import bernflow as bf
from bernflow.cli import main
from bernflow.cli.app import COMMANDS
from bernflow.cli.demo import EFFECTS, ERRORS, eight_schools


def run(capsys, *words):
    code = main(words)
    out, err = capsys.readouterr()
    return code, out, err


def failing(error):
    def fit(*args, **kwargs):
        raise error

    return fit


def test_help_lists_every_command(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for command in COMMANDS:
        assert f"{command.name} " in out
        assert command.summary in out


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_explains_itself(capsys, command):
    code, out, _ = run(capsys, command.name, "--help")
    assert code == 0
    assert f"usage: bernflow {command.name}" in out


def test_the_package_runs_as_a_module(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["bernflow", "--version"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("bernflow", run_name="__main__")
    assert stop.value.code == 0
    assert capsys.readouterr().out.startswith("bernflow ")


def test_version(capsys):
    from importlib.metadata import version

    assert run(capsys, "--version")[:2] == (0, f"bernflow {version('bernflow')}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "commands:"),
        (("frobnicate",), "there is no 'frobnicate': expected one of demo, fit"),
        (("demo", "--seed", "one"), "argument --seed: invalid int value: 'one'"),
        (("demo", "--sede", "1"), "unrecognized arguments: --sede 1"),
    ],
)
def test_wrong_command_line(capsys, words, message):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert message in err


@pytest.mark.parametrize("words", [(), ("frobnicate",)])
def test_without_a_known_command_the_known_ones_are_listed(capsys, words):
    err = run(capsys, *words)[2]
    assert [command.name for command in COMMANDS if command.name not in err] == []


def test_folder_that_cannot_be_made_fails_before_the_fit(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(bf, "fit", failing(AssertionError("fitted")))
    file = tmp_path / "file"
    file.touch()
    code, _, err = run(capsys, "demo", "--out", str(file))
    assert (code, err) == (1, f"bernflow: {file}: File exists.\n")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (bf.ModelError("The model is odd: mend it."), 1, "bernflow: The model is odd: mend it.\n"),
        (KeyboardInterrupt(), 130, "bernflow: interrupted.\n"),
        (OSError(28, "No space left on device"), 1, "bernflow: No space left on device.\n"),
    ],
)
def test_errors_are_one_sentence(capsys, tmp_path, monkeypatch, error, code, message):
    monkeypatch.setattr(bf, "fit", failing(error))
    assert run(capsys, "demo", "--quiet", "--out", str(tmp_path)) == (code, "", message)


def test_errors_of_the_program_itself_are_not_hidden(tmp_path, monkeypatch):
    monkeypatch.setattr(bf, "fit", failing(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["demo", "--quiet", "--out", str(tmp_path)])


@pytest.fixture(scope="module")
def posterior():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="bernflow: Poor")
        return bf.fit(eight_schools, EFFECTS, ERRORS, key=3, family="gaussian", steps=50, progress=False)


@pytest.mark.parametrize("quiet", [False, True])
def test_demo(capsys, tmp_path, monkeypatch, quiet, posterior):
    asked = []

    def fit(model, *args, **options):
        asked.append(options)
        return posterior

    monkeypatch.setattr(bf, "fit", fit)
    folder = tmp_path / "new" / "folder"
    code, out, _ = run(capsys, "demo", "--out", str(folder), "--seed", "3", *["--quiet"] * quiet)
    assert code == 0
    assert asked == [{"key": 3, "progress": not quiet}]
    assert (folder / "posterior.png").stat().st_size < 200_000
    assert "theta[7]" in (folder / "report.html").read_text()  # with the model, and so with what it derives
    loaded = bf.load(folder / "posterior.bernflow")
    assert loaded.names == ("mu", "tau", "theta_trans")
    assert loaded.diagnostics.status.split(":")[0] in out
    for name in ("posterior.png", "report.html", "posterior.bernflow"):
        assert str(folder / name) in out
    if not quiet:
        words = [
            "k-hat",
            "ESS",
            "ELBO",
            "log evidence",
            "exact: -31.3113",
            "mu",
            "tau",
            *(f"theta[{i}]" for i in range(8)),
        ]
        assert [word for word in words if word not in out] == []
        assert "theta_trans" not in out
        printed = out.replace(str(folder), "demo").splitlines()
        assert max(map(len, printed)) <= 80
