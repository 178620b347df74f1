"""`bernflow doctor`: report what is installed, what works, and what to install for optional features."""

import argparse
import os
import platform
import shlex
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from bernflow.cli.command import Command
from bernflow.cli.features import BASE, FEATURES
from bernflow.errors import BernflowError
from bernflow.files import json_text
from bernflow.models.stan.build import check_compiler
from bernflow.models.stan.cache import VARIABLE, default_folder, find_problem
from bernflow.models.stan.toolchain import find_compiler, find_stanc
from bernflow.precision import resolve_precision
from bernflow.versions import UNKNOWN, version_of

# Its attributes are created when jax is imported, so type checkers do not know them.
CONFIG: Any = jax.config
TIMEOUT = 30
LABEL_WIDTH = 16


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--no-compile", action="store_true", help="do not compile a small Stan program")


def run(options: argparse.Namespace) -> None:
    """Examine and print."""
    found = examine(compile_stan=not options.no_compile)
    print(json_text(found) if options.json else "\n".join(_lines(found)), end="" if options.json else "\n")


def examine(compile_stan: bool = True) -> dict[str, Any]:
    """Find out what is installed and what works; JSON-serializable.

    Args:
        compile_stan: compile a small Stan program, unless it is cached, and run it.
    """
    optional = dict.fromkeys(name for feature in FEATURES for name in feature.packages)
    packages = {name: _version(name) for name in (*BASE, *optional)}
    stan = {"stanc": _tool(lambda: (str(find_stanc()),)), "compiler": _tool(find_compiler)}
    ready = all(tool["problem"] is None for tool in stan.values())
    program = _stan_program() if compile_stan and ready else {"tried": False, "problem": None}
    compiler = ["a C++ compiler"] if stan["compiler"]["problem"] else []
    if program["problem"]:
        compiler = ["a working C++ compiler"]
    return {
        "bernflow": version_of("bernflow"),
        "python": platform.python_version(),
        "executable": sys.executable,
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        "packages": packages,
        "outdated": _outdated(),
        "jax": _jax(),
        "stan": stan,
        "stan_program": program,
        "folders": _folders(),
        "features": [
            {
                "name": feature.name,
                "use": feature.use,
                "missing": [name for name in feature.packages if packages[name] is None]
                + (compiler if feature.extra == "stan" else []),
                "install": feature.install,
            }
            for feature in FEATURES
        ],
    }


def _version(package: str) -> str | None:
    version = version_of(package)
    return None if version == UNKNOWN else version


def _outdated() -> list[str]:
    """List unmet requirements of bernflow itself."""
    from packaging.requirements import Requirement  # comes with matplotlib

    try:
        requirements = metadata.requires("bernflow") or ()
    except metadata.PackageNotFoundError:  # an uninstalled source tree has no metadata
        return []
    problems = []
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = _version(requirement.name)
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            found = f"{version} is installed" if version else "it is not installed"
            problems.append(f"bernflow needs {requirement.name} {requirement.specifier}, but {found}.")
    return problems


def _jax() -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # problems are reported below
        try:
            devices = [{"platform": d.platform, "kind": d.device_kind, "id": d.id} for d in jax.devices()]
            problem = None
        except RuntimeError as error:
            devices, problem = [], str(error)
    return {
        "devices": devices,
        "problem": problem,
        "x64": bool(CONFIG.jax_enable_x64),
        "fit_precision": resolve_precision(None),
        "compilation_cache": CONFIG.jax_compilation_cache_dir,
    }


def _tool(find: Callable[[], tuple[str, ...]]) -> dict[str, str | None]:
    """Find a program and its version."""
    try:
        command = find()
    except BernflowError as error:
        return {"command": None, "version": None, "problem": str(error)}
    try:
        answer = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=TIMEOUT, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return {"command": shlex.join(command), "version": None, "problem": f"It does not run ({error})."}
    version = next(iter(answer.stdout.strip().splitlines()), "")
    return {"command": shlex.join(command), "version": version, "problem": None}


