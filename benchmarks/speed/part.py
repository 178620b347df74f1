"""What a part of the suite is: cases, each with subjects that are compared with each other."""

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.study.plan import Result
from benchmarks.study.records import Record
from benchmarks.study.tables import Table

OK = "ok"


@dataclass(frozen=True)
class Scale:
    """How much is measured.

    Attributes:
        name: "tiny" only shows that everything works, "quick" takes minutes, "normal" hours, "full" more than that.
        seconds: how long one timing lasts, at least.
        rounds: how often every comparison is repeated.
    """

    name: str
    seconds: float
    rounds: int

    def pick(self, *, tiny: Any, quick: Any, normal: Any, full: Any = None) -> Any:
        """Choose by scale; the full one is the normal one where nothing else is said."""
        chosen = {"tiny": tiny, "quick": quick, "normal": normal, "full": normal if full is None else full}
        return chosen[self.name]


SCALES = {
    scale.name: scale
    for scale in (Scale("tiny", 0.02, 1), Scale("quick", 0.5, 1), Scale("normal", 3.0, 3), Scale("full", 3.0, 3))
}


@dataclass(frozen=True)
class Case:
    """What is compared: subjects by name with their settings, JSON-able. A ratio never leaves its case."""

    name: str
    subjects: Mapping[str, Mapping[str, Any]]
    rounds: int = 1


@dataclass(frozen=True)
class Section:
    """What the page shows of a part: text, and tables with their captions."""

    blocks: Sequence[str | Table]


@dataclass(frozen=True)
class Part:
    """One question that the suite answers.

    Attributes:
        name: the word on the command line.
        title: the heading on the page.
        cases: what there is to compare at a scale.
        measure: measures one subject, given the names of case and subject and the settings.
        present: what the page shows of the records that are ok.
        needs: packages that a subject needs, by the name of the subject.
        on_accelerator: runs without being asked for only where JAX sees an accelerator.
    """

    name: str
    title: str
    cases: Callable[[Scale], list[Case]]
    measure: Callable[[str, str, Mapping[str, Any]], Result]
    present: Callable[[Sequence[Record]], Section]
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    on_accelerator: bool = False

    def missing(self, subject: str) -> str | None:
        """Say what has to be installed for a subject, or None."""
        lacking = [name for name in self.needs.get(subject, ()) if importlib.util.find_spec(name) is None]
        if not lacking:
            return None
        return (
            f"{', '.join(lacking)} {'is' if len(lacking) == 1 else 'are'} not installed: pip install 'bernflow[speed]'"
        )
