import csv
import io
import json
import re
import subprocess

import numpy as np
import pytest
from matplotlib.figure import Figure

from benchmarks.study import nuts, plan, record, runner, stamp
from benchmarks.study.page import Heading, Listing, Page, Picture, write_page
from benchmarks.study.plan import Experiment, Task
from benchmarks.study.rubin import pool
from benchmarks.study.slopes import fit_slope
from benchmarks.study.store import Store
from benchmarks.study.tables import Claim, Table, claims_table, number
from bernflow.errors import BernflowError

THIS = __name__
calls = []
MADE = {"date": "2026-11-19", "commit": "abc", "machine": "a laptop", "versions": {"jax": "0.9"}, "seconds": 2.0}


def double(value):
    calls.append(value)
    if value == 13:
        raise BernflowError("13 is not to be had.")
    return {"twice": 2 * value, "array": np.arange(value, dtype=np.float32), "nothing": None}


def task(value):
    return Task(f"{THIS}:double", {"value": value})


def page(title="Title <b>"):
    figure = Figure(figsize=(2, 2))
    figure.subplots().plot([0, 1])
    table = Table(("a", "b|c"), [("x", 1.5), ("y", None)], best=frozenset({(0, 1)}))
    numbers = {"k": float("inf"), "values": np.arange(3)}
    blocks = ["Text & more.", Heading("Part"), Picture("fig", figure, "A figure."), Listing("tab", table, "A table.")]
    return Page(title, blocks, numbers)


def experiment(*values, needs=None):
    def present(scale, results):
        return Page("P", [f"{scale}: {[results[task(v)]['twice'] for v in values]}"])

    return Experiment("doubling", "Doubling", "doubles", lambda scale: [task(v) for v in values], present, needs or {})


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    # pytest imports this file under a name that importlib does not know.
    import sys

    monkeypatch.setitem(sys.modules, THIS, sys.modules.get(THIS) or sys.modules[double.__module__])
    monkeypatch.setattr(plan, "code_digest", lambda *modules: "this code")
    calls.clear()


def run(*args, **kwargs):
    return list(runner.run_experiments(*args, progress=False, **kwargs))


def test_tasks_are_told_apart_by_their_arguments():
    assert task(1).identity == task(1).identity != task(2).identity
    assert len({task(1), task(1), task(2)}) == 2


def test_store_returns_what_was_kept(tmp_path):
    store = Store(tmp_path / "kept")
    assert store.load(task(3)) is None
    store.save(task(3), double(3), MADE)
    assert store.made(task(3)) == {**MADE, "code": "this code"}
    found = store.load(task(3))
    assert found["twice"] == 6
    assert found["nothing"] is None
    np.testing.assert_array_equal(found["array"], [0, 1, 2])
    assert [path.suffix for path in (tmp_path / "kept").iterdir()] == [".npz"]


@pytest.mark.parametrize("damage", [lambda content: content[:40], lambda content: b"", lambda content: b"x" * 200])
def test_a_damaged_result_does_not_count(tmp_path, damage):
    store = Store(tmp_path)
    store.save(task(3), double(3), MADE)
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert store.load(task(3)) is None


def test_flipped_bits_give_the_result_or_none(tmp_path):
    store = Store(tmp_path)
    store.save(task(3), double(3), MADE)
    (path,) = tmp_path.iterdir()
    content, whole = path.read_bytes(), repr(store.load(task(3)))
    for bit in np.random.default_rng(0).choice(8 * len(content), 500, replace=False):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(damaged)
        assert repr(store.load(task(3))) in ("None", whole)


