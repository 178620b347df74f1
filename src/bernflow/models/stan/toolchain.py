"""The tools to compile Stan programs: stanc and the headers of httpstan, and a C++ compiler."""

import dataclasses
import functools
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from bernflow.errors import BernflowError

COMPILERS = ("g++", "clang++", "c++")
DEFINES = ("BOOST_DISABLE_ASSERTS", "BOOST_PHOENIX_NO_VARIADIC_EXPRESSION", "STAN_THREADS", "_REENTRANT")
# The shared libraries of the C++ runtime. TBB loads them in any case; programs with a second, statically linked copy
# crashed when Stan threw an exception.
RUNTIME = ("libstdc++.so.6", "libgcc_s.so.1")
LIBRARIES = ("sundials_cvodes", "sundials_idas", "sundials_kinsol", "sundials_nvecserial", "tbb")
# No flags for specific processors, because a home folder may be shared between machines.
FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden", "-w")
NO_HTTPSTAN = 'Stan programs need httpstan, which is not installed: run pip install "bernflow[stan]".'


@dataclass(frozen=True)
class Toolchain:
    """Paths of the tools and the command of the compiler.

    Attributes:
        stanc: the translator from Stan to C++.
        root: the folder of httpstan with `include` and `lib`.
        compiler: the command of the C++ compiler.
        is_gcc: whether it is GCC, which has its own flags and precompiled headers.
        version: the first line of the output of `--version`.
        identity: a string that identifies everything that the compiled code depends on, except for the program.
    """

    stanc: Path
    root: Path
    compiler: tuple[str, ...]
    is_gcc: bool
    version: str
    identity: str

    @property
    def name(self) -> str:
        """The name of the compiler."""
        return Path(self.compiler[0]).name

    @property
    def command(self) -> str:
        """The command of the compiler, in the format of the environment variable CXX."""
        return shlex.join(self.compiler)

    def compile_flags(self) -> list[str]:
        """Return the flags for all compilations."""
        defines = [f"-D{name}" for name in DEFINES]
        if platform.system() == "Linux":
            defines.append("-D_GLIBCXX_USE_CXX11_ABI=0")  # the ABI of the libraries of httpstan
        # Programs in one process must not share the static variables of their copies of Stan.
        extra = ["-fno-gnu-unique"] if self.is_gcc else []
        return [*FLAGS, *extra, *defines, f"-I{self.root / 'include'}"]

    def link_flags(self) -> list[str]:
        """Return the libraries to link, and their run-time search path."""
        folder = self.root / "lib"
        libraries = [f"-l{name}" for name in LIBRARIES]
        return [f"-L{folder}", *libraries, *self._shared_runtime(), f"-Wl,-rpath,{folder}"]

    def _shared_runtime(self) -> list[str]:
        """Return the files of the shared C++ runtime if the compiler uses libstdc++ (not libc++).

        They are given by path, before the libraries that the compiler adds: `-lstdc++` may find only a static library,
        and -static-libgcc in CXX overrides -shared-libgcc.
        """
        if platform.system() != "Linux":
            return []
        if "__GLIBCXX__" not in self._ask("-x", "c++", "-E", "-dM", "-include", "cstddef", os.devnull):
            return []
        files = [self._ask(f"-print-file-name={name}").strip() for name in RUNTIME]
        return [file for file in files if os.path.isabs(file) and os.path.exists(file)]

    def _ask(self, *arguments: str) -> str:
        """Return the output of the compiler, or an empty string if it fails."""
        try:
            return subprocess.run([*self.compiler, *arguments], capture_output=True, text=True, timeout=60).stdout
        except (OSError, subprocess.SubprocessError):
            return ""


def find_toolchain() -> Toolchain:
    """Find httpstan and a compiler.

    Raises:
        BernflowError: if one is missing; the message says what to install.
    """
    return _describe(_find_httpstan(), find_compiler())


def find_stanc() -> Path:
    """Return the path of stanc."""
    return _find_httpstan() / "stanc"


def _find_httpstan() -> Path:
    # Do not import it, because its modules start a web framework.
    spec = importlib.util.find_spec("httpstan")
    if spec is None or not spec.submodule_search_locations:
        raise BernflowError(NO_HTTPSTAN)
    root = Path(next(iter(spec.submodule_search_locations)))
    if not (root / "stanc").is_file():
        raise BernflowError(f"httpstan at {root} has no stanc: reinstall it (pip install --force-reinstall httpstan).")
    return root


def find_compiler() -> tuple[str, ...]:
    """Return the command of a C++ compiler: $CXX, or the first found."""
    given = os.environ.get("CXX", "")
    try:
        wanted = shlex.split(given)
    except ValueError as error:
        raise BernflowError(
            f"The environment variable CXX={given!r} is no command ({error}): expected a C++ compiler, with flags if "
            "need be, such as 'clang++ -m64'. Correct or unset it."
        ) from error
    if wanted:
        found = shutil.which(wanted[0])
        if found is None:
            raise BernflowError(
                f"The C++ compiler {wanted[0]!r} in the environment variable CXX is not found: correct or unset it."
            )
        # An absolute path, because it is run in another folder.
        return (os.path.abspath(found) if os.path.dirname(wanted[0]) else wanted[0], *wanted[1:])
    found = next((name for name in COMPILERS if shutil.which(name)), None)
    if found is None:
        raise BernflowError(
            f"Stan programs need a C++ compiler, but none of {', '.join(COMPILERS)} is found. Install one: apt-get "
            "install g++ (Debian, Ubuntu), dnf install gcc-c++ (Fedora), xcode-select --install (macOS), conda install "
            "gxx (conda); or name it in the environment variable CXX."
        )
    return (found,)


@functools.cache
def _describe(root: Path, compiler: tuple[str, ...]) -> Toolchain:
    try:
        run = subprocess.run([*compiler, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        raise BernflowError(f"The C++ compiler {shlex.join(compiler)!r} does not run ({error}).") from error
    is_gcc = "Free Software Foundation" in run.stdout
    version = next(iter(run.stdout.strip().splitlines()), "an unknown version")
    toolchain = Toolchain(root / "stanc", root, compiler, is_gcc, version, "")
    parts = (
        run.stdout,
        shlex.join(compiler),
        shlex.join(toolchain.compile_flags()),
        metadata.version("httpstan"),
        platform.system(),
        platform.machine(),
    )
    return dataclasses.replace(toolchain, identity="\n".join(parts))
