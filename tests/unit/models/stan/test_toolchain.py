import importlib.util
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
    with pytest.raises(BernflowError, match="'no-such-compiler' of the environment variable CXX is not found"):
        find_compiler()


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


@pytest.mark.skipif(importlib.util.find_spec("httpstan") is None, reason="httpstan is not installed")
def test_what_is_found_here_runs():
    assert "stanc3" in subprocess.run([find_stanc(), "--version"], capture_output=True, text=True).stdout
