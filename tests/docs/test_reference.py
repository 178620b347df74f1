"""The reference has every public name, with its arguments, what it returns, an example and a link to a guide."""

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
# An entry of a page: the path that mkdocstrings reads, the public name, options, and the text up to the next entry.
DIRECTIVE = re.compile(
    r"^::: (?P<path>\S+)\n    options:\n      heading: (?P<name>\S+)\n(?P<more>(?: {6}.*\n)*)"
    r"(?P<text>(?:(?!:::).*\n)*)",
    re.MULTILINE,
)
GUIDE = re.compile(r"\]\(\.\./(?:(?:how-to|tutorials)/[\w-]+|start)\.md(?:#[\w-]+)?\)")
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


def members_shown(match):
    """Functions of a class that the reference shows; properties have no arguments."""
    kind = PUBLIC[match["name"]]
    if not inspect.isclass(kind) or "members: false" in match["more"]:
        return {}
    plain = {name: getattr(value, "__func__", value) for name, value in vars(kind).items() if not name.startswith("_")}
    return {f"{match['name']}.{name}": value for name, value in plain.items() if inspect.isfunction(value)}


# Errors take a message, and a posterior is made by `fit` and `load`.
CALLABLE = {name: value for name, value in PUBLIC.items() if not name.endswith(("Error", ".Posterior"))}
CALLABLE |= {name: value for name, value in METHODS.items() if inspect.isfunction(value)}
CALLABLE |= {name: value for match in SHOWN for name, value in members_shown(match).items()}


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


@pytest.mark.parametrize("match", SHOWN, ids=lambda match: match["name"])
def test_an_entry_links_to_a_guide(match):
    assert GUIDE.search(match["text"])


def test_every_method_of_a_posterior_has_a_guide():
    text = (ROOT / "docs" / "reference" / "posterior.md").read_text(encoding="utf-8")
    rows = [line.split("|")[2:4] for line in text.splitlines() if line.startswith("| ")]
    named = {name for names, guide in rows if GUIDE.search(guide) for name in re.findall(r"`(\w+)`", names)}
    assert named - {"diagnostics"} == {name.rsplit(".", 1)[1] for name in METHODS}


@pytest.mark.parametrize("name", CALLABLE)
def test_every_argument_is_documented(name):
    text = inspect.getdoc(CALLABLE[name]) or ""
    missing = [
        parameter
        for parameter in inspect.signature(CALLABLE[name]).parameters
        # Keywords are collected as `unknown` in order to refuse them.
        if parameter not in ("self", "unknown") and not parameter.startswith("_")
        if not re.search(rf"^ +\*{{0,2}}{parameter}(?: \(.*\))?: |`\*{{0,2}}{parameter}`", text, flags=re.MULTILINE)
    ]
    assert missing == []


@pytest.mark.parametrize("name", [name for name, value in CALLABLE.items() if inspect.isfunction(value)])
def test_what_is_returned_is_documented(name):
    if inspect.signature(CALLABLE[name]).return_annotation in (None, "None"):
        return
    text = inspect.getdoc(CALLABLE[name]) or ""
    assert "Returns:\n" in text or re.search(r"\b[Rr]eturn\b|^Draw\b", text.splitlines()[0])
