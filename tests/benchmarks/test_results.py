"""Every figure of a page is that of the record beside it, and what is older than its code is named."""

import csv
import json
import math
import re
import subprocess
from functools import partial
from pathlib import Path

import pytest

from benchmarks import overview_page, pages, results
from benchmarks.catalogue import EXPERIMENTS
from benchmarks.points import comparisons, finding
from benchmarks.points import page as points_page
from benchmarks.points.sections import SECTIONS
from benchmarks.study.digest import code_digest
from benchmarks.study.records import load_records, save_records
from benchmarks.study.tables import Table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
MODULE = "benchmarks.data"
# Significant digits of the tables.
DIGITS = (2, 3, 4, 5)


@pytest.mark.parametrize("page", pages.PAGES)
def test_a_page_is_what_its_records_make(page):
    assert (ROOT / page).read_text(encoding="utf-8") == pages.made(page), "run python -m benchmarks.pages"


def test_the_paper_point_by_point_is_written_from_the_records():
    text = points_page.PAGE.read_text(encoding="utf-8")
    assert text == points_page.page(), "run python -m benchmarks.points"
    assert text.count("\n| ") > 50
    differences = points_page.DIFFERENCES.read_text(encoding="utf-8")
    assert differences == points_page.with_differences(differences)


def test_a_point_without_a_record_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(finding, "RESULTS", tmp_path)
    found = [p.found() for points in SECTIONS.values() for p in points if p.found.__name__ != "<lambda>"]
    assert len(found) > 15
    assert {f.verdict for f in found} == {finding.NOT_MEASURED}


def test_a_point_is_judged_by_the_figures(tmp_path, monkeypatch):
    monkeypatch.setattr(finding, "RESULTS", tmp_path)
    (tmp_path / "nn-regression").mkdir()
    for recipe, verdict in ((0.04, finding.REPRODUCED), (0.06, finding.NOT_REPRODUCED)):
        distances = {"paper": [recipe], "gaussian": [0.05], "bernflow": [0.01]}
        (tmp_path / "nn-regression" / "numbers.json").write_text(json.dumps({"distances": distances}))
        assert comparisons.network_bands().verdict == verdict


