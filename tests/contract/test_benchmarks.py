"""The experiments and suites use the public API; what they still take from inside of the library is listed here."""

import ast
from pathlib import Path

import bernflow

ROOT = Path(bernflow.__file__).parents[2] / "benchmarks"
PUBLIC = {"bernflow", "bernflow.cli", "bernflow.diagnostics", "bernflow.flows", "bernflow.numpyro", "bernflow.plots"}
# Private modules by package of `benchmarks`. This list may only become shorter: a test fails where an entry is not
# needed any more. `speed` times compiled training steps and their parts, `stopping` continues a training beyond its
# end, `semistructured` maps training and posterior over data sets, `melanoma` trains networks with a validation set,
# and `study.writing` takes helpers for files for all of them.
ALLOWED = {
    "accuracy": "diagnostics.agreement diagnostics.chains fit.engine fit.start plots.style",
    "melanoma": (
        "compiled fit.batches.fitting fit.batches.rows fit.batches.stage fit.run fit.settings fit.train.loop "
        "fit.train.scan fit.train.state "
        "keys models.network precision"
    ),
    "models": "diagnostics.chains models precision",
    "nuts": "diagnostics.chains",
    "paper": "plots.style",
    "posteriordb": "diagnostics.agreement precision",
    "semistructured": (
        "models.network plots.style semistructured.crossfit semistructured.features semistructured.fitting "
        "semistructured.lastlayer semistructured.training semistructured.verdict"
    ),
    "speed": (
        "diagnostics.chains fit.batches.rows fit.batches.stage fit.building fit.deadline fit.evaluation fit.settings "
        "fit.start fit.train.objective fit.train.recipe fit.train.scan fit.train.state fit.train.steps "
        "fit.work flows.autoregressive flows.bernstein flows.conditioner flows.paper "
        "flows.wide keys models models.base objectives plots.style precision target"
    ),
    "stan": "models target",
    "stopping": "fit.engine fit.evaluation fit.train.loop fit.train.recipe fit.train.stopping keys precision",
    "study": "diagnostics.chains files folders plots.style posterior.container text versions",
}


def private_modules(path):
    """Yield the private modules of the library that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "bernflow":
            inside = [alias.name for alias in node.names if alias.name not in bernflow.__all__]
            names = [name for part in inside if _is_module(name := f"bernflow.{part}")]
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("bernflow."):
            inner = [name for alias in node.names if _is_module(name := f"{node.module}.{alias.name}")]
            names = inner or [node.module]
        yield from (name for name in names if name.split(".")[0] == "bernflow" and name not in PUBLIC)


def _is_module(name):
    place = Path(bernflow.__file__).parents[1].joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()


def test_experiments_and_suites_use_the_public_api():
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        package = path.relative_to(ROOT).parts[0].removesuffix(".py")
        found.setdefault(package, set()).update(name.removeprefix("bernflow.") for name in private_modules(path))
    allowed = {package: set(names.split()) for package, names in ALLOWED.items()}
    assert {package: names for package, names in found.items() if names} == allowed


def test_a_private_import_is_seen(tmp_path):
    path = tmp_path / "file.py"
    path.write_text("import bernflow as bf\nfrom bernflow import fit, target\nfrom bernflow.fit import engine\n")
    assert list(private_modules(path)) == ["bernflow.target", "bernflow.fit.engine"]


def test_the_library_does_not_import_them():
    source = Path(bernflow.__file__).parent
    imports = [
        (path.name, node.module)
        for path in source.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "benchmarks"
    ]
    assert imports == []
