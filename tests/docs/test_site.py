"""The site builds in strict mode, with every public name, the kept results and the drawings in it."""

import ast
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bernflow
import bernflow.numpyro
import bernflow.plots

ROOT = Path(__file__).parents[2]
ASSETS = ROOT / "docs" / "assets"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    pytest.importorskip("mkdocs", reason="the documentation's tools are not installed")
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet: what is not logged does not count as a warning.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("module", [bernflow, bernflow.plots, bernflow.numpyro], ids=lambda module: module.__name__)
def test_every_public_name_has_a_heading(site, module):
    text = "".join(page.read_text(encoding="utf-8") for page in (site / "reference").rglob("*.html"))
    headings = set(re.findall(r"<h2[^>]*>\s*(?:<span[^>]*>)?\s*([\w.]+)", text))
    missing = [name for name in module.__all__ if f"{module.__name__}.{name}" not in headings]
    assert missing == []


def test_kept_results_and_drawings_are_there(site):
    gallery = (site / "experiments" / "index.html").read_text(encoding="utf-8")
    pictures = re.findall(r'<img[^>]* src="([^"]+)"', gallery)
    assert len(pictures) >= 10
    assert [picture for picture in pictures if not (site / "experiments" / picture).exists()] == []
    assert (site / "results" / "cauchy" / "index.html").exists()
    assert {path.name for path in (site / "assets").glob("*.svg")} >= {
        "architecture.svg",
        "layers.svg",
        "polynomial.svg",
        "tails.svg",
    }


def test_every_page_is_in_the_navigation():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert [page for page in pages if not re.search(rf"\s{re.escape(page)}$", config, flags=re.MULTILINE)] == []


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_drawings_come_from_their_script(tmp_path):
    drawings = script("drawings")
    assert {f"{name}.svg" for name in drawings.DRAWINGS} == {path.name for path in ASSETS.glob("*.svg")}
    drawings.DRAWINGS["tails"]().savefig(tmp_path / "tails.svg")
    assert (tmp_path / "tails.svg").stat().st_size > 10_000


def test_the_drawing_of_the_architecture_has_the_layers_of_its_test():
    contract = ast.parse((ROOT / "tests" / "contract" / "test_architecture.py").read_text(encoding="utf-8"))
    layers = next(
        ast.literal_eval(node.value)
        for node in contract.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "LAYERS"
    )
    rank = {name: number for number, layer in enumerate(layers) for name in layer}
    drawn = [rank[name] for row in script("drawings").PACKAGES for names, _ in row for name in names.split("\n")]
    assert drawn == sorted(drawn)
    assert set(drawn) == set(range(1, len(layers)))  # all but the first, which holds what everybody needs


def test_formulas_are_typeset_by_the_files_of_the_site(site):
    page = (site / "explanation" / "the-flow" / "index.html").read_text(encoding="utf-8")
    formulas = re.findall(r'<(span|div) class="arithmatex">(\\[(\[].*?\\[)\]])</\1>', page, flags=re.DOTALL)
    assert len(formulas) >= 20
    assert {kind for kind, _ in formulas} == {"span", "div"}
    assert not re.search(r"\$[^$\n]{1,80}\$", re.sub(r"<(pre|code|script)\b.*?</\1>", "", page, flags=re.DOTALL))
    sources = re.findall(r'(?:src|href)="([^"]*(?:katex|math)[^"]*)"', page)
    assert {Path(source).name for source in sources} == {"katex.min.js", "katex.min.css", "math.js"}
    assert [source for source in sources if not (site / "explanation" / "the-flow" / source).exists()] == []
    style = (site / "assets" / "katex" / "katex.min.css").read_text(encoding="utf-8")
    fonts = set(re.findall(r"url\(([^)]+)\)", style))
    assert fonts
    assert [font for font in fonts if not (site / "assets" / "katex" / font).exists()] == []


def test_no_page_loads_anything_from_another_server(site):
    # Links may lead elsewhere; what a page loads must not.
    loaded = (
        r'<(?:script|img|iframe)[^>]*\ssrc="(?:https?:)?//[^"]*"|<link[^>]*rel="stylesheet"[^>]*href="https?:[^"]*"'
    )
    pages = {page.relative_to(site): page.read_text(encoding="utf-8") for page in site.rglob("*.html")}
    assert {str(page): found for page, text in pages.items() if (found := re.findall(loaded, text))} == {}


def test_every_tutorial_says_what_to_do_next_and_can_be_downloaded(site):
    for page in sorted((ROOT / "docs" / "tutorials").glob("*.md")):
        if page.stem == "index":
            continue
        headings = re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert headings[-1] == "What to do next", page.stem
        built = (site / "tutorials" / page.stem / "index.html").read_text(encoding="utf-8")
        assert f'href="../{page.stem}.ipynb"' in built
        assert (site / "tutorials" / f"{page.stem}.ipynb").exists()


def test_formulas_in_the_text_keep_their_underscores():
    """After a bracket, an underscore begins or ends what Markdown sets in italics, as in (e + S e)_j."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    typeset = r"```.*?```|`[^`]*`|\$\$.*?\$\$|\$[^$\n]+\$"
    plain = {page: re.sub(typeset, "", page.read_text(encoding="utf-8"), flags=re.DOTALL) for page in pages}
    assert {str(page): found for page, text in plain.items() if (found := re.findall(r".*[)\]}]_\w.*", text))} == {}


def test_every_figure_of_a_posterior_is_shown_and_comes_from_its_script():
    # Ranks have a page of their own, and the README's picture a script.
    pictures = {path.stem for path in (ASSETS / "plots").glob("*.png")} - {"calibration", "hero"}
    assert set(script("figures").FIGURES) == pictures
    ranks = (ROOT / "docs" / "how-to" / "calibrate.md").read_text(encoding="utf-8")
    assert "assets/plots/calibration.png" in ranks
    page = (ROOT / "docs" / "how-to" / "figures.md").read_text(encoding="utf-8")
    assert {name for name in pictures if f"assets/plots/{name}.png" in page} == pictures
    drawn = {name.removeprefix("plot_") for name in bernflow.plots.__all__ if name.startswith("plot_")}
    assert drawn - {"calibration"} == pictures
