"""What happens on the way to a library, with a compiler that only pretends."""

import importlib.util
import json
import os

import pytest

from bernflow.errors import ArgumentError, BernflowError, ModelError
from bernflow.models.stan import build as build_module
from bernflow.models.stan import cache, from_stan, toolchain
from bernflow.models.stan.build import Program, Translation, build, check_compiler, translate
from bernflow.models.stan.trial import try_library

needs_stanc = pytest.mark.skipif(importlib.util.find_spec("httpstan") is None, reason="httpstan is not installed")
NORMAL = "data { real y; } parameters { real mu; } model { y ~ normal(mu, 1); }"
COMPILER = """#!/bin/sh
if [ "$1" = --version ]; then echo "Free Software Foundation"; exit; fi
case "$*" in *-dM*) echo "#define __GLIBCXX__ 1"; exit;; -print-file-name=*) echo "$0"; exit;; esac
echo "$*" >> {log}
while [ $# -gt 0 ]; do if [ "$1" = -o ]; then echo "$$ made" > "$2"; fi; shift; done
{end}
"""


@pytest.fixture
def trials(monkeypatch):
    """Accept every library, and return the list of those that were tried: what a pretended compiler writes is none."""
    found = []
    monkeypatch.setattr(build_module, "try_library", lambda path, toolchain, *data: found.append((path, *data)))
    return found


@pytest.fixture
def compiler(tmp_path, monkeypatch, trials):
    """Put a compiler in place that writes down how it is called."""
    log, path = tmp_path / "calls", tmp_path / "g++"

    def install(end="exit 0"):
        path.write_text(COMPILER.format(log=log, end=end))
        path.chmod(0o755)
        return lambda: log.read_text().splitlines() if log.exists() else []

    monkeypatch.setenv("CXX", str(path))
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path))
    monkeypatch.setattr(toolchain, "_find_httpstan", lambda: tmp_path)
    monkeypatch.setattr(toolchain.metadata, "version", lambda name: "4.13.0")
    toolchain._describe.cache_clear()
    yield install
    toolchain._describe.cache_clear()


def program(code):
    return Translation(code, {"parameters": {"mu": {}}, "inputs": {}}, "")


def test_a_program_is_compiled_once_and_says_so(compiler, capsys):
    calls = compiler()
    entry = build(program("int a;"), "schools.stan", progress=True)
    assert (entry / build_module.LIBRARY).is_file()
    assert len(calls()) == 3  # program, shim, link
    assert "Compiling schools.stan with g++ (about half a minute, cached for next time)" in capsys.readouterr().err
    assert build(program("int a;"), "other.stan", progress=True) == entry
    assert len(calls()) == 3
    assert capsys.readouterr().err == ""


def test_progress_can_be_silenced(compiler, capsys):
    compiler()
    build(program("int a;"), "schools.stan", progress=False)
    assert capsys.readouterr() == ("", "")


def test_another_program_shares_the_shim(compiler):
    calls = compiler()
    assert build(program("int a;"), "a", progress=False) != build(program("int b;"), "b", progress=False)
    assert len(calls()) == 5


def test_a_new_jax_links_again_but_compiles_no_program(compiler, monkeypatch):
    calls = compiler()
    first = build(program("int a;"), "a", progress=False)
    monkeypatch.setattr(build_module.jaxlib, "__version__", "99.0")
    assert build(program("int a;"), "a", progress=False) != first
    assert [("program.cpp" in call, "shim.cpp" in call) for call in calls()[3:]] == [(False, True), (False, False)]


def test_headers_are_precompiled_for_the_third_program(compiler, capsys):
    calls = compiler()
    for code in ("int a;", "int b;"):
        build(program(code), "a", progress=True)
    assert not any("c++-header" in call for call in calls())
    build(program("int c;"), "c", progress=True)
    assert sum("c++-header" in call for call in calls()) == 1
    assert "Precompiling the headers of Stan once" in capsys.readouterr().err
    build(program("int d;"), "d", progress=False)
    assert sum("c++-header" in call for call in calls()) == 1
    assert sum("-include" in call for call in calls()) == 2


def test_a_failing_compiler(compiler):
    compiler(end="echo 'out of memory' >&2; exit 7")
    with pytest.raises(
        BernflowError, match=r"could not compile .* \(exit status 7; .*2 GB of memory\):\nout of memory"
    ):
        build(program("int a;"), "a", progress=False)


def test_the_shared_runtime_is_linked_by_name(compiler):
    calls = compiler()
    build(program("int a;"), "a", progress=False)
    assert [call.count(os.environ["CXX"]) for call in calls() if "-shared" in call] == [len(toolchain.RUNTIME)]


def test_a_new_library_is_tried_once_before_it_is_kept(compiler, trials):
    compiler()
    entry = build(program("int a;"), "a", False, '{"y": 1}', 3)
    [(path, data, seed)] = trials
    assert (data, seed) == ('{"y": 1}', 3)
    assert path.name == build_module.LIBRARY
    assert path.parent.name.startswith(f".{entry.name}-")  # not yet under its name
    build(program("int a;"), "a", False, '{"y": 2}', 3)
    assert len(trials) == 1


def test_a_library_that_crashes_is_not_kept(compiler, monkeypatch, tmp_path):
    compiler()

    def crash(*_):
        raise BernflowError("it crashed")

    with monkeypatch.context() as patch:
        patch.setattr(build_module, "try_library", crash)
        with pytest.raises(BernflowError, match="it crashed"):
            build(program("int a;"), "a", progress=False)
    assert sorted(path.name.split("-")[0] for path in (tmp_path / "stan").iterdir()) == ["object", "shim"]
    assert (build(program("int a;"), "a", progress=False) / build_module.LIBRARY).is_file()


