"""What bernflow leaves behind in a process: a program that `test_side_effects.py` starts.

It prints one JSON object: by step, the parts of the global state that the step has changed, with their values before
and after it. Threads are not among them: those of XLA and of bernflow's compilations stay for the next fit.
"""

import contextlib
import gc
import importlib
import json
import locale
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import warnings
from pathlib import Path

# The packages that bernflow is built on: what happens when they are imported is their own doing.
import arviz_base
import arviz_plots  # noqa: F401
import arviz_stats  # noqa: F401
import equinox  # noqa: F401
import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax  # noqa: F401
import pandas as pd
import scipy.stats  # noqa: F401
import tqdm  # noqa: F401
import xarray as xr
from jax._src import dtypes, monitoring, xla_bridge

# What xarray and exports load later, where it is installed.
for optional in ("arviz", "dask.array"):
    with contextlib.suppress(ImportError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        importlib.import_module(optional)


def listeners():
    """Return the listeners that are registered with `jax.monitoring`."""
    return {name: list(value) for name, value in vars(monitoring).items() if isinstance(value, list)}


def state():
    filters = [tuple(map(str, entry)) for entry in warnings.filters]
    parts = {
        "settings of JAX": dict(jax.config.values),
        "precision of JAX": str(jnp.result_type(float)),
        "devices of JAX": xla_bridge.backends_are_initialized() and list(map(str, jax.devices())),
        "listeners of JAX": listeners(),
        "conversion of NumPy arrays in JAX": getattr(dtypes, "canonicalize_value", None),
        "handlers of NumPyro": list(numpyro.primitives._PYRO_STACK),
        "environment": dict(os.environ),
        "random state of NumPy": np.random.get_state(),  # noqa: NPY002
        "random state of Python": random.getstate(),
        "errors of NumPy": np.geterr(),
        "print options of NumPy": np.get_printoptions(),
        "warning filters": filters,
        "showwarning": warnings.showwarning,
        "garbage collector": (gc.isenabled(), gc.get_threshold(), len(gc.callbacks)),
        "signals": {int(number): signal.getsignal(number) for number in signal.valid_signals()},
        "settings of matplotlib": dict(matplotlib.rcParams),
        "backend of matplotlib": matplotlib.get_backend(),
        "settings of ArviZ": dict(arviz_base.rcParams),
        "settings of xarray": dict(xr.get_options()),
        "settings of pandas": pd.get_option("display.max_rows"),
        "logging": (
            list(logging.root.handlers),
            logging.root.level,
            logging.root.manager.disable,
            logging.raiseExceptions,
        ),
        "loggers of JAX": [logging.getLogger(name).level for name in ("jax", "jaxlib", "numpyro", "matplotlib")],
        "import path": list(sys.path),
        "import hooks": (list(sys.meta_path), list(sys.path_hooks)),
        "hooks of Python": (sys.excepthook, sys.displayhook, sys.gettrace(), sys.getprofile(), threading.excepthook),
        "limits of Python": (sys.getrecursionlimit(), sys.getswitchinterval()),
        "streams": (sys.stdin, sys.stdout, sys.stderr),
        "working directory": os.getcwd(),
        "locale": locale.setlocale(locale.LC_ALL),
    }
    return {name: repr(value) for name, value in parts.items()}


def model(x, y):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(b * x, scale), obs=y)


def steps(folder):
    """Do what a user does, one step after the other, and yield the name of each."""
    import bernflow as bf

    yield "import bernflow"
    x = np.linspace(-1.0, 1.0, 20)
    jnp.zeros(()).block_until_ready()
    yield "start JAX"
    post = bf.fit(model, x, 0.5 * x, steps=300)
    yield "fit"
    bf.fit(model, x, 0.5 * x, steps=20, training=bf.Training(precision="float32"), family="gaussian", progress=False)
    yield "fit in single precision"
    try:
        bf.fit(model, x, np.full(20, np.nan), progress=False)
    except bf.ModelError:
        yield "fit that fails"
    post.draws(100), post.predict(num=10), post.log_prob(post.draws(5)), post.summary(), str(post), post._repr_html_()
    yield "draws and summaries"
    post.to_arviz(100)
    bf.load(post.save(folder / "posterior.bernflow"))
    yield "export and files"
    post.report(folder / "report.html")
    assert plt.get_fignums() == []
    yield "report"
    from bernflow import plots

    yield "import of the plots"
    post.plot().savefig(folder / "posterior.png")
    for plot in (plots.plot_pairs, plots.plot_convergence, plots.plot_predictive, plots.plot_weights):
        plot(post).savefig(folder / "figure.svg")
    plots.plot_transformation(post, "b").savefig(folder / "figure.svg")
    yield "plots"


def main():
    # Values that are nobody's default, so that a reset is noticed.
    matplotlib.use("svg")
    matplotlib.rcParams["font.size"] = 11.5
    np.random.seed(3)  # noqa: NPY002
    np.seterr(under="warn")
    warnings.filterwarnings("ignore", "bernflow: ")
    signal.signal(signal.SIGTERM, lambda *_: None)
    gc.set_threshold(701, 11, 12)
    changes, before = {}, state()
    with tempfile.TemporaryDirectory() as folder:
        for step in steps(Path(folder)):
            after = state()
            changes[step] = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
            before = after
    print(json.dumps(changes))


if __name__ == "__main__":
    main()
