"""The help of every command: examples, the same words for the same things, and lines that fit a terminal."""

import re

import pytest

from benchmarks.commands import COMMANDS as OTHERS
from benchmarks.commands.benchmark import SUITES
from bernflow.cli import main
from bernflow.cli.app import COMMANDS

NAMES = [(command.name,) for command in (*COMMANDS, *OTHERS)] + [("benchmark", suite.name) for suite in SUITES]
COLUMNS = 100


@pytest.fixture
def help_of(capsys, monkeypatch):
    def ask(words, columns=COLUMNS):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main([*words, "--help"]) == 0
        return capsys.readouterr().out

    return ask


@pytest.mark.parametrize("words", NAMES, ids="-".join)
def test_a_command_has_examples_of_itself(words, help_of):
    examples = help_of(words).partition("\nexamples:\n")[2].partition("\n\n")[0].splitlines()
    assert len(examples) >= 2
    assert {tuple(line.split()[: 1 + len(words)]) for line in examples} == {("bernflow", *words)}


def test_the_first_help_has_commands_to_begin_with(help_of):
    assert re.findall(r"^  bernflow (\w+)", help_of(()), flags=re.MULTILINE) == ["doctor", "demo", "fit"]


@pytest.mark.parametrize("columns", [80, COLUMNS])
@pytest.mark.parametrize("words", [(), *NAMES], ids="-".join)
def test_lines_fit(words, columns, help_of):
    assert [line for line in help_of(words, columns).splitlines() if len(line) > columns] == []


@pytest.mark.parametrize("words", NAMES, ids="-".join)
def test_no_line_ends_within_a_name(words, help_of):
    # Names of options and folders have hyphens, as results-quick has.
    assert re.findall(r"\w+-$", help_of(words), flags=re.MULTILINE) == []


def test_the_same_option_has_the_same_placeholder_everywhere(help_of):
    seen = {}
    for words in NAMES:
        for option, placeholder in re.findall(r"^  (--[\w-]+) ([A-Z]+)\b", help_of(words), flags=re.MULTILINE):
            seen.setdefault(option, set()).add(placeholder)
    # A report is a file; every other result is a folder.
    assert seen.pop("--out") == {"DIR", "FILE"}
    # The data of a fit are a file, those of an experiment a folder.
    assert seen.pop("--data") == {"DATA", "DIR"}
    assert {option: found for option, found in seen.items() if len(found) > 1} == {}
    assert len(seen) > 10
