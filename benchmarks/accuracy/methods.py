"""What is measured: each method fits one benchmark with one key and returns one record."""

import time

import jax
import numpy as np

from benchmarks.accuracy import numpyro_guides
from benchmarks.accuracy.evaluate import score

NUM_DRAWS = 50_000
# The recipe in the text of the paper; RMSprop is the default of this family.
PAPER = {"family": "bernstein-paper", "order": 50, "steps": 100_000, "num_particles": 10}
METHODS = ("bernflow", "bernstein-paper", *numpyro_guides.GUIDES)
# Draws for the evaluation must be none of those that the fit has seen: its keys are small integers.
EVALUATION_KEY = 10_000


def settings(method, benchmark, quick):
    """Return the choices of a run; a kept result is reused only where these are the same."""
    if method == "bernflow":
        chosen = {} if benchmark.order is None else {"order": benchmark.order}
        return {**chosen, "steps": 500} if quick else chosen
    if method == "bernstein-paper":
        return {**PAPER, "steps": 1_000} if quick else dict(PAPER)
    return {**numpyro_guides.SETTINGS, "steps": 1_000} if quick else dict(numpyro_guides.SETTINGS)


def run(method, benchmark, key, quick=False):
    """Fit and judge once; a failure becomes a status, so that one bad run does not stop the others."""
    chosen = settings(method, benchmark, quick)
    num_draws = 5_000 if quick else NUM_DRAWS
    record = {
        "target": benchmark.name,
        "method": method,
        "key": key,
        "settings": chosen,
        "num_draws": num_draws,
    }
    # Every run pays for its own compilation, whatever was measured before it.
    jax.clear_caches()
    measure = _numpyro if method in numpyro_guides.GUIDES else _bernflow
    try:
        return {**record, "status": "ok", **measure(method, benchmark, key, num_draws, chosen)}
    except numpyro_guides.RefusedError as refusal:
        return {**record, "status": str(refusal)}
    except (ValueError, FloatingPointError, RuntimeError) as error:
        return {**record, "status": f"failed: {type(error).__name__}: {str(error).splitlines()[0]}"}


def _numpyro(method, benchmark, key, num_draws, chosen):
    with jax.enable_x64(True):
        log_weights, sites, seconds = numpyro_guides.fit_and_weigh(method, benchmark, key, num_draws, chosen)
        found = score(log_weights, benchmark.log_evidence)
        gradients = chosen["steps"] * chosen["num_particles"]
        return {**found, "seconds": seconds, "gradients": gradients, **_funnel(benchmark, sites)}


def _bernflow(method, benchmark, key, num_draws, chosen):
    import bernflow as bf

    started = time.perf_counter()
    post = bf.fit(benchmark.model, *benchmark.args, key=key, progress=False, **chosen)
    seconds = time.perf_counter() - started
    if post.settings["interrupted"]:
        raise KeyboardInterrupt
    log_weights = post.log_weights(num_draws, EVALUATION_KEY + key)
    found = score(log_weights, benchmark.log_evidence)
    draws = post.draws(num_draws, key=EVALUATION_KEY + key) if benchmark.name == "funnel" else {}
    return {**found, "seconds": seconds, "gradients": _gradients(post, chosen), **_funnel(benchmark, draws)}


def _gradients(post, chosen):
    """Count gradient evaluations by the steps that the fit took, else by those that it was asked for."""
    known = {**chosen, **post.settings}
    steps, num_particles = known.get("steps"), known.get("num_particles")
    return int(steps) * int(num_particles) if steps and num_particles else None


def _funnel(benchmark, sites):
    # Approximations make the log-scale too narrow, also where their other figures look fair.
    return {"sd_of_v": float(np.std(np.asarray(sites["v"]), ddof=1))} if benchmark.name == "funnel" else {}
