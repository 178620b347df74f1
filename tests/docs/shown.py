"""Compare what code prints with what its page shows: words exactly, figures to their Monte Carlo error.

The draws of a page and of a run here have the same keys, but rounding differs between machines and versions, and
training amplifies it: figures are compared as if the draws were others. What is allowed for each kind of figure:

* words, verdicts, and counts such as dimensions and draws: nothing;
* k-hat: its noise, for a tail of 3 sqrt(20,000) draws;
* ESS: a factor of 3 in chi^2 = 1 / ESS - 1, whose estimate has heavy tails;
* "x ± error": the Monte Carlo error, and for an ELBO what training leaves open;
* tables with Monte Carlo errors: multiples of those, more for sds and quantiles than for means;
* seconds: everything;
* shares of draws, "P(...) =": the binomial error;
* other figures: 5 %.
"""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

# Two runs with independent errors differ by more than 5 standard errors once in 1.7 million figures.
NUM_ERRORS = 5 * math.sqrt(2)
NUM_DRAWS = 4000
# Of a mean's Monte Carlo error: an sd of a heavy tail, and a quantile of 5 or 95 %, where the density is low.
SD_ERRORS, QUANTILE_ERRORS = 2.0, 3.0
KHAT_ERRORS, KHAT_TAIL = 4 * math.sqrt(2), 3 * math.sqrt(20_000)
CHI_FACTOR, CHI_FLOOR = 3.0, 0.005
ERROR_FACTOR = 4.0
# Two trainings end within so many nats of the posterior.
TRAINING_NATS = 0.02
OTHER = 0.05
# An index as in slope[0] is a word.
NUMBER = re.compile(r"\[\d+(?:, ?\d+)*\]|(?<![\w.])[-+]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?(?![\w])")
COUNTED = re.compile(r"(dimensions?|draws|starts|more rows|particles|points|heated|steps)\b")
ERRORS = ("MCSE", "mcse_mean")


class Figure(NamedTuple):
    """A number in a text, with what stands before it on its line and after it."""

    text: str
    before: str
    after: str

    @property
    def value(self) -> float:
        return float(self.text.replace(",", ""))

    @property
    def unit(self) -> float:
        """The last place that is written."""
        mantissa = self.text.split("e")[0]
        return 10.0 ** -len(mantissa.partition(".")[2])


def differences(shown: str, printed: str) -> list[str]:
    """Return what differs between an output on a page and what its code has printed; nothing if they agree.

    Example:
        >>> differences("Good, k-hat 0.31", "Good, k-hat 0.27")
        []
        >>> differences("Good, k-hat 0.31", "Poor, k-hat 0.31")
        ["the page has 'Good, k-hat', the code prints 'Poor, k-hat'"]
    """
    found = list(_of_tables(*(list(_rows(text)) for text in (shown, printed))))
    before, after = (_without_rows(text) for text in (shown, printed))
    words = [[_plain(part) for part in _pieces(text)] for text in (before, after)]
    for ours, theirs in zip(*words, strict=False):
        if ours != theirs:
            return [*found, f"the page has {ours!r}, the code prints {theirs!r}"]
    if len(words[0]) != len(words[1]):
        return [*found, f"the page has {len(words[0])} pieces of text, the code prints {len(words[1])}"]
    figures = [list(_figures(text)) for text in (before, after)]
    for number, (ours, theirs) in enumerate(zip(*figures, strict=True)):
        error = figures[0][number + 1].value if ours.after.startswith("±") else None
        allowed = _allowed(ours, error)
        if not _agree(ours, theirs, allowed):
            where = f"{ours.before[-40:]}{ours.text}".strip()
            found.append(f"the page has {where!r}, the code prints {theirs.text}: allowed {allowed:.2g}")
    return found


def _agree(ours: Figure, theirs: Figure, allowed: float) -> bool:
    if ours.before.endswith("ESS ") and ours.after.startswith("%"):
        chi = [100.0 / max(each.value, 0.1) - 1.0 for each in (ours, theirs)]
        return max(chi) <= CHI_FACTOR * min(chi) + CHI_FLOOR
    if ours.before.endswith("± "):
        return max(ours.value, theirs.value) <= ERROR_FACTOR * min(ours.value, theirs.value) + 1e-4
    return abs(ours.value - theirs.value) <= allowed


