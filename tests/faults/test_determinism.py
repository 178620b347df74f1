"""The same call gives the same bits: in another process, with a progress bar or without."""

import os
import subprocess
import sys

import pytest

from bernflow import Training

MODEL = """
import hashlib, sys
import numpy as np
import numpyro
import numpyro.distributions as dist
import bernflow as bf
from bernflow import Training

def model(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    s = numpyro.sample("s", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(mu, s), obs=y)

def bits(settings, progress):
    post = bf.fit(model, np.array([0.3, 1.2, -0.4, 0.9]), key=5, progress=progress, **settings)
    draws = post.draws(300, key=2)
    found = [draws["mu"], draws["s"], post.history["elbo"]]
    found += [np.array([post.diagnostics.khat, post.diagnostics.elbo, post.diagnostics.log_evidence])]
    return hashlib.sha256(b"".join(np.ascontiguousarray(values).tobytes() for values in found)).hexdigest()
"""
# A bar is for terminals.
TERMINAL = """
import io
class Terminal(io.StringIO):
    isatty = lambda self: True
sys.stderr = Terminal()
"""
CASES = [
    {"family": "gaussian-fullrank", "steps": 40},
    pytest.param({"family": "bernstein"}, marks=pytest.mark.slow),
    pytest.param({"family": "bernstein", "steps": 300, "components": 2}, marks=pytest.mark.slow),
    pytest.param(
        {"family": "bernstein", "steps": 300, "training": Training(precision="float32")}, marks=pytest.mark.slow
    ),
]


@pytest.mark.filterwarnings("ignore:bernflow. ")
@pytest.mark.parametrize("settings", CASES, ids=str)
def test_the_same_bits_in_another_process_and_with_a_progress_bar(settings):
    here: dict = {}
    exec(MODEL, here)
    # Another order of sets and dictionaries of strings must not matter.
    environment = os.environ | {"PYTHONHASHSEED": "12345", "PYTHONPATH": os.pathsep.join(sys.path)}
    code = f"{MODEL}{TERMINAL}\nprint(bits({settings!r}, True), 'bernflow: done' in sys.stderr.getvalue())"
    there = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=environment, capture_output=True, text=True
    )
    assert there.returncode == 0, there.stderr
    found, has_bar = there.stdout.split()[-2:]
    assert has_bar == "True"
    assert found == here["bits"](settings, False)
