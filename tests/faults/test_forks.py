"""A forked process gets an error where it would hang, and works where it would not."""

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")

CODE = """
import os, sys, warnings
import jax, jax.numpy as jnp, numpy as np, bernflow as bf
warnings.simplefilter("ignore")

def fit():
    model = bf.from_log_density(lambda x: -jnp.sum(x**2), np.zeros(2))
    return bf.fit(model, family="gaussian", steps=5, progress=False)

def child(function):
    process = os.fork()
    if process == 0:
        try:
            function()
            print("worked", flush=True)
        except bf.BernflowError as error:
            print(error, flush=True)
        os._exit(0)
    os.waitpid(process, 0)

child(fit)
post = fit()
child(fit)
child(post.draws)
fit()
"""


def test_a_fork_before_jax_starts_works_and_one_after_it_is_refused():
    run = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120, check=True)
    first, second, third = run.stdout.splitlines()
    assert first == "worked"
    assert second == third
    assert second.startswith("This process was forked after JAX had started")
    assert 'multiprocessing.get_context("spawn")' in second