def _allowed(figure: Figure, error: float | None) -> float:
    """Return the largest difference of a figure, given the error that is written behind it."""
    value = abs(figure.value)
    rounding = min(figure.unit, 0.01) if "." in figure.text else 0.0
    if re.match(r"s\b", figure.after):
        return math.inf
    if error is not None:
        return NUM_ERRORS * error + rounding + (TRAINING_NATS if figure.before.endswith("ELBO ") else 0.0)
    if figure.before.endswith("k-hat "):
        return KHAT_ERRORS * (1.0 + value) / math.sqrt(KHAT_TAIL)
    if "." not in figure.text and (COUNTED.match(figure.after) or figure.before.endswith("order ")):
        return 0.0
    if re.search(r"P\(.*\) = $", figure.before) and value <= 1.0:
        return NUM_ERRORS * math.sqrt(max(value * (1.0 - value), 1.0 / NUM_DRAWS) / NUM_DRAWS) + rounding
    if figure.before.endswith("within "):  # an estimate of the largest of many errors
        return 0.5 * value + (2.0 if figure.after.startswith("%") else 0.02)
    if figure.before.endswith("KL "):
        return 0.1 * value + 0.005
    return OTHER * value + figure.unit


def _pieces(text: str) -> list[str]:
    """Split a text at its numbers; an index belongs to the words."""
    pieces, start = [], 0
    for match in NUMBER.finditer(text):
        if not match[0].startswith("["):
            pieces.append(text[start : match.start()])
            start = match.end()
    return [*pieces, text[start:]]


def _figures(text: str) -> Iterator[Figure]:
    for match in NUMBER.finditer(text):
        if not match[0].startswith("["):
            # A sentence may be wrapped: the word before a number may stand on the line before.
            line = text.rfind("\n", 0, match.start()) + 1
            before = text[line : match.start()]
            before = before if before.strip() else text[max(0, line - 40) : match.start()]
            yield Figure(match[0], re.sub(r"\s+", " ", before), _plain(text[match.end() : match.end() + 40]))


def _plain(text: str) -> str:
    return " ".join(text.split())


def _rows(text: str) -> Iterator[tuple[str, dict[str, float]]]:
    """Find the rows of tables with Monte Carlo errors."""
    for _, columns, row in _lines(text):
        if row:
            yield row[1], dict(zip(columns, map(float, row[2].split()), strict=True))


def _without_rows(text: str) -> str:
    return "\n".join(row[1] if row else line for line, _, row in _lines(text))


def _lines(text: str) -> Iterator[tuple[str, list[str], re.Match | None]]:
    """Go through lines, with the columns of the table that they stand in; a table ends where a line is no row."""
    columns: list[str] = []
    for line in text.splitlines():
        row = _row(line, len(columns)) if columns else None
        if row is None:
            columns = line.split() if set(line.split()) & set(ERRORS) else []
        yield line, columns, row


def _row(line: str, size: int) -> re.Match | None:
    return re.match(rf"^ *(\S.*?)((?: +-?\d[\d.]*(?:e[-+]?\d+)?){{{size}}})$", line)


def _of_tables(shown: list[tuple[str, dict]], printed: list[tuple[str, dict]]) -> Iterator[str]:
    """Compare rows in order; labels are words, which are compared with the rest."""
    for (label, ours), (_, theirs) in zip(shown, printed, strict=False):
        error = next(ours[name] for name in ERRORS if name in ours)
        for column in ours.keys() & theirs.keys():
            if "mcse" in column.lower():
                small, large = sorted((ours[column], theirs[column]))
                agrees = large <= (1.5 if column in ERRORS else 2.5) * small
            else:
                factor = {"mean": 1.0, "sd": SD_ERRORS}.get(column, QUANTILE_ERRORS)
                agrees = abs(ours[column] - theirs[column]) <= NUM_ERRORS * factor * error
            if not agrees:
                yield f"{label}: the page has {column} {ours[column]}, the code prints {theirs[column]}; MCSE {error}"
