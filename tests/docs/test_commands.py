"""Every shell command of the pages, and of the command line's own help, runs or is at least understood.

A command is run where that is cheap (without training in the fast suite, as it stands in the slow one). The others are
named here with the reason, and checked as far as that goes: by the parser of `bernflow`, the Makefile, the extras.
"""

import importlib.util
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from benchmarks.commands import COMMANDS as OTHERS
from benchmarks.commands.benchmark import SUITES
from bernflow.cli import main
from bernflow.cli.app import COMMANDS, make_parser

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAMS = ("bernflow", "make", "python", "pip", ".ci/run", "echo", "jq")
# Why a command is not run here.
INSTALLS = "installs packages"
MAKE = "installs packages into a new environment; `make -n` shows that the target exists"
HOURS = "takes minutes to hours; the tests of its suite run it at a tiny scale"
STAN = "compiles a Stan program; test_stan does that"
OTHER = "another program"
REASONS = {
    r"pip install .*": INSTALLS,
    r"make .*": MAKE,
    r"\.ci/run": "runs this very suite",
    r"bernflow benchmark \w+\b(?! --list).*": HOURS,
    r"bernflow reproduce (?!--list).*": HOURS,
    r"bernflow data melanoma .*": "needs pictures that are downloaded by hand; the tests of the experiment run it",
    r"bernflow fit \S+\.stan .*": STAN,
    r"bernflow (fit|report|benchmark)": "names the command, without what it needs",
    r"python -m benchmarks\..*": "takes hours",
    r"python docs/.*": "the tests of the pages run what it does",
    r"jq .*": OTHER,
}
MODEL = """
import numpyro, numpyro.distributions as dist

def model(N, y):
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mu, 1).expand([N]), obs=y)
"""


def commands():
    """Return the commands of all pages and of the help, with where they stand."""
    found = {}
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        blocks = re.findall(r"^```(?:sh|bash|console|shell)\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
        lines = [line for block in blocks for line in block.splitlines()]
        prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
        lines += [span for span in re.findall(r"`([^`\n]+)`", prose) if re.match(r"(bernflow|make|python|pip) ", span)]
        found |= {line: str(page.relative_to(ROOT)) for line in map(clean, lines) if line}
    for command in (*COMMANDS, *OTHERS, *SUITES):
        examples = re.findall(r"^  (bernflow [^\n]+)", command.epilog, flags=re.MULTILINE)
        found = {**{clean(line): f"bernflow {command.name} --help" for line in examples}, **found}
    return found


def clean(line):
    """Leave out a comment, and what only stands for a name."""
    line = re.split(r"\s{2,}#|\s#\s", line)[0].strip().removeprefix("$ ")
    return re.sub(r"\b(NAME|RUN)\b", "cauchy", line).replace("benchmark SUITE", "benchmark accuracy")


def parts(command):
    """Split a pipeline, each part without where its output goes."""
    return [re.sub(r"\s*>\s*\S+$", "", part.strip()) for part in re.split(r"\s\|\s", command)]


FOUND = commands()
BERNFLOW = [part for command in FOUND for part in parts(command) if part.startswith("bernflow ")]


def reason(part):
    return next((why for pattern, why in REASONS.items() if re.fullmatch(pattern, part)), None)


RUN = [part for part in dict.fromkeys(BERNFLOW) if reason(part) is None]
# In the fast suite those of the pages; the examples of the help are variations of them.
ON_PAGES = [part for part in RUN if not FOUND.get(part, "").endswith("--help")]


def test_there_are_commands_and_all_programs_are_known():
    assert len(FOUND) > 30
    assert len(RUN) >= 8
    assert {part.split()[0] for command in FOUND for part in parts(command)} <= set(PROGRAMS)


def test_every_reason_is_needed():
    every = [part for command in FOUND for part in parts(command)]
    assert [pattern for pattern in REASONS if not any(re.fullmatch(pattern, part) for part in every)] == []


@pytest.mark.parametrize("command", dict.fromkeys(BERNFLOW))
def test_the_command_line_is_understood(command, capsys):
    words = shlex.split(command)[1:]
    if reason(command) == REASONS[r"bernflow (fit|report|benchmark)"]:
        words.append("--help")
    assert exit_code(words) == 0, capsys.readouterr().err


def exit_code(words):
    """Parse only; a wrong command line would end the program."""
    try:
        make_parser().parse_args(words)
    except SystemExit as stop:  # also after --help, with 0
        return stop.code
    return 0


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_the_makefile_has_the_targets():
    named = {word for command in FOUND if command.startswith("make ") for word in command.split()[1:]}
    targets = sorted(word for word in named if re.fullmatch(r"[a-z-]+", word))
    assert {"demo", "test", "docs", "notebooks", "lint"} <= set(targets)
    done = subprocess.run(["make", "-n", *targets], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_extras_modules_and_files_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    wanted = {name for group in re.findall(r"bernflow\[([\w,]+)\]", text) for name in group.split(",")}
    assert wanted <= set(extras)
    for command in FOUND:
        if match := re.match(r"python -m ([\w.]+)", command):
            assert (ROOT / match[1].replace(".", "/") / "__main__.py").exists() or (
                ROOT / f"{match[1].replace('.', '/')}.py"
            ).exists()
        if match := re.match(r"python (docs/\S+)|(\.ci/run)", command):
            assert (ROOT / (match[1] or match[2])).exists()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with the files that the pages speak of."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)
    echo = next(command for command in FOUND if command.startswith("echo "))
    subprocess.run(echo, shell=True, check=True, executable="/bin/sh")
    assert (tmp_path / "data.json").exists()
    (tmp_path / "data.csv").write_text("y\n0.3\n1.2\n-0.4\n")
    return tmp_path


def run_all(commands, capsys):
    # Demo and fit make what others read, here as on the pages.
    order = sorted(commands, key=lambda command: command.split()[1] not in ("demo", "fit"))
    for out in ("schools", "schools-pooled"):
        assert main(["fit", "model.py", "data.json", "--out", out, "--quiet"]) == 0
    for command in order:
        code = main(shlex.split(command)[1:])
        out, err = capsys.readouterr()
        assert code == 0, f"{command} ({FOUND.get(command)}): {err}"
        assert out
    assert {"demo", "schools-report.html", "page.html"} <= {path.name for path in Path.cwd().iterdir()}


def test_commands_run_without_training(folder, monkeypatch, capsys):
    spec = importlib.util.spec_from_file_location("untrained", ROOT / "tests" / "docs" / "untrained.py")
    untrained = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(untrained)
    untrained.install(monkeypatch.setattr)
    run_all(ON_PAGES, capsys)


@pytest.mark.slow
def test_commands_run(folder, capsys):
    run_all(RUN, capsys)
