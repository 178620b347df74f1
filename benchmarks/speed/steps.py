"""Part `steps`: training steps per second at the paper's setting, beside the same flow in TensorFlow Probability."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.families import TEXT
from benchmarks.speed import tensorflow_flow
from benchmarks.speed.clock import median_of, ratios, spread, time_calls
from benchmarks.speed.part import Case, Part, Scale, Section
from benchmarks.speed.training import Training, schools
from benchmarks.study.plan import Result
from benchmarks.study.records import Record
from benchmarks.study.tables import Table

CASE = "eight schools"
DIM, ORDER, NUM_PARTICLES = 10, 50, 10
PAPER, PAPER_SINGLE, DEFAULT = "bernstein-paper", "bernstein-paper, float32", "bernstein"
RIVALS = {f"TFP, {mode}": mode for mode in tensorflow_flow.MODES}
LABELS = {
    PAPER: "bernflow, the paper's flow, default precision",
    PAPER_SINGLE: "bernflow, the paper's flow, float32",
    DEFAULT: "bernflow, default flow (M = 20, S = 32, width 32), default precision",
    "TFP, published": "TFP as the published code has it: beta densities, tape and optimizer in Python, float32",
    "TFP, compiled": "TFP, whole step under tf.function, float32",
    "TFP, xla": "TFP, whole step under tf.function(jit_compile=True), float32",
}


def cases(scale: Scale) -> list[Case]:
    """Return one case: ours and TensorFlow Probability's."""
    paper = {"family": TEXT, "order": ORDER, "num_particles": NUM_PARTICLES}
    common = {"seconds": scale.seconds, "chunk": scale.pick(tiny=5, quick=250, normal=250)}
    subjects = {
        PAPER: {**paper, **common},
        PAPER_SINGLE: {**paper, **common, "precision": "float32"},
        DEFAULT: {"family": "bernstein", **common},
        **{name: {"mode": mode, **common} for name, mode in RIVALS.items()},
    }
    return [Case(CASE, subjects, scale.rounds)]


def measure(case: str, subject: str, settings: Mapping[str, Any]) -> Result:
    """Time the steps of one subject."""
    chunk = settings["chunk"]
    if subject not in RIVALS:
        training = Training(lambda: schools(DIM), settings, chunk)
        return {**time_calls(training.run, chunk, settings["seconds"]), **training.described()}
    published = settings["mode"] == "published"
    flow = tensorflow_flow.TensorflowFlow(DIM, ORDER, beta_densities=published)
    step = tensorflow_flow.make_step(flow, NUM_PARTICLES, settings["mode"])

    def run():
        for _ in range(chunk):
            value = step()
        return float(value)  # waits, once a chunk, as ours does

    return {**time_calls(run, chunk, settings["seconds"]), "device": tensorflow_flow.device_kind(), "elbo": -run()}


def present(records: Sequence[Record]) -> Section:
    """Show steps per second, and ratios to the paper's published way of running it."""
    medians = median_of(records, "seconds")
    references = [name for name in RIVALS if (CASE, name) in medians]
    rows = []
    for name, label in LABELS.items():
        if (CASE, name) not in medians:
            continue
        # How many times faster: the other's time per step over ours.
        faster = [spread(ratios(records, "seconds", other, name)) for other in references]
        rows.append([label, f"{1.0 / medians[CASE, name]:,.0f}", *faster])
    columns = ["subject", "steps per second", *(f"times faster than {name}" for name in references)]
    text = (
        f"Eight schools, non-centered: {DIM} parameters, M = {ORDER}, S = {NUM_PARTICLES}, two hidden layers of 10, "
        "RMSprop; the default flow at its own setting, whose steps cost more and achieve more. Compilation is not "
        "counted. Ratios are taken within a round: the median over the rounds, with the smallest and the largest."
    )
    return Section([text, Table(columns, rows)])


PART = Part(
    "steps",
    "Steps per second at the paper's setting",
    cases,
    measure,
    present,
    needs=dict.fromkeys(RIVALS, tensorflow_flow.NEEDS),
)
