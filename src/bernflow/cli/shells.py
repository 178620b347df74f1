"""Completion scripts of bash, zsh and fish, from a plain description of the commands."""

import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

PROGRAM = "bernflow"


class Argument(NamedTuple):
    """An option, or a word that stands by its place.

    Attributes:
        flags: `--out`, or `-o` and `--out`; none for a word.
        help: one line.
        takes_value: whether a value follows the flags.
        choices: the values that it may have, if they are known.
        is_path: whether its value names a file or a folder.
        repeated: whether it may be given many times in a row.
    """

    flags: tuple[str, ...]
    help: str
    takes_value: bool
    choices: tuple[str, ...]
    is_path: bool
    repeated: bool = False


class Words(NamedTuple):
    """What may follow a command; the name of the program itself is empty."""

    name: str
    summary: str
    options: tuple[Argument, ...]
    places: tuple[Argument, ...]


def bash(commands: Sequence[Words]) -> str:
    """Return the script for bash; it does without what bash 3 lacks."""
    values, words = [], []
    for command in commands:
        name = command.name or "''"
        for option in command.options:
            if option.takes_value:
                pattern = "|".join(f"{command.name}:{flag}" for flag in option.flags)
                values.append(f"    {pattern}) {_bash_value(option)}; return ;;")
        offered = [flag for option in command.options for flag in option.flags]
        offered += [other.name for other in commands[1:]] if not command.name else []
        offered += [choice for place in command.places for choice in place.choices]
        files = " files=1" if any(place.is_path for place in command.places) else ""
        words.append(f"    {name}) words={shlex.quote(' '.join(offered))}{files} ;;")
    names = "|".join(command.name for command in commands[1:])
    return f"""# bash completion of {PROGRAM}
_{PROGRAM}_files() {{ compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- "$cur")); }}
_{PROGRAM}() {{
  local IFS=$'\\n' cur prev command='' words='' files='' word
  cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}} COMPREPLY=()
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$word" in {names}) command=$word; break ;; esac
  done
  case "$command:$prev" in
{chr(10).join(values)}
  esac
  case "$command" in
{chr(10).join(words)}
  esac
  if [[ -n $files && $cur != -* ]]; then _{PROGRAM}_files; fi
  IFS=$' \\n'
  COMPREPLY+=($(compgen -W "$words" -- "$cur"))
}}
complete -F _{PROGRAM} {PROGRAM}
"""


def _bash_value(option: Argument) -> str:
    if option.choices:
        words = shlex.quote(" ".join(option.choices))
        return f"IFS=$' \\n'; COMPREPLY=($(compgen -W {words} -- \"$cur\"))"
    return f"_{PROGRAM}_files" if option.is_path else ":"


def zsh(commands: Sequence[Words]) -> str:
    """Return the script for zsh."""
    listed = "\n".join(f"    {_zsh_quote(f'{c.name}:{_plain(c.summary)}')}" for c in commands[1:])
    cases = "\n".join(
        f"    {command.name}) _arguments -s {' '.join(_zsh_specs(command))} ;;" for command in commands[1:]
    )
    top = " ".join(_zsh_specs(commands[0]))
    return f"""#compdef {PROGRAM}
_{PROGRAM}() {{
  local curcontext="$curcontext" context state state_descr line
  typeset -A opt_args
  local -a commands
  commands=(
{listed}
  )
  _arguments -C {top} '1: :->command' '*:: :->rest' && return
  case $state in
    command) _describe -t commands command commands ;;
    rest)
    case $line[1] in
{cases}
    esac ;;
  esac
}}
if [[ $funcstack[1] == _{PROGRAM} ]]; then _{PROGRAM} "$@"; else compdef _{PROGRAM} {PROGRAM}; fi
"""


def _zsh_specs(command: Words) -> Iterator[str]:
    for option in command.options:
        for flag in option.flags:
            value = f":value:{_zsh_action(option)}" if option.takes_value else ""
            yield _zsh_quote(f"{flag}[{_zsh_escape(option.help)}]{value}")
    for number, place in enumerate(command.places, 1):
        position = "*" if place.repeated else str(number)
        yield _zsh_quote(f"{position}:{_zsh_escape(place.help)}:{_zsh_action(place)}")


def _zsh_action(argument: Argument) -> str:
    if argument.choices:
        return f"({' '.join(argument.choices)})"
    return "_files" if argument.is_path else " "


def _zsh_escape(text: str) -> str:
    return re.sub(r"([\[\]:\\])", r"\\\1", _plain(text))


def _zsh_quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def fish(commands: Sequence[Words]) -> str:
    """Return the script for fish."""
    lines = [f"# fish completion of {PROGRAM}", f"complete -c {PROGRAM} -f"]
    top = "-n __fish_use_subcommand"
    lines += [f"complete -c {PROGRAM} {top} -a {c.name} -d {_fish_quote(c.summary)}" for c in commands[1:]]
    for command in commands:
        where = f"-n '__fish_seen_subcommand_from {command.name}'" if command.name else top
        for option in command.options:
            flags = " ".join(f"-l {f[2:]}" if f.startswith("--") else f"-s {f[1:]}" for f in option.flags)
            lines.append(
                f"complete -c {PROGRAM} {where} {flags}{_fish_value(option)} -d {_fish_quote(_plain(option.help))}"
            )
        if any(place.is_path for place in command.places):
            lines.append(f"complete -c {PROGRAM} {where} -F")
        choices = [choice for place in command.places for choice in place.choices]
        if choices:
            lines.append(f"complete -c {PROGRAM} {where} -a {_fish_quote(' '.join(choices))}")
    return "\n".join(lines) + "\n"


def _fish_value(option: Argument) -> str:
    if not option.takes_value:
        return ""
    if option.choices:
        return f" -x -a {_fish_quote(' '.join(option.choices))}"
    return " -r -F" if option.is_path else " -x"


def _fish_quote(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _plain(text: str) -> str:
    return " ".join(text.split())


SHELLS: dict[str, Callable[[Sequence[Words]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}
