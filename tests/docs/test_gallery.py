"""The gallery shows code that runs elsewhere, its verdict and its picture, and fails where one of them is missing."""

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


def test_every_kind_of_model_has_code_and_a_verdict(gallery):
    found = sections(gallery.expand(TEXT))
    assert set(found) >= KINDS
    for kind, text in found.items():
        assert re.search(r"^```(?:python|stan)\n.{200,}?^```$", text, flags=re.DOTALL | re.MULTILINE), kind
        assert re.search(r"\b(?:good|usable|poor)\b", text, flags=re.IGNORECASE), kind
        assert "<!--" not in text, kind


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


def test_functions_of_a_module(gallery):
    text = gallery.code("benchmarks/models/grouped.py item_response")
    assert text.startswith("```python\ndef item_response(")
    assert "item_response_data" not in text


def test_columns_of_a_row(gallery, tmp_path, monkeypatch):
    tables = ("| x | y | z |\n|---|---|---|\n| 1 | 2 | 3 |\n| 4 | 5 | 6 |", "| x | y |\n|---|---|\n| 1 | 7 |")
    page = "# T\n\n## a\n\n{}\n\n## b\n\n{}\n".format(*tables)
    (tmp_path / "page.md").write_text(page)
    monkeypatch.setattr(gallery, "ROOT", tmp_path)
    assert gallery.row("page.md | a | 1 | z, x") == "| z | x |\n| --- | --- |\n| 3 | 1 |"
    assert gallery.row("page.md | b | 1 | y") == "| y |\n| --- |\n| 7 |"
    with pytest.raises(LookupError, match=r"found 0 rows that begin with \['9'\], expected 1"):
        gallery.row("page.md | a | 9 | x")


def test_what_is_missing_is_an_error(gallery, tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text("# Nothing here\n")
    (tmp_path / "module.py").write_text("x = 1\n")
    monkeypatch.setattr(gallery, "ROOT", tmp_path)
    with pytest.raises(LookupError, match=r"not a Python block in page\.md"):
        gallery.expand("<!-- code: page.md -->")
    with pytest.raises(LookupError, match=r"not a verdict in the outputs of page\.md"):
        gallery.expand("<!-- verdict: page.md -->")
    with pytest.raises(LookupError, match=r"module\.py has no function f: correct the comment"):
        gallery.expand("<!-- code: module.py f -->")
