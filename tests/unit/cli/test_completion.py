import argparse
import re
import shutil
import subprocess

import pytest

from bernflow.cli import checkout, main
from bernflow.cli.app import COMMANDS, make_parser
from bernflow.cli.completion import SHELLS


def script(capsys, shell):
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


def completed(script, folder, *words):
    """Let bash complete the last word."""
    code = f"""{script}
COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _shtab_bernflow; printf '%s\\n' "${{COMPREPLY[@]}}" """
    found = subprocess.run(["bash", "-c", code, "bash", *words], capture_output=True, text=True, cwd=folder, check=True)
    assert found.stderr == ""
    return [line for line in found.stdout.splitlines() if line]


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_completes_commands_options_values_and_files(capsys, tmp_path):
    (tmp_path / "my model.stan").touch()
    (tmp_path / "data.json").touch()
    text = script(capsys, "bash")

    def complete(*words):
        return completed(text, tmp_path, "bernflow", *words)

    names = [command.name for command in (*COMMANDS, *checkout.commands())]
    assert set(names) <= set(complete(""))
    assert complete("d") == [name for name in names if name.startswith("d")]
    assert complete("completion", "z") == ["zsh"]
    assert complete("fit", "my") == ["my model.stan"]
    assert complete("fit", "my model.stan", "--out", "da") == ["data.json"]
    assert complete("fit", "--see") == ["--seed"]
    assert complete("fit", "--seed", "") == []
    assert complete("reproduce", "--model", "") == ["m1", "m2", "m3"]
    assert complete("doctor", "--j") == ["--json"]
    assert complete("benchmark", "a") == ["accuracy", "adversarial"]
    assert complete("benchmark", "accuracy", "--tier", "") == ["full", "quick"]


@pytest.mark.skipif(shutil.which("fish") is None, reason="no fish")
def test_fish_completes_commands_options_and_values(capsys, tmp_path):
    (tmp_path / "bernflow.fish").write_text(script(capsys, "fish"))

    def complete(line):
        code = f"source bernflow.fish; complete -C '{line}'"
        found = subprocess.run(["fish", "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
        assert found.stderr == ""
        return [row.split("\t")[0] for row in found.stdout.splitlines()]

    assert complete("bernflow re") == ["report", "reproduce"]
    assert complete("bernflow fit --see") == ["--seed"]
    assert complete("bernflow reproduce --model ") == ["m1", "m2", "m3"]
    assert complete("bernflow benchmark a") == ["accuracy", "adversarial"]


# A terminal of its own, in which Tab lists what there is.
ZSH = """
zmodload zsh/zpty
zpty shell zsh -f
zpty -w shell "PROMPT=; fpath=($PWD \\$fpath); autoload -Uz compinit; compinit -u -D; stty columns 300 -echo"
zpty -w shell "bindkey '^I' list-choices; print REA''DY"
while zpty -r shell line; do [[ $line == *READY* ]] && break; done
zpty -w -n shell "$1"$'\\t'
sleep 1
while zpty -r -t shell line; do print -r -- $line; done
"""


@pytest.mark.skipif(shutil.which("zsh") is None, reason="no zsh")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("bernflow re", ["report -- write a report", "reproduce -- run the paper's"]),
        ("bernflow fit --see", ["--seed -- random seed"]),
        ("bernflow reproduce --model ", ["m1", "m2", "m3"]),
        ("bernflow benchmark ", ["accuracy", "adversarial", "speed"]),
    ],
)
def test_zsh_completes_commands_options_and_values(capsys, tmp_path, line, words):
    (tmp_path / "_bernflow").write_text(script(capsys, "zsh"))
    (tmp_path / "ask.zsh").write_text(ZSH)
    command = ["zsh", "-f", "ask.zsh", line]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True, timeout=60)
    shown = re.sub(r" +", " ", re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", found.stdout))
    assert [word for word in words if word not in shown] == []


def parsers(parser):
    """Yield the names and parsers of all commands, with those inside of a command."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in action.choices.items():
                yield name, inner
                yield from parsers(inner)


@pytest.mark.parametrize("shell", SHELLS)
def test_scripts_name_every_command_and_option(capsys, shell):
    text = script(capsys, shell)
    for name, parser in parsers(make_parser()):
        assert name in text
        flags = [flag for action in parser._actions for flag in action.option_strings]
        assert [flag for flag in flags if flag.removeprefix("--") not in text] == []


@pytest.mark.parametrize(("shell", "check"), [("bash", ["-n"]), ("zsh", ["-n"]), ("fish", ["--no-execute"])])
def test_scripts_are_valid(capsys, shell, check, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell}")
    (tmp_path / "script").write_text(script(capsys, shell))
    found = subprocess.run([shell, *check, tmp_path / "script"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


def test_an_unknown_shell_is_refused(capsys):
    assert main(["completion", "tcsh"]) == 2
    assert "there is no 'tcsh'" in capsys.readouterr().err
