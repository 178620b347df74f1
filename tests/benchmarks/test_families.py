import equinox as eqx
import jax
import jax.numpy as jnp
import pytest

import bernflow as bf
from benchmarks.families import ABLATIONS, family_named, fit_options
from bernflow.flows import FAMILIES, Spec

FIELDS = ("use_start", "use_score", "cover")


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("bernstein:no-start", {"use_start"}),
        ("bernstein:no-score", {"use_score", "cover"}),
        ("bernstein:no-cover", {"cover"}),
        ("bernstein:no-skip", set()),
        ("bernstein:no-tails", set()),
        ("bernstein:no-outer", set()),
    ],
)
def test_an_ablation_leaves_out_what_its_name_says(name, left_out):
    family = ABLATIONS[name]
    assert {field for field in FIELDS if not getattr(family, field)} == left_out
    assert not family.mixes
    spec = Spec(dim=2, order=3, noise="normal", width=2)
    recipe = eqx.filter_eval_shape(family.build, jax.random.key(0), spec, jnp.zeros(2), jnp.eye(2)).recipe()
    assert recipe["skip"] == (name != "bernstein:no-skip")
    assert recipe["bounded"] == (name == "bernstein:no-tails")
    assert recipe["outer"] == ("diagonal" if name == "bernstein:no-outer" else "triangular")


@pytest.mark.parametrize(
    ("name", "variant", "reach"),
    [("bernstein-paper:f3", "f3", 0.0), ("bernstein-paper:f1@3", "f1", 3.0), ("bernstein-paper:f2@3.5", "f2", 3.5)],
)
def test_variants_and_starts_of_the_paper(name, variant, reach):
    family = family_named(name)
    assert family is family_named(name)
    assert (family.name, family.default_order, family.paper_recipe) == (name, 50, True)
    flow = family.build(jax.random.key(0), Spec(dim=1, order=4, noise="normal", width=2), jnp.zeros(1), jnp.eye(1))
    assert (flow.variant, flow.bias[0, 0]) == (variant, -reach)


@pytest.mark.parametrize("name", ["bernstien", "gaussian:f2", "bernstein-paper:f4", "bernstein-paper:f2@x", "x:"])
def test_an_unknown_family_is_an_error(name):
    with pytest.raises(ValueError, match=r"unknown|could not convert"):
        family_named(name)


def test_flat_settings_become_arguments_of_the_fit():
    found = fit_options({"family": "bernstein:no-skip", "order": 50, "num_particles": 8, "steps": 10})
    assert found == {
        "family": ABLATIONS["bernstein:no-skip"],
        "steps": 10,
        "training": bf.Training(order=50, num_particles=8),
    }
    assert fit_options({"family": "gaussian"})["family"] is FAMILIES["gaussian"]


def test_an_ablation_is_fitted_and_keeps_its_name():
    model = bf.from_log_density(lambda x: -0.5 * jnp.sum(x**2), jnp.zeros(2))
    post = bf.fit(model, **fit_options({"family": "bernstein:no-skip", "order": 3, "steps": 20}), progress=False)
    assert (post.settings["family"], post.settings["order"]) == ("bernstein:no-skip", 3)
    with pytest.raises(bf.ArgumentError, match=r"refine\(\) trains .* 'bernstein:no-skip' was given as a bf\.Family"):
        post.refine(steps=5, progress=False)
