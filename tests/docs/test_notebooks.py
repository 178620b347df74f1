"""Every tutorial is a notebook that runs and shows what its page shows, in rich form."""

import ast
import base64
import importlib.util
import re
from pathlib import Path

import jax
import pytest

pytest.importorskip("jupytext")

ROOT = Path(__file__).parents[2]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


notebooks, outputs_of = (load(ROOT / "docs" / f"{name}.py") for name in ("notebooks", "outputs"))
shown = load(ROOT / "tests" / "docs" / "shown.py")
PAGES = {page.stem: page for page in notebooks.pages()}
# Run at small settings in the fast suite, where the code of two others runs as it stands; the others in the slow one.
FAST = ("eight-schools",)
# Tutorials need more than the packages that are always there.
NEEDS = {"stan": "httpstan", "pymc": "pymc", "bambi": "bambi", "pictures-and-a-table": "formulaic"}


def code(notebook):
    return [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]


def test_the_tutorials_that_there_should_be():
    assert {"regression", "eight-schools", "neural-network", "separate-modes", "laptop-to-cluster"} <= set(PAGES)
    assert {"stan", "pymc", "bambi", "pictures-and-a-table"} <= set(PAGES)


@pytest.mark.parametrize("name", PAGES)
def test_a_notebook_has_the_code_and_the_text_of_its_page(name):
    nbformat = pytest.importorskip("nbformat")
    notebook = notebooks.make(PAGES[name])
    nbformat.validate(nbformat.from_dict(notebook))
    blocks = re.findall(r"^```python\n(.*?)^```", PAGES[name].read_text(), flags=re.DOTALL | re.MULTILINE)
    page, cells = (ast.parse("\n".join(parts)).body for parts in (blocks, code(notebook)))
    assert len(page) == len(cells) > 3
    changed = [(ast.unparse(a), ast.unparse(b)) for a, b in zip(page, cells, strict=True) if ast.dump(a) != ast.dump(b)]
    assert all(before == f"print({after})" for before, after in changed)
    assert changed  # something to show
    text = "".join(cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    assert not re.search(r"\]\((?!https?:|#)", text)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_an_output(name):
    text = PAGES[name].read_text(encoding="utf-8")
    outputs = re.findall(rf"{outputs_of.BEGIN}\n(.*?){outputs_of.END}", text, flags=re.DOTALL)
    assert any("```text\n" in output for output in outputs), f"run python docs/outputs.py {name}"
    pictures = [picture for output in outputs for picture in re.findall(r"!\[[^]]+\]\(([^)]+)\)", output)]
    assert bool(pictures) == ("image/png" in kinds_shown(name))
    assert all((PAGES[name].parent / picture).stat().st_size > 5000 for picture in pictures)
    # A notebook has its own.
    assert outputs_of.BEGIN not in notebooks.text_of(notebooks.make(PAGES[name]))


def test_outputs_are_written_below_their_block_and_replaced(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A page\n\n```python\nprint(1)\n\nf\n```\n\nText\n\n```python\nx = 2\n```\n\nThe end\n")
    picture = {"data": {"image/png": base64.b64encode(b"png").decode(), "text/plain": "<Figure>"}}

    def cells(printed):
        return iter([{"outputs": [{"name": "stdout", "text": printed}]}, {"outputs": [picture]}, {"outputs": []}])

    for printed in ("one\n", "two\n"):
        page.write_text(outputs_of.with_outputs(page, cells(printed), lambda code: code.count("\n\n") + 1, tmp_path))
    shown = "*Output*\n\n```text\ntwo\n```\n\n![A page: figure drawn by the code](../assets/tutorials/page.png)"
    assert page.read_text() == (
        f"# A page\n\n```python\nprint(1)\n\nf\n```\n\n{outputs_of.BEGIN}\n{shown}\n{outputs_of.END}\n"
        "\nText\n\n```python\nx = 2\n```\n\nThe end\n"
    )
    assert (tmp_path / "page.png").read_bytes() == b"png"


def test_code_is_split_between_statements_only():
    source = "a = 1\n\ndef f():\n    x = 1\n\n    return x\n\nprint(a)\n\nprint(f())\n\nprint([a][0])"
    expected = ["a = 1", "def f():\n    x = 1\n\n    return x", "a", "print(f())", "[a][0]"]
    assert notebooks.paragraphs(source) == expected


@pytest.fixture
def quick_compilation():
    """Code that runs for a second need not be fast code: compiling it is most of a page's time."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


# The verdict on so short a fit is poor, and a warning says so.
@pytest.mark.filterwarnings("ignore:bernflow. Poor")
@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in FAST else pytest.mark.slow) for n in PAGES])
def test_a_notebook_runs_at_small_settings(name, monkeypatch, tmp_path):
    # In this process: a kernel would have to import everything anew.
    shells = pytest.importorskip("IPython.core.interactiveshell")
    from IPython.core.pylabtools import select_figure_formats

    pytest.importorskip(NEEDS.get(name, "numpyro"))
    # One page with the default flow; the examples of the README train it, too.
    family = "bernstein" if name == "regression" else "gaussian"
    trained = load(ROOT / "tests" / "docs" / "small.py").install(monkeypatch.setattr, family)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    shell = shells.InteractiveShell()
    shell.history_manager.enabled = False
    select_figure_formats(shell, {"png"})  # as a notebook does for figures of matplotlib
    kinds = set()
    for source in code(notebooks.make(PAGES[name])):
        done = shell.run_cell(source)
        done.raise_error()
        kinds |= set(shell.display_formatter.format(done.result)[0]) if done.result is not None else set()
    assert trained
    assert min(trained) > 0
    assert kinds_shown(name) <= kinds


def kinds_shown(name):
    """Rich tables in every notebook, and pictures in all but the one about machines."""
    return {"text/html"} if name == "laptop-to-cluster" else {"text/html", "image/png"}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_notebook_runs_and_shows_what_its_page_shows(name, tmp_path):
    for package in ("nbclient", "ipykernel", NEEDS.get(name, "numpyro")):
        pytest.importorskip(package)
    done = notebooks.execute(notebooks.make(PAGES[name]), tmp_path)
    kinds = {kind for cell in done["cells"] for output in cell.get("outputs", ()) for kind in output.get("data", ())}
    assert kinds_shown(name) <= kinds
    cells = iter([cell for cell in done["cells"] if cell["cell_type"] == "code"])
    new = outputs_of.with_outputs(PAGES[name], cells, lambda code: len(notebooks.paragraphs(code)), tmp_path)
    before, after = (outputs_of.shown(text) for text in (PAGES[name].read_text(encoding="utf-8"), new))
    for (_, output), (_, printed) in zip(before, after, strict=True):
        assert shown.differences(output, printed) == [], f"run python docs/outputs.py {name}"
