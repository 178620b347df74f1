"""Part `roofline`: arithmetic and memory traffic of large steps, against what the device can do."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import numpy as np
import numpyro.distributions as dist

from benchmarks.melanoma.cnn import DTYPES, paper_cnn
from benchmarks.speed.clock import time_calls
from benchmarks.speed.part import Case, Part, Scale, Section
from benchmarks.speed.training import JointTraining, Training, resolved, schools
from benchmarks.study.plan import Result
from benchmarks.study.records import Record
from benchmarks.study.tables import Table
from bernflow import Model
from bernflow.fit.train.scan import network_steps_at_once
from bernflow.fit.work import equations
from bernflow.precision import use_precision

CASE = "large steps"
# Batches of pictures that lie on the device.
NUM_BATCHES = 8


def cases(scale: Scale) -> list[Case]:
    """Return the large sizes."""
    sizes = scale.pick(
        tiny=((4, 4),), quick=((100, 256),), normal=((10, 1024), (64, 1024), (256, 1024), (1000, 32), (1000, 1024))
    )
    chunk = scale.pick(tiny=3, quick=10, normal=20)
    common = {"seconds": scale.seconds, "chunk": chunk}
    flows = {f"p = {p}, S = {s}": {"dim": p, "num_particles": s, **common} for p, s in sizes}
    # Pixels of a side, pictures of a batch.
    side, batch = scale.pick(tiny=(32, 4), quick=(64, 16), normal=(128, 256))
    networks = {
        f"melanoma M3, {dtype}": {"dtype": dtype, "side": side, "batch_size": batch, **common} for dtype in DTYPES
    }
    return [Case(CASE, flows | networks, scale.rounds)]


def measure(case: str, subject: str, settings: Mapping[str, Any]) -> Result:
    """Time steps and divide what XLA says that one costs by it."""
    training: Training | JointTraining
    if "dtype" in settings:
        # As the experiment does: the flow in single precision, the network in its own.
        with use_precision("float32"):
            training = _network_training(settings)
            taken = time_calls(training.run, training.chunk, settings["seconds"])
            lowered, counted = training.lower(), products(eqx.filter_make_jaxpr(training.step)(*training.inputs())[0])
    else:
        training = Training(lambda: schools(settings["dim"]), settings, settings["chunk"])
        taken = time_calls(training.run, training.chunk, settings["seconds"])
        # XLA counts the body of a loop once, whatever its length: the costs are those of one step.
        lowered, counted = Training(lambda: schools(settings["dim"]), settings, 1).lower(), 0.0
    with use_precision(training.settings.precision):
        before, after = costs(lowered.lowered), costs(lowered.compile().compiled)
    # Products that the compiler hands to a library (cuBLAS, cuDNN) are no longer counted after it.
    flops = max(before.get("flops", 0.0), after.get("flops", 0.0), counted)
    moved = after.get("bytes accessed", 0.0)
    return {
        **taken,
        **training.described(),
        "flops": flops,
        "flops_after_compilation": after.get("flops", 0.0),
        "bytes": moved,
        "flops_per_second": flops / taken["seconds"],
        "bytes_per_second": moved / taken["seconds"],
        "platform": jax.default_backend(),
    }


def _network_training(settings: Mapping[str, Any]) -> JointTraining:
    """Return the paper's network and the slope of age in training on pictures of noise: any cost as much."""
    shape, num = (settings["side"], settings["side"], 3), NUM_BATCHES * settings["batch_size"]
    rng = np.random.default_rng(0)
    model = Model(
        prior={"beta_1": dist.Normal(0.0, 1.0)},
        likelihood=lambda theta, x, h: dist.Bernoulli(logits=h + theta["beta_1"] * x),
        y=rng.integers(0, 2, num),
        x=rng.normal(size=num),
        network=paper_cnn(0, dtype=settings["dtype"], shape=shape),
        images=rng.integers(0, 256, (num, *shape), np.uint8),
    )
    chosen = resolved({"precision": "float32"})
    return JointTraining(model, settings["batch_size"], chosen, network_steps_at_once(), resident=True)


def products(jaxpr: Any) -> float:
    """Count the operations of all matrix products and convolutions, two for every product of two numbers.

    Example:
        >>> products(jax.make_jaxpr(lambda a, b: a @ b)(np.ones((2, 3)), np.ones((3, 5))))
        60.0
    """
    total = 0.0
    for equation in equations(jaxpr):
        name, out = equation.primitive.name, math.prod(equation.outvars[0].aval.shape)
        if name == "dot_general":
            ((left, _), _) = equation.params["dimension_numbers"]
            total += 2.0 * out * math.prod(equation.invars[0].aval.shape[i] for i in left)
        elif name == "conv_general_dilated":
            kernel = equation.invars[1].aval.shape
            total += 2.0 * out * math.prod(kernel) / kernel[equation.params["dimension_numbers"].rhs_spec[0]]
    return total


def costs(stage: Any) -> Mapping[str, float]:
    """Return XLA's cost analysis; some versions wrap it into a list."""
    found = stage.cost_analysis() or {}
    return found[0] if isinstance(found, list) else found


def present(records: Sequence[Record]) -> Section:
    """Show what was reached, and the share of the peak where it is known."""
    rows = []
    for r in records:
        peaks = [r.get("peak_flops"), r.get("peak_bandwidth")]
        reached = [r["flops_per_second"], r["bytes_per_second"]]
        shares = [None if peak is None else 100.0 * got / peak for got, peak in zip(reached, peaks, strict=True)]
        rows.append([r["subject"], r["device"], 1e3 * r["seconds"], reached[0] / 1e9, reached[1] / 1e9, *shares])
    columns = ("step", "device", "ms per step", "GFLOP/s", "GB/s", "% of peak FLOP/s", "% of peak bandwidth")
    text = (
        "Operations and bytes of a step as XLA counts them (`cost_analysis`), over the measured time. XLA counts "
        "every read and write of every fused kernel, including bytes that stay in a cache, but no operations inside "
        "library calls such as triangular solves. Melanoma M3: the paper's network and the slope of age, batches of "
        "256 images of 128 x 128 pixels; its matrix products and convolutions, which XLA passes to a library, are "
        "counted before that; the peak of bfloat16 is several times that of float32."
    )
    return Section([text, Table(columns, rows)])


PART = Part("roofline", "Distance from the limits of the device", cases, measure, present, on_accelerator=True)
