"""Every example of the README and of the documentation runs, and every link leads somewhere."""

import contextlib
import importlib.util
import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = {
    f"{page.relative_to(ROOT)}-{i}": block
    for page in PAGES
    for i, block in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    )
}
# The home page shows what the README does.
SAME = {"docs/index.md-0": "README.md-0"}
# Run as they are in every run: the first thing that a reader pastes.
WHOLE = {"README.md-0"}
# Examples may need more than Python packages.
HAS_STAN = importlib.util.find_spec("httpstan") is not None and any(map(shutil.which, ("g++", "clang++", "c++")))


def whole(name):
    marks = [] if name in WHOLE else [pytest.mark.slow]
    if "from_stan(" in EXAMPLES[name]:
        marks.append(pytest.mark.skipif(not HAS_STAN, reason="what Stan needs is not installed"))
    return pytest.param(name, marks=marks)


@pytest.fixture(scope="module")
def untrained():
    spec = importlib.util.spec_from_file_location("untrained", ROOT / "tests" / "docs" / "untrained.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def execute(name):
    exec(compile(EXAMPLES[name], name, "exec"), {"__name__": "example"})


def test_there_are_examples():
    assert len(EXAMPLES) >= 5
    assert set(EXAMPLES) >= WHOLE


def test_the_home_page_has_the_example_of_the_readme():
    assert all(EXAMPLES[name] == EXAMPLES[other] for name, other in SAME.items())


@pytest.mark.parametrize("name", [whole(name) for name in EXAMPLES if name not in SAME])
def test_example_runs(name, tmp_path, monkeypatch):
    # Each by itself, as a reader would paste it. A poor verdict warns, and a warning fails.
    monkeypatch.chdir(tmp_path)
    execute(name)


# The tutorials are trained, for a few steps, where they run as notebooks.
@pytest.mark.parametrize(
    "name", [name for name in EXAMPLES if not (name in WHOLE or name in SAME or "docs/tutorials/" in name)]
)
def test_example_runs_without_training(name, tmp_path, monkeypatch, untrained):
    monkeypatch.chdir(tmp_path)
    untrained.install(monkeypatch.setattr)
    with contextlib.suppress(untrained.Enough):
        execute(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