def test_a_new_library_that_cannot_be_loaded_is_not_kept(compiler, monkeypatch, tmp_path):
    compiler()
    monkeypatch.setattr(build_module, "try_library", try_library)
    with pytest.raises(BernflowError, match=r"built with Free Software Foundation .* failed while it was loaded"):
        build(program("int a;"), "a", progress=False)
    assert not list((tmp_path / "stan").glob("*program-*"))


def test_the_check_of_the_compiler_tries_a_library_that_is_kept_too(compiler, monkeypatch, trials):
    calls = compiler()
    monkeypatch.setattr(build_module, "translate", lambda program: Translation(program.code, {}, ""))
    check_compiler(progress=False)
    check_compiler(progress=False)
    assert len(calls()) == 3
    assert len(trials) == 3


def test_a_library_that_cannot_be_loaded(compiler, monkeypatch):
    compiler()
    monkeypatch.setattr("bernflow.models.stan.frontend.translate", lambda program: program_with_info)
    program_with_info = program("int z;")
    with pytest.raises(BernflowError, match=r"cannot be loaded .*: remove it"):
        from_stan(NORMAL, {"y": 1.0}, progress=False)


@needs_stanc
def test_translation():
    translation = translate(Program(NORMAL, "m.stan"))
    assert "new_model" in translation.cpp
    assert translation.info["inputs"] == {"y": {"type": "real", "dimensions": 0}}
    assert list(translation.info["parameters"]) == ["mu"]
    # The name of the file is no part of the code: the same program in another file is not compiled again.
    assert translation == translate(Program(NORMAL, "other.stan"))


@needs_stanc
def test_includes_are_found_beside_the_file(tmp_path):
    (tmp_path / "f.stan").write_text("real twice(real x) { return 2 * x; }")
    path = tmp_path / "m.stan"
    path.write_text("functions {\n#include f.stan\n}\n" + NORMAL.replace("(mu", "(twice(mu)"))
    translation = translate(Program(path.read_text(), "m.stan", tmp_path))
    assert "twice" in translation.cpp


@needs_stanc
@pytest.mark.parametrize("name", ["a,b", "a b,", ",", "a,b/c"])
def test_includes_are_found_in_a_folder_with_a_comma(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir(parents=True)
    (folder / "f.stan").write_text("real twice(real x) { return 2 * x; }")
    code = "functions {\n#include f.stan\n}\n" + NORMAL.replace("(mu", "(twice(mu)")
    assert "twice" in translate(Program(code, "m.stan", folder)).cpp


def test_a_relative_cache_and_compiler_serve(compiler, tmp_path, monkeypatch):
    compiler()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(cache.VARIABLE, "kept")
    monkeypatch.setenv("CXX", "./g++")
    assert (build(program("int a;"), "a", progress=False) / build_module.LIBRARY).is_file()


@needs_stanc
@pytest.mark.parametrize(
    ("code", "match"),
    [
        (NORMAL.replace("real mu;", "real mu"), r"(?s)invalid. stanc reports:.*'model.stan', line 1.*\^"),
        (NORMAL.replace("(mu", "(nu"), "(?s)stanc reports:.*line 1.*nu"),
        ("parameters { real x[3]; }", "(?s)stanc reports:.*line 1"),
    ],
)
def test_a_wrong_program_shows_the_line(code, match):
    with pytest.raises(ModelError, match=match):
        from_stan(code)


@needs_stanc
@pytest.mark.parametrize(
    "name", ["$(touch harm)", "`touch harm`", "; touch harm;", "-o harm", "--o=harm", "a'b\"c", "\x1b[2J"]
)
def test_names_of_programs_are_only_names(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / f"{name}.stan"
    path.write_text("parameters {\n  real mu\n}\n")
    with pytest.raises(ModelError, match="line 3") as caught:
        from_stan(path)
    assert "\x1b" not in str(caught.value)
    assert os.listdir(tmp_path) == [path.name]


@needs_stanc
def test_a_wrong_file_is_called_by_its_name(tmp_path):
    path = tmp_path / "schools.stan"
    path.write_text("parameters {\n  real mu\n}\n")
    with pytest.raises(ModelError, match=r"(?s)'schools.stan', line 3"):
        from_stan(path)


@needs_stanc
def test_warnings_of_stanc_are_shown(compiler, capsys, tmp_path, monkeypatch):
    compiler()
    translation = Translation("int a;", json.loads("{}"), "Warning: deprecated")
    build(translation, "a", progress=True)
    assert "Warning: deprecated" in capsys.readouterr().err


@needs_stanc
@pytest.mark.parametrize("code", ["data { real y; } model { y ~ normal(0, 1); }", "model { }"])
def test_a_program_without_parameters(code):
    with pytest.raises(ModelError, match="has no parameters to infer: expected at least one in its parameters block"):
        from_stan(code, {"y": 1.0})


@pytest.mark.parametrize(
    ("model", "options", "match"),
    [
        ("nowhere.stan", {}, "'nowhere.stan' does not exist: expected a file, or a program as text"),
        (".", {}, r"The Stan program '.' cannot be read"),
        ("a\0.stan", {}, r"The Stan program 'a\\x00.stan' cannot be read"),
        ("a" * 5000 + ".stan", {}, r"The Stan program 'aaa.* cannot be read"),
        (3, {}, "the model is a builtins.int: expected the path of a .stan file, a program as text, or a bridgestan"),
        (NORMAL, {"seed": -1}, "seed=-1: expected an integer from 0 to"),
        (NORMAL, {"seed": 0.5}, "seed=0.5: expected an integer from 0 to"),
        (NORMAL, {"data": 3}, "data is a int: expected a dict"),
    ],
)
def test_refused(model, options, match):
    with pytest.raises(ArgumentError, match=match):
        from_stan(model, **options)