def test_a_result_of_other_code_does_not_count(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.save(task(3), double(3), MADE)
    monkeypatch.setattr(plan, "code_digest", lambda *modules: "other code")
    assert store.load(task(3)) is None


def test_a_page_tells_its_origin_and_when_it_is_old(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "run_task", lambda task: double(**task.arguments))
    assert record.why_old(experiment(1, 2), tmp_path / "doubling") == "does not say by what code it was made"
    run([experiment(1, 2)], "tiny", tmp_path)
    text = (tmp_path / "doubling" / "README.md").read_text()
    assert "Made by `bernflow reproduce doubling --tiny`. Measured on 20" in text
    assert re.search(r"from commit \w+\+? on .*, \d+ cores, JAX on .*, with bernflow .*, jax \d", text)
    assert record.why_old(experiment(1, 2), tmp_path / "doubling") is None
    assert "was made with other settings (Measured on" in record.why_old(experiment(1, 3), tmp_path / "doubling")
    monkeypatch.setattr(plan, "code_digest", lambda *modules: "other code")
    assert "by other code" in record.why_old(experiment(1, 2), tmp_path / "doubling")


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path, monkeypatch):
    def stop(value):
        if value == 2:
            raise KeyboardInterrupt
        return double(value)

    monkeypatch.setattr(runner, "run_task", lambda task: stop(**task.arguments))
    with pytest.raises(KeyboardInterrupt):
        run([experiment(1, 2, 3)], "tiny", tmp_path)
    assert not (tmp_path / "doubling").exists()
    monkeypatch.setattr(runner, "run_task", lambda task: double(**task.arguments))
    calls.clear()
    (outcome,) = run([experiment(1, 2, 3)], "tiny", tmp_path)
    assert outcome.error is None
    assert calls == [2, 3]
    assert "tiny: [2, 4, 6]" in (tmp_path / "doubling" / "README.md").read_text()
    run([experiment(1, 2, 3)], "tiny", tmp_path, fresh=True)
    assert calls == [2, 3, 1, 2, 3]


def test_one_failure_does_not_stop_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "run_task", lambda task: double(**task.arguments))
    first, second = run([experiment(13), experiment(1)], "tiny", tmp_path)
    assert first.error == "13 is not to be had."
    assert second.error is None


def test_a_missing_package_names_its_extra(tmp_path):
    (outcome,) = run([experiment(1, needs={"no_such_package": "peers"})], "tiny", tmp_path)
    assert "pip install 'bernflow[peers]'" in outcome.error


def test_page_is_written_whole(tmp_path):
    folder = tmp_path / "out" / "name"
    write_page(page(), folder)
    names = {path.name for path in folder.iterdir()}
    assert names == {"fig.png", "fig.svg", "tab.csv", "tab.md", "numbers.json", "README.md", "index.html"}
    assert json.loads((folder / "numbers.json").read_text()) == {"k": "inf", "values": [0, 1, 2]}
    text = (folder / "index.html").read_text()
    assert "<h1>Title &lt;b&gt;</h1>" in text
    assert "Text &amp; more." in text
    write_page(page("Another"), folder)
    assert "# Another" in (folder / "README.md").read_text()
    assert [path.name for path in folder.parent.iterdir()] == ["name"]


def test_a_page_that_fails_leaves_the_old_one(tmp_path):
    folder = tmp_path / "name"
    write_page(page("Old"), folder)
    broken = Page("New", [Listing("no/such/folder", Table(("a",), []), "")])
    with pytest.raises(OSError, match="no/such"):
        write_page(broken, folder)
    assert "# Old" in (folder / "README.md").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["name"]


def test_tables():
    table = Table(("a", "b|c"), [("x|y", 0.00012345), (None, 2)], best=frozenset({(0, 1)}))
    assert list(csv.reader(io.StringIO(table.to_csv()))) == [["a", "b|c"], ["x|y", "0.00012345"], ["", "2"]]
    assert "| a | b\\|c |" in table.to_markdown()
    assert "| x\\|y | **1.2e-04** |" in table.to_markdown()
    # What a failed run says may hold anything.
    told = Table(("note",), [("<script>alert(1)</script>\n# x < 3",)])
    assert told.to_markdown().splitlines()[-1] == "| &lt;script>alert(1)&lt;/script> # x < 3 |"
    assert "<td>&lt;script&gt;" in told.to_html()
    assert "<td class='number'><strong>1.2e-04</strong></td>" in table.to_html()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1.2345, "1.23"),
        (0.012345, "0.0123"),
        (1038.3, "1,038"),
        (2.5e7, "2.50e+07"),
        (np.inf, "∞"),
        (np.nan, "n/a"),
    ],
)
def test_numbers_for_people(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("claim", "winner"),
    [
        (Claim("q", 0.5, 0.4), "bernflow"),
        (Claim("q", 0.5, 0.6), "paper"),
        (Claim("q", 0.5, 0.51, tolerance=0.02), "equal"),
        (Claim("q", None, 0.6, 0.5), "paper's recipe"),
        (Claim("q", -2.0, -1.0, unit_better="larger"), "bernflow"),
        (Claim("q", np.inf, 1.0), "bernflow"),
        (Claim("q", None, 1.0), ""),
    ],
)
def test_claims_say_who_is_better(claim, winner):
    assert claims_table([claim]).rows[0][4] == winner


