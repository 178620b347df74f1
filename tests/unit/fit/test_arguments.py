import dataclasses

import numpy as np
import pytest

from bernflow.errors import ArgumentError
from bernflow.fit.arguments import model_arguments
from bernflow.fit.settings import Training
from bernflow.models import Model
from bernflow.moved import INTO_TRAINING

OPTIONS = ("model", "key", "steps", "training", "progress")


def model(x, scale=1.0, y=None): ...


def anything(x, **more): ...


def needs(x, steps): ...


def ordered(x, order=1): ...


def ask(function, args=(), given=None, **keywords):
    return model_arguments("bf.fit", OPTIONS, function, args, given, keywords)


def test_keywords_go_to_the_model():
    assert ask(model, (1,), y=2) == {"y": 2}
    assert ask(model, (1,), {"scale": 3}, y=2) == {"scale": 3, "y": 2}
    assert ask(anything, (1,), whatever=2) == {"whatever": 2}
    assert ask(needs, (1,), {"steps": 2}) == {"steps": 2}
    assert ask(needs, (1, 2)) == {}


@pytest.mark.parametrize(
    ("function", "keywords", "message"),
    [
        (model, {"step": 5}, r"'step': it is neither an option .* model\(x, scale, y\). Did you mean 'steps'\?"),
        (model, {"scal": 5}, r"Did you mean 'scale'\?"),
        (model, {"zzz": 5}, r"function model\(x, scale, y\).$"),
        (
            anything,
            {"step": 5},
            r"Did you mean 'steps'\? If it is meant .* model_kwargs=\{'step': \.\.\.\}",
        ),
    ],
)
def test_what_nobody_knows_is_an_error(function, keywords, message):
    with pytest.raises(TypeError, match=message):
        ask(function, (1,), **keywords)


def test_options_that_moved_are_named():
    # The model takes it: it is an argument of the model.
    assert ask(ordered, (1,), order=5) == {"order": 5}
    assert ask(anything, (1,), {"order": 5}) == {"order": 5}
    with pytest.raises(TypeError, match=r"no longer takes 'order': write training=bf\.Training\(order=5\)\.$"):
        ask(model, (1,), order=5)
    with pytest.raises(TypeError, match=r"'order', 'base': write training=bf\.Training\(order=5, base='logistic'\)\.$"):
        ask(model, (1,), order=5, base="logistic")
    with pytest.raises(TypeError, match=r"bf\.Training\(optimizer=\.\.\.\)\. If .* takes it, pass model_kwargs=\{'opt"):
        ask(anything, (1,), optimizer=[])
    # Of another function, which never had them, they are as unknown as others.
    with pytest.raises(TypeError, match=r"'order': it is neither an option of bf\.load"):
        model_arguments("bf.load", ("model",), model, (1,), None, {"order": 5})


def test_the_options_that_moved_are_those_of_training():
    assert list(INTO_TRAINING) == [field.name for field in dataclasses.fields(Training)]


def test_a_model_with_data_takes_no_more():
    import numpyro.distributions as dist

    own = Model(prior={"m": dist.Normal(0, 1)}, likelihood=lambda th: dist.Normal(th["m"], 1), y=np.zeros(2))
    with pytest.raises(TypeError, match=r"neither an option of bf.fit nor an argument of the Model, which"):
        ask(own, y=1)


def test_clashes_are_said():
    with pytest.raises(ArgumentError, match=r"needs 'steps', which bf.fit takes .* model_kwargs=\{'steps': \.\.\.\}"):
        ask(needs, (1,))
    with pytest.raises(ArgumentError, match="got 'y' by keyword and in model_kwargs: give each once"):
        ask(model, (1,), {"y": 1}, y=2)
    with pytest.raises(ArgumentError, match=r"model_kwargs=\[1\]: expected a dict"):
        ask(model, (1,), [1])
