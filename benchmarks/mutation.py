"""Break the code in small ways, one at a time, and see whether the tests notice.

Run `python -m benchmarks.mutation [--num 50] [--seed 0] [--modules flows/bernstein.py ...]`. The code is changed in a
copy; the working tree stays as it is. What survives is printed as a diff: a test is missing there, or the change makes
no difference.
"""

import argparse
import difflib
import os
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator

ROOT = Path(__file__).parents[1]
# The packages, and the module beside them, that are changed; every module of theirs has its tests below.
PACKAGES = ("diagnostics", "flows")
# The tests that are to notice, by module: fast ones, so that a mutant takes seconds, and of the contract those flows
# that the module is a part of.
CONTRACT = "tests/contract/test_flows.py"
PARTS = "tests/unit/flows/test_parts.py"
TESTS = {
    "diagnostics/agreement.py": "tests/unit/diagnostics/test_agreement.py",
    "diagnostics/chains.py": "tests/unit/diagnostics/test_chains.py",
    "diagnostics/distances.py": "tests/unit/diagnostics/test_distances.py",
    "diagnostics/importance.py": "tests/unit/diagnostics/test_importance.py tests/unit/diagnostics/test_verdict.py",
    "diagnostics/properness.py": "tests/unit/diagnostics/test_properness.py",
    "diagnostics/summaries.py": "tests/unit/diagnostics/test_summaries.py",
    "diagnostics/uniformity.py": "tests/unit/diagnostics/test_uniformity.py",
    "diagnostics/verdict.py": "tests/unit/diagnostics/test_verdict.py",
    "flows/affine.py": f"{CONTRACT} -k 'gaussian or meanfield or bernstein-2'",
    "flows/autoregressive.py": f"{CONTRACT} -k 'bernstein and not wide and not paper'",
    "flows/base.py": f"{CONTRACT} -k gaussian",
    "flows/bernstein.py": f"{CONTRACT} -k 'law or order or differences or equally or increments or coefficients'",
    "flows/conditioner.py": f"{PARTS} {CONTRACT} -k 'conditioner or network or bernstein-5 or wide-5 or paper-f1-2'",
    "flows/external.py": "tests/unit/flows/test_external.py",
    "flows/families.py": f"{PARTS} {CONTRACT} -k 'family or families or new or recipe'",
    "flows/gaussian.py": f"{CONTRACT} -k 'gaussian or student'",
    "flows/marginals.py": f"{PARTS} {CONTRACT} -k 'marginal or wide-2 or dimensions'",
    "flows/mixture.py": f"{PARTS} {CONTRACT} -k mixture",
    "flows/noise.py": f"{PARTS} {CONTRACT} -k 'noise or logistic-1 or bernstein-1'",
    "flows/paper.py": f"{PARTS} {CONTRACT} -k paper",
    "flows/tails.py": f"{PARTS} {CONTRACT} -k tails",
    "flows/wide.py": f"{PARTS} {CONTRACT} -k 'wide or followers or dimensions'",
    "target.py": "tests/unit/test_target.py -k 'not round_trip and not free_coordinates or positive or simplex'",
}
# Changes that a reader could overlook; others, such as << for +, fail at once and tell nothing.
ARITHMETIC = ("Add_Sub", "Sub_Add", "Mul_Div", "Div_Mul", "Pow_Mul")
COMPARISONS = ("Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt", "Lt_Gt", "Gt_Lt", "Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is")
OTHERS = ("AddNot", "NumberReplacer", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceTrueWithFalse")
OPERATORS = (
    *(f"ReplaceBinaryOperator_{name}" for name in ARITHMETIC),
    *(f"ReplaceComparisonOperator_{name}" for name in COMPARISONS),
    *OTHERS,
    "ReplaceFalseWithTrue",
    "ReplaceUnaryOperator_USub_UAdd",
)
# A mutant that takes so many times as long as the code itself loops forever.
PATIENCE = 4.0


class Mutant(NamedTuple):
    """One change of one module."""

    module: str
    operator: str
    text: str


def untested() -> list[str]:
    """List the modules that have no tests in the table."""
    source = ROOT / "src" / "bernflow"
    found = {path.relative_to(source).as_posix() for package in PACKAGES for path in (source / package).glob("*.py")}
    return sorted(name for name in found - set(TESTS) if not name.endswith("__init__.py"))


def mutants_of(module: str) -> list[Mutant]:
    """List all changes of a module."""
    source = (ROOT / "src" / "bernflow" / module).read_text()
    found = []
    for name in OPERATORS:
        number = 0
        while (text := mutate_code(source, get_operator(f"core/{name}")(), number)) is not None:
            found.append(Mutant(module, name, text))
            number += 1
    return [mutant for mutant in found if mutant.text != source and _guards(mutant.text) == _guards(source)]


def _guards(text: str) -> list[int]:
    """Count what only guards against mistakes that nobody has made."""
    return [text.count(guard) for guard in ("strict=True", "frozen=True")]


def difference(mutant: Mutant) -> str:
    """Show a change."""
    before = (ROOT / "src" / "bernflow" / mutant.module).read_text().splitlines()
    lines = difflib.unified_diff(before, mutant.text.splitlines(), mutant.module, mutant.operator, n=0, lineterm="")
    return "\n".join(lines)


def run_tests(copy: Path, tests: str, timeout: float | None) -> bool:
    """Tell whether the tests pass; a run that does not end does not pass."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *shlex.split(tests)]
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main(argv: list[str] | None = None) -> int:
    """Try a sample of mutants; return how many survived."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation", description=__doc__.splitlines()[0])
    parser.add_argument("--num", type=int, default=50, help="number of mutants, drawn at random (default 50)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default 0)")
    parser.add_argument("--modules", nargs="+", choices=list(TESTS), default=list(TESTS), metavar="MODULE")
    options = parser.parse_args(argv)
    if missing := untested():
        raise SystemExit(f"{', '.join(missing)}: name the tests that are to notice in TESTS of {Path(__file__).name}.")
    everything = [mutant for module in options.modules for mutant in mutants_of(module)]
    chosen = random.Random(options.seed).sample(everything, min(options.num, len(everything)))
    print(f"{len(chosen)} of {len(everything)} mutants of {len(options.modules)} modules", flush=True)
    num_alive = 0
    with tempfile.TemporaryDirectory(prefix="bernflow-mutants-") as folder:
        copy = Path(folder)
        for name in ("src", "tests", "pyproject.toml"):
            source = ROOT / name
            (shutil.copytree if source.is_dir() else shutil.copy)(source, copy / name)
        limits: dict[str, float] = {}
        for tests in dict.fromkeys(TESTS[mutant.module] for mutant in chosen):
            began = time.monotonic()
            if not run_tests(copy, tests, None):
                raise SystemExit(f"{tests}: these tests fail without any change: mend them first.")
            limits[tests] = PATIENCE * (time.monotonic() - began)
        for mutant in chosen:
            place, tests = copy / "src" / "bernflow" / mutant.module, TESTS[mutant.module]
            original = place.read_text()
            place.write_text(mutant.text)
            alive = run_tests(copy, tests, limits[tests])
            place.write_text(original)
            num_alive += alive
            print(f"{'survived' if alive else 'noticed':9}{mutant.module} {mutant.operator}", flush=True)
            if alive:
                print(difference(mutant), flush=True)
    print(f"{len(chosen) - num_alive} of {len(chosen)} noticed")
    return num_alive


if __name__ == "__main__":
    main()
