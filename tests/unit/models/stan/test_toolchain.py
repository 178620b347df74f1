import importlib.util
import shutil
import subprocess
from importlib.machinery import ModuleSpec

import pytest

from bernflow.errors import BernflowError
from bernflow.models.stan import toolchain
from bernflow.models.stan.toolchain import find_compiler, find_stanc, find_toolchain


def fake_compiler(folder, text, status=0):
    path = folder / "cc"
    path.write_text(f"#!/bin/sh\necho '{text}'\nexit {status}\n")
    path.chmod(0o755)
    return path


def test_no_httpstan(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BernflowError, match=r'httpstan, which is not installed: run pip install "bernflow\[stan\]"'):
        find_toolchain()


def test_httpstan_without_stanc(monkeypatch, tmp_path):
    spec = ModuleSpec("httpstan", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(BernflowError, match="has no stanc: reinstall it"):
        find_stanc()


def test_no_compiler(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: None)
    with pytest.raises(
        BernflowError, match=r"none of g\+\+, clang\+\+, c\+\+ is found. Install one: apt-get install g"
    ):
        find_compiler()


def test_the_first_compiler_found_is_taken(monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(toolchain.shutil, "which", lambda name: name if name != "g++" else None)
    assert find_compiler() == ("clang++",)


def test_cxx_is_obeyed(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", f"{fake_compiler(tmp_path, 'clang version 20')} -stdlib=libc++")
    assert find_compiler() == (str(tmp_path / "cc"), "-stdlib=libc++")
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(BernflowError, match="'no-such-compiler' in the environment variable CXX is not found"):
        find_compiler()


@pytest.mark.parametrize("given", ['g++ "', "g++ '-O2", "g++ \\"])
def test_cxx_must_be_a_command(monkeypatch, given):
    monkeypatch.setenv("CXX", given)
    with pytest.raises(BernflowError, match=r"variable CXX=.* is no command \(No .*\): expected a C\+\+ compiler"):
        toolchain.find_compiler()


def test_a_compiler_that_does_not_run(tmp_path):
    with pytest.raises(BernflowError, match="cc' does not run"):
        toolchain._describe(tmp_path, (str(fake_compiler(tmp_path, "", status=1)),))


def test_only_gcc_gets_flags_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(toolchain.metadata, "version", lambda name: "4.13.0")
    gcc, clang = (
        toolchain._describe(tmp_path / name, (str(fake_compiler(tmp_path, text)),))
        for name, text in (("1", "Copyright Free Software Foundation"), ("2", "clang version 20"))
    )
    assert gcc.is_gcc
    assert "-fno-gnu-unique" in gcc.compile_flags()
    assert not clang.is_gcc
    assert "-fno-gnu-unique" not in clang.compile_flags()
    assert gcc.name == "cc"


def test_a_new_compiler_or_httpstan_compiles_anew(monkeypatch, tmp_path):
    identities = set()
    for number, (text, version) in enumerate([("13", "4.13"), ("14", "4.13"), ("13", "4.17")]):
        monkeypatch.setattr(toolchain.metadata, "version", lambda name, version=version: version)
        toolchain._describe.cache_clear()
        identities.add(toolchain._describe(tmp_path, (str(fake_compiler(tmp_path, text)),)).identity)
        assert len(identities) == number + 1
    toolchain._describe.cache_clear()


@pytest.mark.parametrize(
    ("answer", "system", "num"),
    [("#define __GLIBCXX__ 1", "Linux", 2), ("#define _LIBCPP_VERSION 1", "Linux", 0), ("", "Darwin", 0)],
)
def test_the_shared_runtime_is_named_where_it_is_libstdcxx(monkeypatch, tmp_path, answer, system, num):
    path = tmp_path / "cc"
    path.write_text(f'#!/bin/sh\ncase "$1" in -print*) echo {tmp_path}/${{1#*=}};; *) echo "{answer}";; esac\n')
    path.chmod(0o755)
    for name in toolchain.RUNTIME:
        (tmp_path / name).touch()
    monkeypatch.setattr(toolchain.platform, "system", lambda: system)
    chosen = toolchain.Toolchain(tmp_path / "stanc", tmp_path, (str(path),), True, "", "")
    assert [flag for flag in chosen.link_flags() if ".so" in flag] == [
        str(tmp_path / name) for name in toolchain.RUNTIME
    ][:num]
    (tmp_path / toolchain.RUNTIME[0]).unlink()
    assert str(tmp_path / toolchain.RUNTIME[0]) not in chosen.link_flags()


def test_a_compiler_that_answers_no_questions_is_asked_for_no_runtime(tmp_path):
    chosen = toolchain.Toolchain(tmp_path / "stanc", tmp_path, (str(tmp_path / "nothing"),), True, "", "")
    assert not any(".so" in flag for flag in chosen.link_flags())


@pytest.mark.skipif(
    importlib.util.find_spec("httpstan") is None or not all(map(shutil.which, ("g++", "readelf"))),
    reason="httpstan, g++ or readelf is not installed",
)
def test_flags_for_a_static_runtime_have_no_effect(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "g++ -static-libstdc++ -static-libgcc")
    chosen = find_toolchain()
    source = tmp_path / "a.cpp"
    source.write_text('#include <stdexcept>\nint f(int x) { if (x) throw std::runtime_error("x"); return 0; }\n')
    command = [*chosen.compiler, "-shared", "-fPIC", "-o", "a.so", source.name, *chosen.link_flags()]
    subprocess.run(command, cwd=tmp_path, check=True)
    needed = subprocess.run(["readelf", "-d", "a.so"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert all(f"[{name}]" in needed for name in toolchain.RUNTIME)
    symbols = subprocess.run(["readelf", "--dyn-syms", "-W", "a.so"], cwd=tmp_path, capture_output=True, text=True)
    assert [line.split()[6] for line in symbols.stdout.splitlines() if " __cxa_throw@" in line] == ["UND"]


@pytest.mark.skipif(importlib.util.find_spec("httpstan") is None, reason="httpstan is not installed")
def test_what_is_found_here_runs():
    assert "stanc3" in subprocess.run([find_stanc(), "--version"], capture_output=True, text=True).stdout