def test_rubin_pools_variances_within_and_between():
    # By hand: mean 0.5; within 0.01; between 0.02 * 1.5 = 0.03; df = (1 + 0.01/0.03)^2 = 1.78, whose t(0.95) is 3.185.
    pooled = pool(np.array([0.4, 0.6]), np.array([0.01, 0.01]))
    assert pooled.estimate == pytest.approx(0.5)
    assert pooled.high - pooled.estimate == pytest.approx(0.2 * 3.185, rel=1e-3)
    assert str(pool(np.array([0.4, np.inf]), np.array([0.01, 0.01]))) == "∞"
    single = pool(np.array([0.4]), np.array([0.04]))
    assert single.high == pytest.approx(0.4 + 1.6449 * 0.2, rel=1e-3)


def test_slope_ends_at_the_noise_floor():
    orders = [1, 2, 4, 8, 16, 32, 64]
    found = fit_slope(orders, [1.0, 1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 240, 1 / 250])
    assert found.slope == pytest.approx(-2.0)
    assert (found.first, found.last) == (1, 16)


def test_chains_that_disagree_are_refused():
    good = np.random.default_rng(0).normal(size=(4, 1000))
    rhat, ess = nuts.check_chains("x", [good])
    assert rhat < 1.01
    assert ess > 1000
    bad = good + np.array([0, 0, 0, 1.0])[:, None]
    rhat, ess = nuts.check_chains("x", [good, bad], strict=False)
    assert rhat > 1.05
    assert ess < 400
    # Chains that are stuck have no R-hat, and too few draws are no convergence either.
    for quantities in ([good, bad], [np.full((4, 1000), np.nan)], [good[:, :60]], [good[:, :2]]):
        with pytest.raises(BernflowError, match=r"NUTS on x has not converged: R-hat .* use more draws"):
            nuts.check_chains("x", quantities)


@pytest.mark.slow
def test_nuts_that_has_not_converged_is_refused():
    with pytest.raises(BernflowError, match="NUTS on bernoulli has not converged: R-hat"):
        nuts.run_nuts("bernoulli", num_warmup=10, num_samples=20, num_kept=10, strict=True)


def test_a_stamp_names_commit_and_changes(tmp_path, monkeypatch):
    assert stamp.commit(tmp_path) is None
    monkeypatch.setattr(stamp, "commit", lambda: None)
    monkeypatch.setenv("SOURCE_COMMIT", "abc1234")
    found = stamp.stamp(device=False)
    assert (found["commit"], set(found)) == ("abc1234", set(stamp.FIELDS))
    assert "JAX on" not in found["machine"]
    monkeypatch.delenv("SOURCE_COMMIT")
    assert stamp.stamp()["commit"] is None


def test_changes_that_are_in_no_commit_are_told(tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    (tmp_path / "code.py").write_text("x = 1\n")
    for words in (["init", "-q"], ["add", "code.py"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    clean = stamp.commit(tmp_path)
    assert re.fullmatch(r"[0-9a-f]{7,}", clean)
    (tmp_path / "code.py").write_text("x = 2\n")
    assert stamp.commit(tmp_path) == f"{clean}+"


def test_pages_tell_what_is_not_known_of_their_results():
    known = {"date": "2026-11-19", "commit": "abc", "machine": "a laptop", "versions": {"jax": "0.9"}}
    later = {**known, "date": "2026-11-21", "commit": "def"}
    assert stamp.sentence([known, later, {"commit": "def"}]) == (
        "Measured from 2026-11-19 to 2026-11-21 from commits abc, def on a laptop, with jax 0.9. "
        "For 1 of 3 results, no date, machine and versions are known."
    )
