"""Every public name stands in the reference, with a docstring and an example."""

import inspect
import pkgutil
import re
from pathlib import Path

import pytest

import bernflow
import bernflow.numpyro
import bernflow.plots

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "reference").glob("*.md"))
# What a page shows: the path that mkdocstrings reads, and the name under which users know it.
DIRECTIVE = re.compile(
    r"^::: (?P<path>\S+)\n    options:\n      heading: (?P<name>\S+)\n(?P<more>(?: {6}.*\n)*)", re.MULTILINE
)
SHOWN = [match for page in PAGES for match in DIRECTIVE.finditer(page.read_text(encoding="utf-8"))]

PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (bernflow, bernflow.plots, bernflow.numpyro)
    for name in module.__all__
}
METHODS = {
    f"bernflow.Posterior.{name}": member
    for kind in (bernflow.Posterior, bernflow.Posterior.__base__)
    for name, member in vars(kind).items()
    if not name.startswith("_")
}


def test_every_directive_is_understood():
    count = sum(page.read_text(encoding="utf-8").count("\n::: ") for page in PAGES)
    assert count == len(SHOWN)


def test_the_reference_shows_every_public_name_and_nothing_else():
    assert sorted(match["name"] for match in SHOWN) == sorted(PUBLIC)


@pytest.mark.parametrize("match", SHOWN, ids=lambda match: match["name"])
def test_a_name_leads_to_what_it_says(match):
    assert pkgutil.resolve_name(match["path"]) is PUBLIC[match["name"]]


def test_the_methods_of_a_posterior_are_shown():
    (posterior,) = [match for match in SHOWN if match["name"] == "bernflow.Posterior"]
    assert len(METHODS) >= 12
    assert posterior["more"] == "      inherited_members: true\n"


@pytest.mark.parametrize("name", [*PUBLIC, *METHODS])
def test_a_public_name_has_a_docstring_with_an_example(name):
    # Of the object itself: an inherited docstring is about something else.
    text = {**PUBLIC, **METHODS}[name].__doc__ or ""
    assert len(text.strip().splitlines()[0]) > 10
    assert "Example:\n" in text
    assert ">>> " in text.partition("Example:\n")[2]


@pytest.mark.parametrize("name", PUBLIC)
def test_what_the_reference_shows_of_a_class_has_docstrings(name):
    members = vars(PUBLIC[name]) if inspect.isclass(PUBLIC[name]) else {}
    documented = (property, classmethod, staticmethod)
    missing = [
        member
        for member, value in members.items()
        if not member.startswith("_") and (inspect.isfunction(value) or isinstance(value, documented))
        if not value.__doc__
    ]
    assert missing == []