def _stan_program() -> dict[str, Any]:
    """Compile and run a small Stan program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # problems of the cache are reported with the folders
        try:
            check_compiler(progress=True)
        except (BernflowError, ImportError, OSError) as error:  # ImportError: httpstan without metadata
            return {"tried": True, "problem": str(error)}
    return {"tried": True, "problem": None}


def _folders() -> list[dict[str, Any]]:
    use = "compiled Stan programs"
    try:
        stan = default_folder()
        folders = [_folder(use, stan, VARIABLE, find_problem(stan) if stan.is_dir() else None)]
    except (OSError, RuntimeError) as error:  # RuntimeError: the home folder is unknown
        folders = [_no_folder(use, VARIABLE, str(error))]
    compiled = CONFIG.jax_compilation_cache_dir
    if compiled and "://" not in compiled:
        folders.append(_folder("compiled JAX functions", Path(compiled), "JAX_COMPILATION_CACHE_DIR", None))
    return folders


def _folder(use: str, path: Path, variable: str, problem: str | None) -> dict[str, Any]:
    """Describe a folder without creating it."""
    exists = path.is_dir()
    nearest = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    writable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    if problem is None and not writable:
        problem = "it cannot be written to" if exists else f"it cannot be created in {nearest}"
    others = exists and bool(path.stat().st_mode & 0o077)
    return {
        "use": use,
        "path": str(path),
        "exists": exists,
        "writable": writable,
        "private": not others if exists else None,
        "variable": variable,
        "problem": problem,
    }


def _no_folder(use: str, variable: str, problem: str) -> dict[str, Any]:
    nothing = {"path": None, "exists": False, "writable": False, "private": None}
    return {"use": use, "variable": variable, "problem": problem, **nothing}


def _lines(found: dict[str, Any]) -> Iterator[str]:
    yield f"bernflow {found['bernflow']}, Python {found['python']}, {found['platform']}"
    yield f"{found['executable']}, {found['cores']} cores"
    yield "\nPackages"
    width = max(map(len, found["packages"])) + 2
    for name, version in found["packages"].items():
        yield f"  {name:<{width}}{version or 'not installed'}"
    yield from (f"  ! {problem}" for problem in found["outdated"])
    yield "\nDevices"
    for device in found["jax"]["devices"]:
        yield f"  {device['platform']} {device['id']:<{LABEL_WIDTH - len(device['platform']) - 1}}{device['kind']}"
    if found["jax"]["problem"]:
        yield f"  ! JAX finds none: {found['jax']['problem']}"
    x64 = "on" if found["jax"]["x64"] else "off"
    yield f"  {'x64':<{LABEL_WIDTH}}{x64} by default in JAX; bernflow fits always use {found['jax']['fit_precision']}"
    if not found["jax"]["compilation_cache"]:
        yield f"  {'cache':<{LABEL_WIDTH}}off: every process compiles again; set JAX_COMPILATION_CACHE_DIR"
    yield "\nStan"
    for name, tool in found["stan"].items():
        text = f"{tool['version']} ({tool['command']})" if tool["version"] is not None else "missing"
        yield f"  {name:<{LABEL_WIDTH}}{text}"
    program = found["stan_program"]
    state = "fails, see below" if program["problem"] else "compiled, evaluated, and its errors are caught"
    yield f"  {'a program':<{LABEL_WIDTH}}{state if program['tried'] else 'not tried'}"
    yield "\nFolders"
    for folder in found["folders"]:
        state = "private" if folder["private"] else "others can read it"
        state = f"writable, {state}" if folder["exists"] else "created on first use"
        yield f"  {folder['path'] or 'no folder'}"
        yield f"  {'':<{LABEL_WIDTH}}{folder['use']}; {folder['problem'] or state} (to change: {folder['variable']})"
    yield "\nFeatures"
    for feature in found["features"]:
        missing = feature["missing"]
        yield f"  {'missing' if missing else 'ok':<{LABEL_WIDTH}}{feature['name']}: {feature['use']}"
        if missing:
            yield f"  {'':<{LABEL_WIDTH}}needs {', '.join(missing)}: {feature['install']}"
    for problem in (found["stan"]["compiler"]["problem"], program["problem"]):
        if problem:
            yield f"\n{problem}"


COMMAND = Command(
    name="doctor",
    summary="report what is installed, what works and what is missing",
    description=(
        "Print versions, devices, the tools for Stan programs and the cache folders, and list features that need "
        "something that is not installed. If the tools for Stan are available, a small program is compiled and cached; "
        "the first time takes about half a minute. Nothing else is changed."
    ),
    add_arguments=add_arguments,
    run=run,
    epilog="""
examples:
  bernflow doctor
  bernflow doctor --json
  bernflow doctor --no-compile
""",
)
