"""What an experiment is: tasks whose results are kept, and a page made from them."""

import hashlib
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from benchmarks.study.digest import code_digest

if TYPE_CHECKING:  # tasks run where nothing can be drawn
    from benchmarks.study.page import Page

# The settings of the paper; a run of minutes that keeps the message; a run that only shows that everything works.
SCALES = ("full", "quick", "tiny")

# What a task returns: JSON-able values and NumPy arrays.
Result = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """One unit of work whose result is kept.

    Attributes:
        function: the function that does it, as "module:name", so that another process can find it.
        arguments: its keyword arguments, JSON-able.
    """

    function: str
    arguments: Mapping[str, Any]

    @property
    def identity(self) -> str:
        """Name the result: equal for the same work, different for any other."""
        content = json.dumps([self.function, dict(self.arguments)], sort_keys=True)
        words = [self.function.rpartition(":")[2], *(str(v) for v in self.arguments.values() if isinstance(v, str))]
        readable = "-".join(words).replace(":", ".")[:60]
        return f"{readable}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"

    @property
    def code(self) -> str:
        """Digest of the code that the result depends on."""
        return code_digest(self.function.partition(":")[0])

    def __hash__(self) -> int:
        return hash(self.identity)


def run_task(task: Task) -> Result:
    """Do the work of one task, here and now."""
    module, _, name = task.function.partition(":")
    return getattr(importlib.import_module(module), name)(**task.arguments)


class Results:
    """The results of an experiment's tasks."""

    def __init__(self, by_identity: Mapping[str, Result]):
        self._by_identity = by_identity

    def __getitem__(self, task: Task) -> Result:
        """Return the result of one task."""
        return self._by_identity[task.identity]

    def of(self, tasks: Sequence[Task]) -> list[Result]:
        """Return the results of several tasks, in their order."""
        return [self[task] for task in tasks]


@dataclass(frozen=True)
class Experiment:
    """One experiment.

    Attributes:
        name: the word on the command line.
        title: how pages call it.
        summary: one line for the list of experiments.
        tasks: returns its tasks at one of the `SCALES`.
        present: makes the page from the scale and the results.
        needs: packages beyond bernflow's own, and the extra that brings them.
        command: what follows `bernflow reproduce` on its page, where it is more than the name.
    """

    name: str
    title: str
    summary: str
    tasks: Callable[[str], list[Task]]
    present: Callable[[str, Results], "Page"]
    needs: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
