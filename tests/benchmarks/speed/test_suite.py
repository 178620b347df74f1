"""The plan of the suite and what is kept of it, with measurements that are made up."""

import json

import pytest

from benchmarks.accuracy.processes import run_apart
from benchmarks.speed import machine, page, suite
from benchmarks.speed.catalogue import PARTS
from benchmarks.speed.suite import FILE, Options, Suite, describe
from benchmarks.study.plan import Task
from bernflow.errors import ArgumentError, BernflowError, FileFormatError

MACHINE = {"status": "ok", "processor": "abacus", "cores": 2, "memory_gb": 7.9, "system": "s", "python": "3"}
MACHINE |= {"platform": "cpu", "device": "1 x cpu", "load": 0.1, "packages": {"jax": "1"}}
FIGURES = {"seconds": 0.5, "trace_seconds": 0.1, "cold_seconds": 4.0, "warm_seconds": 2.0, "kl": 0.01, "elbo": -1.0}
FIGURES |= {"first_seconds": 4.0, "second_seconds": 1.0, "first_compilations": 3, "second_compilations": 0}
FIGURES |= {"second_found": 0, "device": "cpu", "flops_per_second": 1e9, "bytes_per_second": 2e9, "verdict": "good"}
FIGURES |= {"chain_method": "vectorized"}


class Runner:
    """Measures nothing, remembers what it was asked for."""

    def __init__(self, stop_after=None, machine=MACHINE, **statuses):
        self.tasks, self.stop_after, self.machine, self.statuses = [], stop_after, machine, statuses

    def __call__(self, tasks, jobs, seconds):
        for task in tasks:
            if "part" not in task.arguments:
                yield task, dict(self.machine)
                continue
            if len(self.tasks) == self.stop_after:
                raise KeyboardInterrupt
            self.tasks.append(task)
            status = self.statuses.get(task.arguments["subject"].replace(" ", "_"), "ok")
            yield task, {"status": status, **(FIGURES if status == "ok" else {})}

    @property
    def asked(self):
        return [(t.arguments["case"], t.arguments["subject"]) for t in self.tasks]


def run(tmp_path, runner=None, scale="tiny", **options):
    runner = runner or Runner()
    one = Suite(Options(scale, tmp_path, **options), lambda line: None, runner)
    one.run()
    return runner, one


def test_what_is_kept_is_not_measured_again(tmp_path):
    assert run(tmp_path, parts=["growth"])[0].asked == [(axis, s) for axis in "pMS" for s in _sizes(axis)]
    assert run(tmp_path, parts=["growth"])[0].asked == []
    assert len(run(tmp_path, parts=["growth"], fresh=True)[0].asked) == 6
    assert run(tmp_path, parts=["restarts"])[0].asked == [("restarts", "1"), ("restarts", "2")]
    assert len(json.loads((tmp_path / FILE).read_text())["records"]) == 1 + 6 + 2


def _sizes(axis):
    return {"p": ("4", "6"), "M": ("5", "10"), "S": ("1", "4")}[axis]


def test_an_interrupted_comparison_begins_again(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, Runner(stop_after=3), parts=["growth"])
    runner, one = run(tmp_path, parts=["growth"])
    # The first comparison was whole; of the second one half was there, which another run must not complete.
    assert runner.asked == [("M", "5"), ("M", "10"), ("S", "1"), ("S", "4")]
    runs = {case: {r["run"] for r in one.records.values() if r.get("case") == case} for case in "pMS"}
    assert all(len(found) == 1 for found in runs.values())


def test_two_runs_are_never_compared(tmp_path):
    run(tmp_path, Runner(**{"2": "failed: E"}), parts=["restarts"])
    one = Suite(Options("tiny", tmp_path, ["restarts"]), lambda line: None, Runner(stop_after=1))
    with pytest.raises(KeyboardInterrupt):
        one.run()
    assert [r.get("subject") for r in one.sorted_records()] == [None, "1"]  # the other one was of the run before
    run(tmp_path, parts=["restarts"])
    text = (tmp_path / FILE).read_text()
    last = text.rindex('"run": "')
    (tmp_path / FILE).write_text(text[:last] + text[last:].replace('"run": "', '"run": "another '))
    assert len(run(tmp_path, parts=["restarts"])[0].asked) == 2


def test_rounds_alternate(tmp_path):
    runner, _ = run(tmp_path, scale="normal", parts=["restarts"])
    assert [(t.arguments["round"], t.arguments["subject"]) for t in runner.tasks] == [
        (number, subject) for number in range(3) for subject in ("1", "4", "16", "64")
    ]


@pytest.mark.parametrize(
    ("status", "again"), [("failed: E: x", 2), ("exceeded the time limit of 9 s", 0), ("x is not installed", 2)]
)
def test_what_failed_is_compared_again(tmp_path, status, again):
    run(tmp_path, Runner(**{"2": status}), parts=["restarts"], time_limit=9.0)
    assert len(run(tmp_path, parts=["restarts"], time_limit=9.0)[0].asked) == again


def test_more_time_is_another_chance(tmp_path):
    run(tmp_path, Runner(**{"2": "exceeded the time limit of 9 s"}), parts=["restarts"], time_limit=9.0)
    assert len(run(tmp_path, parts=["restarts"], time_limit=10.0)[0].asked) == 2


def test_other_settings_are_another_measurement(tmp_path):
    run(tmp_path, parts=["restarts"])
    assert len(run(tmp_path, scale="quick", parts=["restarts"])[0].asked) == 3


