"""The gallery shows code, verdict and picture of every kind of model, and fails where one of them is missing."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
KINDS = {
    "Regression",
    "Hierarchical model",
    "Item response",
    "Time series",
    "Gaussian process",
    "Mixture",
    "Differential equation",
    "Semi-structured model",
}


@pytest.fixture(scope="module")
def gallery():
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "docs" / "gallery.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sections(text):
    return dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", text, flags=re.DOTALL | re.MULTILINE))


def test_every_kind_of_model_has_code_a_verdict_and_a_picture(gallery):
    found = sections(gallery.expand(TEXT))
    assert set(found) >= KINDS
    for kind, text in found.items():
        assert re.search(r"^```python\n.{200,}?^```$", text, flags=re.DOTALL | re.MULTILINE), kind
        assert "bf." in text, kind
        assert re.search(r"\b(?:good|usable|poor)\b", text, flags=re.IGNORECASE), kind
        assert not re.search("<!-- (?!output|end of output)", text), kind
        pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
        assert len(pictures) == 1, kind
        assert (ROOT / "docs" / pictures[0]).stat().st_size > 5000, kind
        # Its thumbnail.
        assert f"({pictures[0]}){{ width=180 }}" in TEXT, kind


def test_the_table_names_every_section_once():
    named = re.findall(r"^\|.*\| \[([^]]+)\]\(#[\w-]+\)", TEXT, flags=re.MULTILINE)
    assert named == list(sections(TEXT))


def test_code_and_verdict_are_those_of_the_page(gallery):
    page = (ROOT / "docs" / "tutorials" / "regression.md").read_text(encoding="utf-8")
    code = gallery.code("docs/tutorials/regression.md").removeprefix("```python\n").removesuffix("\n```")
    assert f"```python\n{code}\n```" in page
    quoted = gallery.verdict("docs/tutorials/regression.md").removeprefix("> ")
    assert quoted.split()[0] in ("Good", "Usable", "Poor")
    assert quoted in " ".join(page.split())


def test_what_is_missing_is_an_error(gallery, tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text("# Nothing here\n")
    monkeypatch.setattr(gallery, "ROOT", tmp_path)
    with pytest.raises(LookupError, match=r"not a Python block in page\.md"):
        gallery.expand("<!-- code: page.md -->")
    with pytest.raises(LookupError, match=r"not a verdict in the outputs of page\.md"):
        gallery.expand("<!-- verdict: page.md -->")
