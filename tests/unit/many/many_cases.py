"""What workers call: they import this file by its name, as a module of a user's program."""

import os
import signal
import time
import warnings

import numpy as np
import numpyro
import numpyro.distributions as dist

import bernflow as bf


def model(y, scale):
    mu = numpyro.sample("mu", dist.Normal(0.0, scale))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)


def fit(scale):
    warnings.filterwarnings("ignore", "bernflow: ")
    return bf.fit(model, np.array([0.3, 0.7]), scale, family="gaussian", steps=20, progress=False)


def act(what):
    """Do what a case says, without a fit: it may end its process."""
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "exit":
        os._exit(3)
    if what == "raise":
        raise ValueError("not this one")
    if what == "unpicklable":
        return {"function": lambda: None}
    if what == "slow":
        time.sleep(0.3)
    return {"what": what, "values": np.arange(3.0), "nested": [1, {"a": None}]}


def calibrated(y):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu, 1.0), obs=y)
