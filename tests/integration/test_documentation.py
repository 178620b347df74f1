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
# Run as they are in every run: the first thing that a reader pastes.
WHOLE = {"README.md-0"}
# Pages whose examples need more than Python packages that are always there.
HAS_STAN = importlib.util.find_spec("httpstan") is not None and any(map(shutil.which, ("g++", "clang++", "c++")))
NEED_STAN = ("docs/how-to/stan.md", "docs/tutorials/stan.md")


def whole(name):
    marks = [] if name in WHOLE else [pytest.mark.slow]
    if name.rpartition("-")[0] in NEED_STAN:
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


@pytest.mark.parametrize("name", [whole(name) for name in EXAMPLES])
def test_example_runs(name, tmp_path, monkeypatch):
    # Each by itself, as a reader would paste it. A poor verdict warns, and a warning fails.
    monkeypatch.chdir(tmp_path)
    execute(name)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in WHOLE])
def test_example_runs_without_training(name, tmp_path, monkeypatch, untrained):
    monkeypatch.chdir(tmp_path)
    untrained.install(monkeypatch.setattr)
    with contextlib.suppress(untrained.Enough):
        execute(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
