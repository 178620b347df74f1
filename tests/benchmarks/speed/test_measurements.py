"""Every part measures something at its tiniest; nothing here asserts a time."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.speed import compiling, growth, profile, rivals, roofline, rows, steps, wall
from benchmarks.speed.catalogue import PARTS
from benchmarks.speed.measure import measure, measure_task
from benchmarks.speed.part import SCALES
from benchmarks.speed.suite import run_where_jax_computes
from benchmarks.speed.training import Training, regression, schools
from bernflow.fit.evaluation import pick
from bernflow.flows.autoregressive import BernsteinFlow
from bernflow.flows.wide import WideBernsteinFlow
from bernflow.objectives import Noise, stratified_noise
from bernflow.target import Target

# Measurements at a tiny scale: nightly, as what they take is compilation.
pytestmark = pytest.mark.slow

TINY = SCALES["tiny"]


def settings_of(part, case, subject):
    return next(c for c in part.cases(TINY) if c.name == case).subjects[subject]


# A family that is compiled in a second; what is tested is not the flow.
LIGHT = {"family": "gaussian"}
# A fit that looks for no start.
PAPER = {"family": "bernstein-paper", "steps": 20, "order": 5}


def run(part, case, subject, **more):
    found = measure(part.name, case, subject, 0, {**settings_of(part, case, subject), **more})
    assert found["status"] == "ok"
    assert isinstance(found["device"], str)
    return found


def test_schools_of_any_number():
    assert Target(schools(10)).dim == 10
    assert Target(schools(23)).dim == 23


def test_regression_has_the_rows_asked_for():
    (x, y), (b,) = regression(7, 3).args, [s for s in regression(7, 3).sites if s.name == "b"]
    assert (x.shape, y.shape, b.shape) == ((7, 3), (7,), (3,))


def test_steps_are_those_of_the_paper():
    found = run(steps.PART, steps.CASE, steps.PAPER_SINGLE)
    assert (found["dim"], found["order"], found["num_particles"], found["precision"]) == (10, 50, 10, "float32")
    assert np.isfinite(found["elbo"])
    assert found["seconds"] > 0


def test_the_default_flow_has_its_own_setting():
    training = Training(lambda: schools(4), settings_of(steps.PART, steps.CASE, steps.DEFAULT))
    found = training.described()
    assert (found["order"], found["num_particles"], found["precision"]) == (20, 32, "float64")
    assert training.recipe.config.use_score


def test_training_trains():
    training = Training(lambda: schools(4), LIGHT, chunk=200)
    training.run()
    first = training.elbo
    for _ in range(4):
        training.run()
    assert training.elbo > first


@pytest.mark.parametrize(("case", "name"), [("p", "dim"), ("M", "order"), ("S", "num_particles")])
def test_growth_changes_one_size(case, name, monkeypatch):
    monkeypatch.setattr(growth, "time_calls", lambda call, units, seconds: {"seconds": 1.0})
    (least, most) = next(c for c in growth.PART.cases(TINY) if c.name == case).subjects
    assert run(growth.PART, case, most)[name] == int(most) > int(least)


def test_restarts_are_trained_at_once():
    assert run(growth.RESTARTS_PART, growth.RESTARTS, "2", **LIGHT)["restarts"] == 2


def test_rows_in_memory():
    assert run(rows.PART, rows.MEMORY, "100", **LIGHT)["dim"] == 4


def test_rows_from_a_file():
    found = run(rows.PART, rows.STREAMED, "1000")
    assert found["file_bytes"] >= 1000 * 4 * 4
    assert found["num_calls"] >= 3


def test_written_rows_are_all_written(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "BLOCK", 4)
    x, y = rows.write_rows(tmp_path, 10)
    assert isinstance(x, np.memmap)
    assert (x.shape, y.shape) == ((10, 3), (10,))
    assert np.all(np.abs(np.asarray(y) - np.asarray(x) @ np.array([-1.0, 0.0, 1.0])) < 6.0)
    assert len(np.unique(y)) == 10


def test_compilations_are_counted():
    function = jax.jit(lambda x: jnp.sin(x) * 3.0)
    x = jnp.arange(5.0)
    for expected in (1, 0):
        with compiling.counted() as count:
            function(x)
        assert count.num == expected


def test_a_second_fit_compiles_less():
    found = run(compiling.PART, compiling.FIT_CASE, compiling.SECOND, fit=PAPER)
    assert 0 <= found["second_compilations"] < found["first_compilations"]
    assert found["second_found"] == 0


def test_a_cache_on_disk_is_found():
    # In a process of its own, as in the suite: JAX decides about its cache once, when it first compiles.
    task = measure_task("compile", compiling.FIT_CASE, compiling.CACHE, 0, {"fit": PAPER})
    ((_, found),) = run_where_jax_computes([task], 1, 600)
    assert found["second_found"] > 0
    assert found["second_compilations"] < found["first_compilations"]


def test_a_chunk_is_compiled():
    found = run(compiling.PART, compiling.CHUNK_CASE, "4", **LIGHT)
    assert 0 < found["trace_seconds"] < found["seconds"]


@pytest.mark.parametrize("subject", ["optimizer", profile.WHOLE])
def test_pieces_of_a_step_are_timed(subject):
    assert run(profile.PART, "p = 4", subject, **LIGHT)["dim"] == 4


@pytest.mark.parametrize(("dim", "kind"), [(4, BernsteinFlow), (66, WideBernsteinFlow)])
def test_every_piece_depends_on_what_it_is_given(dim, kind):
    training = Training(lambda: schools(dim), {}, 1)
    with jax.enable_x64(True):
        flow = pick(training.state.flow, 0)
        assert isinstance(flow, kind)
        noise = stratified_noise(flow, jax.random.split(jax.random.key(0)), 4)
        other = Noise(noise.z + 0.1, noise.log_ratio)
        # The read-outs of a new flow are zero.
        flow = jax.tree.map(lambda leaf: leaf + 0.01 if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf, flow)

        @eqx.filter_jit
        def evaluate(flow, noise):
            return {name: piece(training, flow, noise) for name, (piece, _) in profile.PIECES.items()}

        one, two = evaluate(flow, noise), evaluate(flow, other)
    for name in profile.PIECES:
        assert np.isfinite(one[name]), name
        assert (one[name] != two[name]) == (name != "optimizer"), name


def test_roofline_counts_operations():
    found = run(roofline.PART, roofline.CASE, "p = 4, S = 4", **LIGHT)
    assert found["flops"] >= found["flops_after_compilation"] > 0
    assert found["bytes_per_second"] == pytest.approx(found["bytes"] / found["seconds"])


def test_operations_of_a_step_do_not_depend_on_the_length_of_a_chunk():
    def flops(chunk):
        return roofline.costs(Training(lambda: schools(4), {"family": "bernstein"}, chunk).lower().lowered)["flops"]

    assert flops(50) < 2 * flops(1)  # the noise of all steps is drawn at once


@pytest.mark.parametrize("subject", [wall.OURS, wall.IAF, "NUTS, vectorized"])
def test_wall_time_with_what_was_reached(subject):
    found = run(wall.PART, "toy-regression", subject, fit=PAPER)
    assert min(found["cold_seconds"], found["warm_seconds"]) > 0
    if subject == "NUTS, vectorized":
        assert (found["chain_method"], found["verdict"]) == ("vectorized", "poor")
    else:
        assert found["kl"] == pytest.approx(-13.026490 - found["elbo"])


def test_a_guide_arrives_with_its_first_block_near_its_best():
    path = [{"seconds": float(i), "elbo": e, "kl": -e} for i, e in enumerate((-9.0, -1.02, -1.0, -1.01))]
    assert rivals._arrival(path)["seconds"] == 1.0
    unknown = [{**point, "kl": None} for point in path]
    assert rivals._arrival(unknown)["seconds"] == 2.0


def test_every_part_has_cases_at_every_scale():
    for part in PARTS.values():
        for scale in SCALES.values():
            assert all(len(case.subjects) >= 1 for case in part.cases(scale))
    streamed = [next(c for c in rows.PART.cases(SCALES[s]) if c.name == rows.STREAMED) for s in ("normal", "full")]
    assert [list(case.subjects)[-1] for case in streamed] == [str(10**7), str(10**8)]


def test_what_is_missing_becomes_a_status(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = measure("steps", steps.CASE, "TFP, xla", 0, {})
    assert found == {
        "status": "tensorflow, tensorflow_probability, tf_keras are not installed: pip install 'bernflow[speed]'"
    }
