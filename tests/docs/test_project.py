"""The files that describe the project agree with each other."""

import re
import tomllib
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_the_citation_is_that_of_this_version_and_names_the_paper():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (citation["title"], citation["version"], citation["license"]) == tuple(
        PROJECT[name] for name in ("name", "version", "license")
    )
    paper = citation["preferred-citation"]
    assert paper["title"] == "Bernstein Flows for Flexible Posteriors in Variational Bayes"
    assert paper["doi"].removeprefix("10.48550/arXiv.") == paper["url"].removeprefix("https://arxiv.org/abs/")
    names = [author["family-names"] for author in paper["authors"]]
    assert names == ["Dürr", "Hörling", "Dold", "Kovylov", "Sick"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in names if name not in readme] == []


def test_the_workflow_runs_what_there_is_on_every_supported_python():
    text = (ROOT / ".github" / "workflows" / "checks.yml").read_text(encoding="utf-8")
    jobs = yaml.safe_load(text)["jobs"]
    assert set(jobs) == {"test", "lint", "docs", "lowest-dependencies", "wheel", "slow"}
    supported = [line.rsplit(" ", 1)[1] for line in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d", line)]
    assert jobs["test"]["strategy"]["matrix"]["python"] == supported
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"make ([a-z-]+)$", text, flags=re.MULTILINE)
    assert {"test", "test-slow", "lint", "types", "docs"} == set(targets)
    assert [target for target in targets if not re.search(rf"^{target}:", makefile, flags=re.MULTILINE)] == []
    folders = re.findall(r"tests/[\w/]+", text)
    assert folders
    assert [folder for folder in folders if not (ROOT / folder).is_dir()] == []
