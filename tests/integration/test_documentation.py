"""Every example of the README and of the documentation runs, and every link leads somewhere."""

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
# Pages whose examples need more than Python packages that are always there; what they compile other tests compile, too.
NEEDS = {
    "docs/how-to/stan.md": (
        "stan",
        importlib.util.find_spec("httpstan") is not None and any(map(shutil.which, ("g++", "clang++", "c++"))),
    ),
}
# Tutorials that compile several flows of some dimensions.
SLOW = {f"docs/tutorials/{name}.md" for name in ("eight-schools", "neural-network", "separate-modes")}


def parameter(name):
    page = name.rpartition("-")[0]
    if page in SLOW:
        return pytest.param(name, marks=pytest.mark.slow)
    group, is_there = NEEDS.get(page, (None, True))
    if group is None:
        return name
    missing = pytest.mark.skipif(not is_there, reason=f"what {group} needs is not installed")
    return pytest.param(name, marks=[missing, pytest.mark.xdist_group(group)])


def test_there_are_examples():
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize("name", [parameter(name) for name in EXAMPLES])
def test_example_runs(name, tmp_path, monkeypatch):
    # Each by itself, as a reader would paste it. A poor verdict warns, and a warning fails.
    monkeypatch.chdir(tmp_path)
    exec(compile(EXAMPLES[name], name, "exec"), {"__name__": "example"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)\)", page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []
