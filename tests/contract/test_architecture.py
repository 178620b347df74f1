"""One way through the house: a package imports only from those to its left."""

import ast
import inspect
from pathlib import Path

import bernflow

SRC = Path(bernflow.__file__).parent
LAYERS = (
    (
        "background",
        "compiled",
        "errors",
        "files",
        "fingerprint",
        "filters",
        "folders",
        "forks",
        "functions",
        "keys",
        "locks",
        "memory",
        "moved",
        "nearest",
        "placement",
        "precision",
        "sealed",
        "text",
        "user",
        "versions",
        "watched",
    ),
    ("models",),
    ("target", "preflight"),
    ("flows",),
    ("objectives",),
    ("diagnostics",),
    ("posterior",),
    ("fit",),
    ("calibrate", "compare", "many", "semistructured", "numpyro"),
    ("plots",),
    ("report",),
    ("runs",),
    ("cli",),
)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
# Two-line delegates of Posterior import what they delegate to inside the method: (file, function, package).
ALLOWED_UPWARD = {
    ("posterior/posterior.py", "plot", "plots"),
    ("posterior/posterior.py", "report", "report"),
    ("calibrate/result.py", "plot", "plots"),
    ("compare/result.py", "plot", "plots"),
    ("semistructured/estimator.py", "plot", "plots"),
}
MAX_LINES = 400

FILES = sorted(SRC.rglob("*.py"))


def by_file(check, files=FILES):
    """Return what a check finds, file by file; one test reads all of them."""
    found = {str(path.relative_to(SRC)): list(check(path)) for path in files}
    return {name: findings for name, findings in found.items() if findings}


def package_of(path):
    return path.relative_to(SRC).parts[0].removesuffix(".py")


def imports(path):
    """Yield (enclosing function or None, imported module) of every import in a file, those in functions too."""
    inside = path.parent.relative_to(SRC.parent).parts

    def visit(node, function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        if isinstance(node, ast.Import):
            yield from ((function, alias.name) for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            base = ".".join(inside[: len(inside) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            yield function, module
            if module == "bernflow":
                yield from ((function, f"bernflow.{alias.name}") for alias in node.names)
        for child in ast.iter_child_nodes(node):
            yield from visit(child, function)

    return list(visit(ast.parse(path.read_text()), None))


def upward_imports(path):
    here = package_of(path)
    found = []
    for function, module in imports(path):
        parts = module.split(".")
        if parts[0] != "bernflow" or len(parts) < 2 or parts[1] == here or parts[1] not in RANK:
            continue
        delegate = (str(path.relative_to(SRC)), function, parts[1]) in ALLOWED_UPWARD
        if RANK[parts[1]] >= RANK[here] and parts[1] not in LAYERS[RANK[here]] and not delegate:
            found.append(f"{function or 'module level'} imports {module}")
    return found


def test_every_package_has_a_place():
    assert {package_of(path) for path in FILES} - {"__init__", "__main__"} <= set(RANK)


def test_imports_point_to_the_left():
    assert by_file(upward_imports, [path for path in FILES if package_of(path) in RANK]) == {}


def test_an_upward_import_is_seen(monkeypatch):
    monkeypatch.setitem(RANK, "diagnostics", len(LAYERS) - 1)
    monkeypatch.setitem(RANK, "flows", len(LAYERS) - 1)
    assert upward_imports(SRC / "fit" / "api.py")
    assert upward_imports(SRC / "objectives.py")


def test_the_plot_delegate_is_the_only_way_from_posterior_to_plots():
    found = [
        (str(path.relative_to(SRC)), function, module.split(".")[1])
        for path in FILES
        if package_of(path) == "posterior"
        for function, module in imports(path)
        if module.startswith(("bernflow.plots", "bernflow.report", "bernflow.fit"))
    ]
    assert set(found) <= ALLOWED_UPWARD
    assert all(function is not None for _, function, _ in found)


def test_modules_are_short():
    lengths = {str(path.relative_to(SRC)): len(path.read_text().splitlines()) for path in FILES}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


# What they read can execute code.
EXECUTING = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle"}


def execution_of_data(source):
    """Yield what a module does that could execute what it reads: pickles, NumPy's among them, and eval of texts."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (f"imports {name}" for name in names if name.split(".")[0] in EXECUTING)
        if not isinstance(node, ast.Call):
            continue
        function = ast.unparse(node.func)
        keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if function in ("np.load", "numpy.load") and keywords.get("allow_pickle") != "False":
            yield f"{function} without allow_pickle=False"
        if keywords.get("allow_pickle", "False") != "False":
            yield f"{function} with allow_pickle"
        if function in ("eval", "exec", "yaml.load", "pd.read_pickle", "__import__"):
            yield f"calls {function}"


def test_nothing_that_is_read_is_executed():
    assert by_file(lambda path: execution_of_data(path.read_text())) == {}


def test_an_execution_of_data_is_seen():
    sources = (
        "import pickle",
        "def f():\n    from marshal import loads",
        "import joblib.numpy_pickle",
        "np.load(path)",
        "np.load(path, mmap_mode='r')",
        "numpy.load(path, allow_pickle=True)",
        "np.lib.format.read_array(file, allow_pickle=flag)",
        "eval(text)",
    )
    assert [source for source in sources if not list(execution_of_data(source))] == []


def lasting_functions(source):
    """Yield uses of `jax.jit` and `eqx.filter_jit` outside of functions: they hold what they compile for good."""

    def visit(node):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("jax.jit", "eqx.filter_jit"):
            yield f"line {node.lineno}: {ast.unparse(node)}"
        is_function = isinstance(node, ast.FunctionDef | ast.Lambda)
        for child in getattr(node, "decorator_list", []) if is_function else ast.iter_child_nodes(node):
            yield from visit(child)

    return list(visit(ast.parse(source)))


def test_lasting_functions_can_be_cleared():
    """They are compiled by `bernflow.compiled`, which knows them."""
    assert by_file(lambda path: lasting_functions(path.read_text())) == {}


def test_a_lasting_function_is_seen():
    for source in (
        "@jax.jit\ndef f(x): ...",
        "@partial(jax.jit, inline=True)\ndef f(x): ...",
        "f = eqx.filter_jit(g)",
    ):
        assert lasting_functions(source)


def test_no_module_is_called_utils():
    assert not [path for path in FILES if path.stem in ("utils", "helpers", "misc")]


def test_public_names_have_a_docstring_of_their_own():
    texts = {name: inspect.cleandoc(getattr(bernflow, name).__doc__ or "\n") for name in bernflow.__all__}
    assert [name for name, text in texts.items() if not text.split("\n")[0].endswith((".", "?"))] == []
