"""Checksums of values: whatever changes what a function computes changes its checksum, and nothing else does."""

import functools
import importlib
import os
import subprocess
import sys
import textwrap
import threading
import types
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import optax
import pytest

import bernflow as bf
from bernflow.errors import ArgumentError
from bernflow.fingerprint import fingerprint

SCALE = 1.0


def closed(value):
    return lambda x: x + value


def nested(value):
    def outer(x):
        def inner(z):
            return z * value

        return inner(x)

    return outer


def default(value):
    def function(x, scale=value, *, shift=value):
        return x * scale + shift

    return function


def of_global(x):
    return x * SCALE


def through(x):
    return of_global(x) + 1


class Callable:
    def __init__(self, value):
        self.value = value

    @functools.cached_property
    def expensive(self):
        return np.ones(3)

    def __call__(self, x):
        return x + self.value


class Slotted:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Module(eqx.Module):
    value: float = eqx.field(static=True)


def renamed(body):
    space = {}
    exec(textwrap.dedent(body), space)
    return space["f"]


def masked(value):
    return np.ma.MaskedArray([1.0, 2.0], [False, value > 1.5])


MAKERS = {
    "closure": closed,
    "array in a closure": lambda v: closed(np.array([v])),
    "JAX array in a closure": lambda v: closed(jnp.array([v])),
    "nested closure": nested,
    "defaults": default,
    "partial": lambda v: functools.partial(closed(0.0), v),
    "method": lambda v: Callable(v).__call__,
    "object": Callable,
    "slots": Slotted,
    "module": Module,
    "jit": lambda v: jax.jit(closed(v)),
    "vmap": lambda v: jax.vmap(closed(v)),
    "gradient": lambda v: jax.grad(closed(v)),
    "lru_cache": lambda v: functools.lru_cache(closed(v)),
    "custom_jvp": lambda v: jax.custom_jvp(closed(v)),
    "distribution": lambda v: dist.Normal(0.0, v),
    "dict": lambda v: {"a": [v, {"b": (v,)}]},
    "set": lambda v: {v, "a", "b"},
    "long list": lambda v: [0.0] * 5000 + [v],
    "text": str,
    "objects in an array": lambda v: np.array([v, None, "a"], object),
    "mask": masked,
    "key": lambda v: jax.random.key(int(v)),
    "optimizer": optax.adam,
    "schedule": lambda v: optax.adam(optax.cosine_decay_schedule(1e-2, int(1000 * v))),
    "generator": lambda v: np.random.default_rng(int(v)),
    "constant": lambda v: renamed(f"def f(x):\n    return x * {v}"),
    "code": lambda v: renamed(f"def f(x):\n    return x {'+' if v == 1 else '-'} 2.0"),
    "bound of a loop": lambda v: renamed(f"def f(x):\n    return [x for _ in range({int(v)})]"),
    "class": lambda v: type("Own", (), {"go": closed(v), "__module__": "elsewhere"}),
    "base class": lambda v: type("Own", (type("Base", (), {"a": v, "__module__": "elsewhere"}),), {"__module__": "e"}),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_content_counts(make):
    assert fingerprint(make(1.0)) == fingerprint(make(1.0))
    assert fingerprint(make(1.0)) != fingerprint(make(2.0))


def test_globals_count_also_through_other_functions(monkeypatch):
    before = fingerprint(through), fingerprint(closed)
    monkeypatch.setitem(globals(), "SCALE", 2.0)
    assert fingerprint(through) != before[0]
    assert fingerprint(closed) == before[1]  # which reads no global


def test_modules_of_the_user_count_as_far_as_they_are_read(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "constants_of_a_user.py").write_text("USED, UNUSED = 1.0, 1.0\ndef f(): return USED\n")
    import constants_of_a_user as module

    read = renamed("def f():\n    return m.USED")
    read.__globals__["m"] = module
    imports = renamed("def f():\n    from constants_of_a_user import f\n    return f()")
    before = fingerprint(read), fingerprint(imports)
    module.UNUSED = 2.0
    assert (fingerprint(read), fingerprint(imports)) == before
    module.USED = 2.0
    assert fingerprint(read) != before[0]
    assert fingerprint(imports) != before[1]
    del sys.modules["constants_of_a_user"]


# Each reads SCALE of a user's module without naming the attribute in the function, or by a variable that is no global.
READS = {
    "getattr": "def f(): return getattr(m, 'SC' + 'ALE'.lower().upper())",
    "name in a variable": "NAME = 'SCALE'\ndef f(): return getattr(m, NAME)",
    "vars": "NAME = 'SCALE'\ndef f(): return vars(m)[NAME]",
    "__dict__": "NAME = 'SCALE'\ndef f(): return m.__dict__[NAME]",
    "alias": "NAME = 'SCALE'\ndef f():\n    n = m\n    return getattr(n, NAME)",
    "argument": "def of(any): return any.SCALE\ndef f(): return of(m)",
    "default": "def f(n=m): return n.SCALE",
    "closure": "def make(n):\n    return lambda: n.SCALE\nf = make(m)",
    "attribute": "class A:\n    def __init__(self): self.m = m\n    def __call__(self): return self.m.SCALE\nf = A()",
    "partial": "import functools\nf = functools.partial(getattr, m, 'SCALE')",
    "import": "NAME = 'SCALE'\ndef f():\n    import values_of_a_user\n    return getattr(values_of_a_user, NAME)",
    "import as": "NAME = 'SCALE'\ndef f():\n    import values_of_a_user as n\n    return getattr(n, NAME)",
    "part of a package": "import package_of_a_user as p\nN = 'SCALE'\ndef f(): return getattr(p.values, N)",
    "from a package": "N = 'SCALE'\ndef f():\n    from package_of_a_user import values as v\n    return getattr(v, N)",
    "top of a package": "def f():\n    import package_of_a_user.values\n    return package_of_a_user.values.SCALE",
    "relative": "__package__ = 'package_of_a_user'\ndef f():\n    from .values import SCALE\n    return SCALE",
    "import_module": "from importlib import import_module as import_module\n"
    "def f(): return import_module('values_of_a_user').SCALE",
    "computed attribute": "import computing_module as c\ndef f(): return c.SCALE",
    "globals": "SCALE = m.SCALE\ndef f(): return globals()['SC' + 'ALE'.upper()]",
    "eval": "SCALE = m.SCALE\ndef f(): return eval('SCALE')",
}


def user_modules(folder, scale):
    """Write and import modules of a user, one of which has a scale."""
    (folder / "package_of_a_user").mkdir(exist_ok=True)
    (folder / "package_of_a_user" / "__init__.py").write_text("from package_of_a_user import values\n")
    for path in ("values_of_a_user.py", "package_of_a_user/values.py"):
        (folder / path).write_text(f"SCALE = {scale}\n")
    code = f"from values_of_a_user import SCALE as VALUE\ndef __getattr__(name): return {scale}\n"
    (folder / "computing_module.py").write_text(code)
    names = ["values_of_a_user", "package_of_a_user", "package_of_a_user.values", "computing_module"]
    for name in names:
        sys.modules.pop(name, None)
    return [importlib.import_module(name) for name in names]


@pytest.mark.parametrize("code", READS.values(), ids=READS)
def test_modules_that_are_read_by_other_means_count_as_a_whole(code, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = []
    for scale in (1.0, 1.0, 2.0):
        module, *_ = user_modules(tmp_path, scale)
        space = {"m": module, "__name__": "model_of_a_user"}
        exec(code, space)
        assert space["f"]() == scale
        found.append(fingerprint(space["f"]))
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_attributes_that_are_not_named_do_not_count():
    module = types.ModuleType("values_of_a_user")
    module.SCALE, module.OTHER = 1.0, 1.0
    f = renamed("def f():\n    return m.SCALE * m.SCALE")
    f.__globals__["m"] = module
    before = fingerprint(f)
    module.OTHER = 2.0
    assert fingerprint(f) == before


def test_what_does_not_change_the_result_does_not_count():
    one = renamed("def f(x):\n    # a comment\n\n    return x * 2.0")
    assert fingerprint(one) == fingerprint(renamed("def f(x):\n    return x * 2.0"))
    cached = Callable(1.0)
    assert cached.expensive.shape == (3,)
    assert fingerprint(cached) == fingerprint(Callable(1.0))
    lazy = dist.MultivariateNormal(jnp.zeros(2), covariance_matrix=jnp.eye(2))
    before = fingerprint(lazy)
    assert lazy.precision_matrix.shape == (2, 2)
    assert fingerprint(lazy) == before


def test_values_that_cannot_be_read_count_by_their_type():
    assert fingerprint([threading.Lock()]) == fingerprint([threading.Lock()])
    assert fingerprint(threading.Lock()) != fingerprint(iter([]))


def test_cycles_end():
    one, other = [1.0], [1.0]
    one.append(one)
    other.append(other)
    assert fingerprint(one) == fingerprint(other)

    def fact(n):
        return 1 if n == 0 else n * fact(n - 1)

    assert fingerprint(fact) == fingerprint(fact)


def test_what_is_nested_too_deeply_is_refused():
    deep = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ArgumentError, match=r"nested too deeply.*Leave out resume="):
        fingerprint(deep)
    while deep:  # Python would free it by recursion
        deep = deep[0]


def test_large_arrays_are_read_in_blocks(monkeypatch):
    monkeypatch.setattr("bernflow.fingerprint.MAX_HASHED_BYTES", 2**10)
    values = np.arange(10_000.0)
    before = fingerprint(values)
    values[-1] = 0.0
    assert fingerprint(values) != before


PROGRAM = """
import functools, sys
import numpy as np, numpyro, numpyro.distributions as dist, jax, jax.numpy as jnp, optax, equinox as eqx, pandas as pd
import bernflow as bf
from bernflow.fingerprint import fingerprint
from bernflow.models import as_model
CONSTANTS = {"a": 1.0, "b": {"x", "y", "z"}}
class User:
    names = frozenset(["p", "q", "r"])
    def __init__(self): self.scale = CONSTANTS["a"]
    def __call__(self, y): numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0, self.scale)), 1), obs=y)
def model(y, table, kind={"u", "v"}):
    mu = numpyro.sample("mu", dist.Normal(0.0, CONSTANTS["a"]))
    numpyro.sample("y", dist.Normal(mu, len(kind)), obs=y)
Y = np.arange(3.0)
table = pd.DataFrame({"name": ["a", "b", "c"], "value": Y})
network = eqx.nn.MLP(2, 1, 3, 1, key=jax.random.key(0))
declared = bf.Model(prior={"s": dist.HalfNormal(1)}, likelihood=lambda th: dist.Normal(0, th["s"]), y=Y)
values = [as_model(model, (Y, table), {}), as_model(User(), (Y,), {}), declared, network, optax.adamw(1e-3), bf.fit,
    dist.TransformedDistribution(dist.Normal(), dist.transforms.ExpTransform()), dist.constraints.interval(0, 1)]
print(" ".join(map(fingerprint, values)))
"""


def test_another_process_finds_the_same():
    source = str(Path(bf.__file__).parents[1])
    found = set()
    for seed in ("1", "2"):  # sets come in another order
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": source}
        run = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
        found.add(run.stdout)
    assert len(found) == 1
    assert len(set(found.pop().split())) == 8
