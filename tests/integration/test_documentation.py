"""Every example of the pages runs and prints what its page shows, and every link leads somewhere."""

import contextlib
import importlib.util
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


outputs, shown = load(ROOT / "docs" / "outputs.py"), load(ROOT / "tests" / "docs" / "shown.py")
# Code, and its output where the page shows one.
SHOWN = {
    f"{page.relative_to(ROOT)}-{i}": block
    for page in PAGES
    for i, block in enumerate(outputs.shown(page.read_text(encoding="utf-8")))
}
EXAMPLES = {name: code for name, (code, _) in SHOWN.items()}
# The home page shows what the README does.
SAME = {"docs/index.md-0": "README.md-0"}
# Run as they are in every run, and their outputs compared: the first things that a reader pastes.
WHOLE = {
    "README.md-0",
    "README.md-1",
    "README.md-2",
    "docs/start.md-0",
    "docs/tutorials/regression.md-0",
    "docs/tutorials/separate-modes.md-0",
}
# Run, and compared, as notebooks.
TUTORIALS = {name for name in EXAMPLES if name.startswith("docs/tutorials/")}
# Examples may need more than Python packages.
HAS_STAN = importlib.util.find_spec("httpstan") is not None and any(map(shutil.which, ("g++", "clang++", "c++")))


def whole(name):
    marks = [] if name in WHOLE else [pytest.mark.slow]
    if "from_stan(" in EXAMPLES[name]:
        marks.append(pytest.mark.skipif(not HAS_STAN, reason="what Stan needs is not installed"))
    return pytest.param(name, marks=marks)


@pytest.fixture(scope="module")
def untrained():
    return load(ROOT / "tests" / "docs" / "untrained.py")


def execute(name):
    exec(compile(EXAMPLES[name], name, "exec"), {"__name__": "example"})


def test_there_are_examples():
    assert len(EXAMPLES) >= 5
    assert set(EXAMPLES) >= WHOLE
    assert all(SHOWN[name][1] for name in WHOLE)
    pages = {name.rsplit("-", 1)[0] for name, (_, output) in SHOWN.items() if output}
    assert pages >= {str(page.relative_to(ROOT)) for page in outputs.OTHER_PAGES}


def test_the_home_page_has_the_example_of_the_readme():
    assert all(SHOWN[name] == SHOWN[other] for name, other in SAME.items())


@pytest.mark.parametrize("name", [whole(name) for name in EXAMPLES if name not in (TUTORIALS | set(SAME)) - WHOLE])
def test_example_runs_and_prints_what_the_page_shows(name, tmp_path, monkeypatch, capsys):
    # Each by itself, as a reader would paste it. A poor verdict warns, and a warning fails.
    monkeypatch.chdir(tmp_path)
    execute(name)
    printed = capsys.readouterr().out
    if SHOWN[name][1]:
        assert shown.differences(SHOWN[name][1], printed) == [], "run python docs/outputs.py"


def test_an_output_that_is_stale_is_noticed():
    """Of every page: another verdict, another mean, another form."""
    for name, (_, output) in SHOWN.items():
        if "Posterior (" in output:
            assert shown.differences(output, output) == []
            assert shown.differences(re.sub(r"(Good|Usable) \(", "Poor (", output), output), name
            assert shown.differences(output.replace("; 4,000 draws", ""), output), name
            moved = re.sub(r"^(  \S+ +)(-?\d\.\d+)", lambda m: f"{m[1]}{float(m[2]) + 0.3:.4f}", output, flags=re.M)
            assert shown.differences(moved, output), name


# The tutorials are trained, for a few steps, where they run as notebooks.
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in WHOLE | set(SAME) | TUTORIALS])
def test_example_runs_without_training(name, tmp_path, monkeypatch, untrained):
    monkeypatch.chdir(tmp_path)
    untrained.install(monkeypatch.setattr)
    with contextlib.suppress(untrained.Enough):
        execute(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