def cell(text):
    """Return what a table was made of: a number where the file of values has one."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text or None


def is_row(heading, digits, row, line):
    """Tell whether a line of a page is a row of a file, each cell as text or as a number of so many digits."""
    both = (shown(Table(heading, [cells], digits).to_markdown().splitlines()[2]) for cells in _both(row))
    written = zip(*both, strict=True)
    return all(found in forms for found, forms in zip(line, written, strict=True))


def _both(row):
    return row, [cell(text) for text in row]


def shown(line):
    return [part.strip().strip("*") for part in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.mark.parametrize("name", [name for name in EXPERIMENTS if (RESULTS / name / "README.md").is_file()])
def test_the_tables_of_a_page_have_the_figures_of_its_files(name):
    folder = RESULTS / name
    text = (folder / "README.md").read_text(encoding="utf-8")
    tables = re.findall(r"((?:^\|.*\n)+)\n?\*.*\(\[CSV\]\((\S+)\.csv\)\)", text, flags=re.MULTILINE)
    assert tables
    for table, file in tables:
        heading, *rows = csv.reader((folder / f"{file}.csv").read_text(encoding="utf-8").splitlines())
        lines = [shown(line) for line in table.splitlines()]
        assert lines[0] == shown(Table(heading, []).to_markdown().splitlines()[0])
        assert len(rows) == len(lines) - 2
        assert any(all(map(partial(is_row, heading, digits), rows, lines[2:])) for digits in DIGITS), (
            f"{name}/{file}.csv has other figures than the page"
        )


def test_the_figures_of_a_comparison_are_those_of_the_numbers():
    """The median KL of a page is that of the runs in its numbers, for one page of each kind."""
    for name in ("toy-regression", "diamonds"):
        numbers = json.loads((RESULTS / name / "numbers.json").read_text())["summary"]
        rows = csv.DictReader((RESULTS / name / "claims.csv").read_text(encoding="utf-8").splitlines())
        found = next(row for row in rows if row["quantity"] == "KL(q || posterior)")
        for column, method in (("bernflow", "bernflow"), ("paper's recipe, run here", "paper")):
            runs = sorted(numbers[method]["kl_runs"])
            assert float(found[column]) == pytest.approx(runs[len(runs) // 2] if len(runs) % 2 else math.nan)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """Return a repository with one commit."""

    def git(*words):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        return subprocess.run(["git", "-C", tmp_path, *who, *words], check=True, capture_output=True, text=True).stdout

    git("init", "-q")
    (tmp_path / "code.py").write_text("x = 1\n")
    git("add", "code.py")
    git("commit", "-qm", "one")
    monkeypatch.setattr(results, "ROOT", tmp_path)
    monkeypatch.setattr(results, "closure", lambda modules: set(modules))
    monkeypatch.setattr(results, "path_of", lambda name: tmp_path / f"{name}.py")
    return tmp_path, git("rev-parse", "--short", "HEAD").strip()


def test_a_record_without_a_digest_is_as_old_as_its_commit(repository):
    folder, commit = repository
    assert results.why_record_is_old({"commit": commit}, ["code"]) is None
    (folder / "code.py").write_text("x = 2\n")
    assert results.why_record_is_old({"commit": commit}, ["code"]) == f"are of commit {commit}, whose code has changed"
    assert "is not in this repository" in results.why_record_is_old({"commit": "0123456"}, ["code"])
    assert results.why_record_is_old({}, ["code"]) == "do not say by what code they were made"


def test_records_of_other_code_are_counted_and_named(tmp_path):
    path = tmp_path / "some.json"
    assert results.old_records(path, lambda r: [MODULE]) == ["was never made"]
    current = code_digest(MODULE)
    save_records(path, [{"target": "a", "code": current}, {"target": "b", "code": "0"}, {"target": "c"}], ())
    assert results.old_records(path, lambda r: [MODULE]) == [
        "1 of 3 records were made by other code (b)",
        "1 of 3 records do not say by what code they were made (c)",
    ]
    save_records(path, [{"target": "a", "code": current}], ())
    assert results.old_records(path, lambda r: [MODULE]) == []


def test_records_of_other_code_go_before_they_are_made_anew(tmp_path):
    path = tmp_path / "some.json"
    old = {"case": "a", "key": 0, "code": "0"}
    current = {"case": "b", "key": 0, "code": code_digest(MODULE)}
    save_records(path, [old, current], ["A note."])
    results.drop_old(path, lambda r: [MODULE])
    assert load_records(path) == [current]
    assert json.loads(path.read_text())["notes"] == ["A note."]


def kept(name, old, command, **more):
    return results.Kept(name, name.title(), f"results/{name}/README.md", command, lambda: old, **more)


def test_only_what_is_old_is_made_and_a_gpu_is_not_asked_for_unasked(tmp_path, monkeypatch, capsys):
    touch = ("pathlib", "no such module")
    entries = [
        kept("fresh", [], touch),
        kept("old", ["was made by other code"], ("json.tool", "--help")),
        kept("large", ["was never made"], touch, gpu=True),
    ]
    monkeypatch.setattr(results, "all_results", lambda: entries)
    monkeypatch.setattr(results, "MADE_OF_RESULTS", ())
    monkeypatch.setattr(results, "ROOT", tmp_path)
    assert results.main(["check"]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[:2] == ["old: was made by other code", "large: was never made"]
    assert "2 of 3 results are older than the code behind them." in out
    assert results.main(["make"]) == 0
    out = capsys.readouterr().out
    assert "old: python -m json.tool --help" in out
    assert "large: needs a GPU" in out
    assert "fresh" not in out
    monkeypatch.setattr(results, "all_results", lambda: [kept("bad", ["was never made"], ("no_such_module",))])
    assert results.main(["make"]) == 1
    assert "Not finished: bad." in capsys.readouterr().out


def test_the_index_shows_picture_time_and_command(tmp_path):
    folder = tmp_path / "results" / "cauchy"
    folder.mkdir(parents=True)
    for file in ("README.md", "index.html", "b.png", "a.png"):
        (folder / file).write_text("")
    (tmp_path / "suite.md").write_text("")
    entries = [
        overview_page.Entry("cauchy", "two <modes>", folder / "README.md", "bernflow reproduce cauchy", 700.0, False),
        overview_page.Entry("suite", "more", tmp_path / "suite.md", "bernflow benchmark suite", None, True),
    ]
    out = tmp_path / "results"
    overview_page.write(out, entries)
    text, page = (out / "README.md").read_text(), (out / "index.html").read_text()
    assert '<img src="cauchy/a.png"' in text
    assert "[cauchy](cauchy/README.md): two <modes> | 12 min | `bernflow reproduce cauchy` |" in text
    assert "[suite](../suite.md): more | duration not known, needs a GPU |" in text
    link = "<a href='cauchy/index.html'><img src='cauchy/a.png' alt=''><strong>cauchy</strong></a>"
    assert f"{link}: two &lt;modes&gt;" in page


def test_every_result_that_is_kept_is_in_the_index():
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    for one in results.all_results():
        assert (f"[{one.name}](" in text) == (ROOT / one.page).is_file(), "run python -m benchmarks.results index"
