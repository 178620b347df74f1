import json

import pytest

from benchmarks.accuracy.processes import OUT_OF_TIME, run_apart
from benchmarks.study.plan import Task

# Measurements at a tiny scale: nightly, as what they take is compilation.
pytestmark = pytest.mark.slow


def test_results_and_failures_come_back():
    tasks = {
        "fine": Task("builtins:dict", {"status": "ok", "value": 3.5}),
        "raises": Task("json:loads", {"s": "{"}),
        "dies": Task("os:_exit", {"status": 3}),
    }
    found = {task.identity: result for task, result in run_apart(list(tasks.values()), jobs=3, seconds=300)}
    results = {name: found[task.identity] for name, task in tasks.items()}
    assert all(0.0 < result.pop("took") < 300.0 for result in results.values())
    assert results["fine"] == {"status": "ok", "value": 3.5}
    assert results["raises"]["status"].startswith("failed: JSONDecodeError: Expecting property name")
    assert results["dies"]["status"].startswith("failed: its process ended with code 3")
    assert json.dumps(results)


def test_a_task_that_takes_too_long_is_ended():
    ((_, result),) = run_apart([Task("signal:pause", {})], jobs=1, seconds=0.5)
    assert result["status"] == f"{OUT_OF_TIME} of 0.5 s"
    assert result["took"] >= 0.5
