"""Libraries that crash, hang and fail, tried in a process of their own."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bernflow.errors import BernflowError
from bernflow.models.stan import probe, trial
from bernflow.models.stan.toolchain import COMPILERS, Toolchain
from bernflow.models.stan.trial import try_library

# The C interface without Stan: the environment says what goes wrong, and where.
SOURCE = """
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <unistd.h>
#include <signal.h>

static void go(const char* stage) {
  const char* wanted = std::getenv("FAULT_AT");
  const char* fault = std::getenv("FAULT");
  if (wanted == nullptr || std::strcmp(wanted, stage) != 0) return;
  if (!std::strcmp(fault, "abort")) { std::fputs("free(): invalid pointer\\n", stderr); std::abort(); }
  if (!std::strcmp(fault, "segv")) raise(SIGSEGV);
  if (!std::strcmp(fault, "kill")) raise(SIGKILL);
  if (!std::strcmp(fault, "hang")) sleep(60);
}
struct Loaded { Loaded() { go("load"); } } loaded;

extern "C" {
int32_t bernflow_new(const char* json, uint32_t seed, char** said) {
  if (!std::strcmp(json, "{")) { go("raise"); return 0; }
  go("data");
  return std::strcmp(json, "refused") && seed == 7;
}
void bernflow_free(int32_t) {}
void bernflow_release(char* text) { std::free(text); }
char* bernflow_names(int32_t, int32_t which) { return which == 3 ? strdup("a\\nb\\n") : nullptr; }
char* bernflow_message(int32_t) { return nullptr; }
char* bernflow_evaluate(int64_t operation, const int32_t*, const double* in, const uint32_t*, double* out, int64_t rows,
                        int64_t num_in, int64_t num_out) {
  if (operation != 1 || rows != 1 || num_out != 3) std::abort();
  go(num_in == 0 ? "no parameters" : std::isnan(in[1]) ? "nan" : "point");
  return nullptr;
}
}
"""
COMPILER = next(filter(shutil.which, COMPILERS), None)
TOOLCHAIN = Toolchain(Path("stanc"), Path("root"), ("cxx", "-static-libstdc++"), True, "cxx 13.3.0", "")

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("library")
    (folder / "program.cpp").write_text(SOURCE)
    subprocess.run([COMPILER, "-shared", "-fPIC", "-o", "program.so", "program.cpp"], cwd=folder, check=True)
    return folder / "program.so"


@pytest.fixture
def fault(monkeypatch):
    def choose(name, stage):
        monkeypatch.setenv("FAULT", name)
        monkeypatch.setenv("FAULT_AT", stage)

    return choose


@needs_compiler
@pytest.mark.parametrize("data", ["{}", "refused"])
def test_a_library_that_works(library, data):
    before = sorted(library.parent.iterdir())
    try_library(library, TOOLCHAIN, data, 7)
    assert sorted(library.parent.iterdir()) == before


@needs_compiler
@pytest.mark.parametrize(
    ("name", "stage", "match"),
    [
        ("segv", "load", r"crashed while it was loaded \(SIGSEGV\)\."),
        ("abort", "raise", r"crashed when Stan raised an error \(SIGABRT\): free\(\): invalid pointer"),
        ("abort", "data", r"crashed while it read the data \(SIGABRT\)"),
        ("segv", "no parameters", r"crashed when Stan raised an error \(SIGSEGV\)"),
        ("segv", "point", r"crashed while it evaluated the density \(SIGSEGV\)"),
        ("segv", "nan", r"crashed while it evaluated the density \(SIGSEGV\)"),
    ],
)
def test_a_crash_is_an_error_with_its_remedy(library, fault, name, stage, match):
    fault(name, stage)
    with pytest.raises(BernflowError, match=match) as error:
        try_library(library, TOOLCHAIN, "{}", 7)
    assert "built with cxx 13.3.0 (CXX='cxx -static-libstdc++')" in str(error.value)
    assert "Set the environment variable CXX to another compiler" in str(error.value)


@needs_compiler
def test_a_large_data_set_and_a_crash_before_it_is_read(library, fault):
    fault("segv", "raise")
    with pytest.raises(BernflowError, match="SIGSEGV"):
        try_library(library, TOOLCHAIN, "{" + " " * 10_000_000, 7)


@needs_compiler
def test_an_error_that_never_returns_is_refused_but_a_slow_program_is_not(library, fault, monkeypatch):
    monkeypatch.setattr(trial, "TIMEOUT", 1)
    fault("hang", "no parameters")
    with pytest.raises(BernflowError, match="did not return within 1 seconds when Stan raised an error"):
        try_library(library, TOOLCHAIN, "{}", 7)
    for stage in ("data", "point"):
        fault("hang", stage)
        try_library(library, TOOLCHAIN, "{}", 7)


@needs_compiler
def test_a_child_that_others_ended_says_nothing_of_the_library(library, fault):
    fault("kill", "point")
    try_library(library, TOOLCHAIN, "{}", 7)


def test_a_library_that_cannot_be_loaded(tmp_path):
    path = tmp_path / "program.so"
    path.write_text("no library")
    with pytest.raises(BernflowError, match=r"failed while it was loaded \(exit status 1\): .*program.so"):
        try_library(path, TOOLCHAIN, "{}", 0)


@pytest.mark.parametrize("executable", ["", "nowhere/python", "/bin/true"])
def test_without_a_python_to_start_nothing_is_tried(tmp_path, monkeypatch, executable):
    monkeypatch.setattr(sys, "executable", executable)
    try_library(tmp_path / "program.so", TOOLCHAIN, "{}", 0)


def test_the_child_imports_the_standard_library_only():
    code = f"import runpy, sys; runpy.run_path({probe.__file__!r}); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert not {"bernflow", "jax", "numpy"} & set(run.stdout.split())


@needs_compiler
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="there is no /proc")
def test_runtimes_of_this_process_are_found():
    try:
        ctypes.CDLL("libstdc++.so.6")
    except OSError:
        pytest.skip("there is no libstdc++")
    found = [Path(path) for path in trial._loaded_runtimes()]
    assert any(path.name.startswith("libstdc++.so") and path.is_file() for path in found)
