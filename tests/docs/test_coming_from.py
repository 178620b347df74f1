"""The five models of "Coming from Stan, PyMC, NumPyro or brms" show what they print."""

import importlib.util
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "coming-from.md"
SECTION = re.compile(
    r"^### (\w+).*?^```python\n(.*?)^```\n\n<!-- output -->\n.*?^```text\n(.*?)^```\n<!-- end of output -->",
    flags=re.DOTALL | re.MULTILINE,
)
MODELS = {name: (code, output) for name, code, output in SECTION.findall(PAGE.read_text(encoding="utf-8"))}
ROW = re.compile(r"^ *(\S+)((?: +-?[\d.]+){5,6})$", flags=re.MULTILINE)
HAS_STAN = importlib.util.find_spec("httpstan") is not None and any(map(shutil.which, ("g++", "clang++", "c++")))
# Of a mean of 4,000 draws, here and on the page; the draws are others where versions are.
ERRORS = 5 * np.sqrt(2)


def rows(text):
    """Mean, sd and Monte Carlo error of every row of the tables in an output."""
    found = {}
    for name, numbers in ROW.findall(text):
        values = [float(number) for number in numbers.split()]
        found[name] = values[0], values[1], values[4]
    return found


def words(text):
    """What is printed besides tables and numbers."""
    rest = ROW.sub("", text)
    return re.findall(r"[A-Za-z_]{2,}", rest)


def test_there_is_a_model_in_each_of_five_styles():
    assert list(MODELS) == ["NumPyro", "PyMC", "Stan", "brms", "Prior"]
    for code, output in MODELS.values():
        assert code.count("bf.fit(") == 1
        assert len(rows(output)) >= 3
    assert "log_likelihood" in MODELS["Stan"][1]
    assert "posterior_predictive" in MODELS["Stan"][1]


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_model_prints_what_the_page_shows(name, capsys, tmp_path, monkeypatch):
    if name == "Stan" and not HAS_STAN:
        pytest.skip("what Stan needs is not installed")
    monkeypatch.chdir(tmp_path)
    code, output = MODELS[name]
    exec(compile(code, name, "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    expected, found = rows(output), rows(printed)
    assert list(found) == list(expected)
    for label, (mean, sd, error) in expected.items():
        assert found[label][0] == pytest.approx(mean, abs=ERRORS * error), label
        assert found[label][1] == pytest.approx(sd, rel=0.15), label
    assert words(printed)[:3] == words(output)[:3]
