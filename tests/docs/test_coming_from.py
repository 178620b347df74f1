"""The page "Coming from Stan, PyMC, NumPyro or brms" has one model in each style; other tests run and compare it."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "coming-from.md"
SECTION = re.compile(
    r"^### (\w+).*?^```python\n(.*?)^```\n\n<!-- output -->\n.*?^```text\n(.*?)^```\n<!-- end of output -->",
    flags=re.DOTALL | re.MULTILINE,
)
MODELS = {name: (code, output) for name, code, output in SECTION.findall(PAGE.read_text(encoding="utf-8"))}


def test_there_is_a_model_in_each_of_five_styles():
    assert list(MODELS) == ["NumPyro", "PyMC", "Stan", "brms", "Prior"]
    for code, output in MODELS.values():
        assert code.count("bf.fit(") == 1
        assert re.search(r"\bmcse_mean\b|\bMCSE\b", output)
    assert "log_likelihood" in MODELS["Stan"][1]
    assert "posterior_predictive" in MODELS["Stan"][1]