def test_the_roofline_is_for_accelerators_unless_it_is_asked_for(tmp_path):
    def parts(folder, **options):
        return {t.arguments["part"] for t in run(tmp_path / folder, **options)[0].tasks}

    assert parts("cpu") == set(PARTS) - {"roofline"}
    assert parts("gpu", runner=Runner(machine={**MACHINE, "platform": "gpu"})) == set(PARTS)
    assert parts("asked", parts=["roofline"]) == {"roofline"}


def test_peaks_can_be_told_later(tmp_path):
    run(tmp_path, parts=["roofline"])
    runner, one = run(tmp_path, parts=["roofline"], peak_flops=4e9, peak_bandwidth=4e9)
    assert runner.asked == []
    assert "| 25.0 | 50.0 |" in page.markdown(one.sorted_records(), "c", False)


def test_two_machines_do_not_share_a_file(tmp_path):
    run(tmp_path, parts=["restarts"])
    other = Runner(machine={**MACHINE, "device": "8 x TPU"})
    with pytest.raises(ArgumentError, match=r"another machine \(device: 1 x cpu, now 8 x TPU\).*--out"):
        run(tmp_path, other, parts=["growth"])
    _, one = run(tmp_path, other, parts=["growth"], fresh=True)
    assert {r["part"] for r in one.sorted_records()} == {"machine", "growth"}


def test_wrong_options(tmp_path):
    with pytest.raises(ArgumentError, match="There is no part stps: expected some of steps, wall"):
        run(tmp_path, parts=["stps"])
    for option in ("time_limit", "peak_flops", "peak_bandwidth"):
        with pytest.raises(ArgumentError, match=f"--{option.replace('_', '-')} 0: expected a positive"):
            run(tmp_path, **{option: 0.0})
    with pytest.raises(BernflowError, match=r"cannot be described \(failed: no device\)"):
        run(tmp_path, Runner(machine={"status": "failed: no device"}))


@pytest.mark.parametrize("text", ["{", "[]", '{"records": [{"case": "x"}]}', '{"records": [3]}'])
def test_a_file_of_something_else(tmp_path, text):
    (tmp_path / FILE).write_text(text)
    with pytest.raises(FileFormatError, match=r"speed\.json does not hold records of this suite"):
        run(tmp_path)


def test_a_line_per_measurement():
    record = {"part": "steps", "case": "c", "subject": "s", "round": 0, "status": "ok", "seconds": 0.25}
    assert describe(record) == "steps, c, s, round 1: seconds 0.25"
    assert describe({**record, "status": "failed: E"}).endswith(": failed: E")


def test_the_page_shows_every_part(tmp_path):
    lacking = {f"TFP,_{mode}": "tensorflow is not installed" for mode in ("compiled", "xla")}
    _, one = run(tmp_path, Runner(**lacking), parts=list(PARTS))
    text = page.write(tmp_path, one.sorted_records(), "the command").read_text(encoding="utf-8")
    for part in PARTS.values():
        assert f"## {part.title}\n" in text
    assert "Measured on abacus, 2 cores, 8 GB of memory; JAX computes on 1 x cpu (cpu)." in text
    assert "not idle" not in text
    assert "- eight schools, TFP, xla: tensorflow is not installed" in text
    assert "| subject | steps per second | times faster than TFP, published |" in text
    assert "Made by `the command`." in text
    assert (tmp_path / "speed.png").stat().st_size > 1000
    assert (tmp_path / "speed.svg").is_file()


def test_ours_over_theirs_is_the_right_way_round(records):
    made = records("steps", {("eight schools", "bernstein-paper"): {"seconds": 0.001}})
    made += records("steps", {("eight schools", "TFP, published"): {"seconds": 0.01}})
    (_, table) = PARTS["steps"].present(made).blocks
    assert table.rows[0][1:] == ["1,000", "10 (10 to 10)"]
    made = records("wall", {("toy-regression", "bernflow"): {"cold_seconds": 4.0, "warm_seconds": 2.0, "kl": 1e-3}})
    for name, cold, warm in (("vectorized", 6.0, 8.0), ("parallel", 7.0, 6.0)):
        figures = {"cold_seconds": cold, "warm_seconds": warm, "min_ess": 900.0 + cold, "verdict": "good"}
        figures |= {"chain_method": name, "settings": {"warmup": 1000, "samples": 2000}}
        made += records("wall", {("toy-regression", f"NUTS, {name}"): figures})
    (text, table) = PARTS["wall"].present(made).blocks
    assert "(1,000 steps of warmup and 2,000 draws each)" in text
    assert [row[1:] for row in table.rows] == [
        ["bernflow", "4", "2", "", "", "KL 0.00100"],
        [
            "NUTS, vectorized chains cold, parallel warm",
            "6",
            "6",
            "1.5 (1.5 to 1.5)",
            "3 (3 to 3)",
            "907 effective draws (good)",
        ],
    ]


def test_a_busy_machine_is_told(tmp_path):
    _, one = run(tmp_path, Runner(machine={**MACHINE, "load": 3.5}), parts=["restarts"])
    assert "not idle when the run began (load 3.5)" in page.markdown(one.sorted_records(), "c", False)


@pytest.mark.slow
def test_processes_compute_where_they_are_told():
    tasks = [Task(f"{machine.__name__}:describe", {})]
    ((_, found),) = suite.run_where_jax_computes(tasks, 1, 300)
    assert (found["status"], found["packages"]["bernflow"] is not None) == ("ok", True)
    assert "JAX computes on" in machine.sentence(found)
    ((_, found),) = run_apart(tasks, 1, 300, platform="nonsense")
    assert found["status"].startswith("failed: RuntimeError")
