"""Every experiment of the paper from the command line, at a setting that only shows that everything works."""

import csv
import json
import re

import pytest

from benchmarks.catalogue import EXPERIMENTS
from bernflow.cli import main


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("results")


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiment(name, out, capsys):
    pytest.importorskip("flowjax")
    assert main(["reproduce", name, "--tiny", "--quiet", "--out", str(out)]) == 0
    assert f"{name}: {out / name / 'index.html'}" in capsys.readouterr().out
    folder = out / name
    text = (folder / "README.md").read_text()
    pictures = re.findall(r"\]\((\S+)\.png\)", text)
    tables = re.findall(r"\]\((\S+)\.csv\)", text)
    assert pictures
    assert tables
    assert len(text.splitlines()[0]) > 5
    for picture in pictures:
        assert (folder / f"{picture}.png").stat().st_size > 5_000
        assert (folder / f"{picture}.svg").read_text().startswith("<?xml")
        assert f"src='{picture}.png'" in (folder / "index.html").read_text()
    for table in tables:
        heading, *rows = csv.reader((folder / f"{table}.csv").read_text().splitlines())
        assert rows
        assert all(len(row) == len(heading) for row in rows)
        assert (folder / f"{table}.md").read_text().count("\n|") >= len(rows) + 2
    assert json.loads((folder / "numbers.json").read_text())
    assert f"[{name}]({name}/README.md): {EXPERIMENTS[name].summary}" in (out / "README.md").read_text()
