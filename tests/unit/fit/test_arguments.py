import numpy as np
import pytest

from bernflow.errors import ArgumentError
from bernflow.fit.arguments import model_arguments
from bernflow.models import Model

OPTIONS = ("model", "key", "steps", "order", "progress")


def model(x, scale=1.0, y=None): ...


def anything(x, **more): ...


def needs(x, order): ...


def ask(function, args=(), given=None, **keywords):
    return model_arguments("bf.fit", OPTIONS, function, args, given, keywords)


def test_keywords_go_to_the_model():
    assert ask(model, (1,), y=2) == {"y": 2}
    assert ask(model, (1,), {"scale": 3}, y=2) == {"scale": 3, "y": 2}
    assert ask(anything, (1,), whatever=2) == {"whatever": 2}
    assert ask(needs, (1,), {"order": 2}) == {"order": 2}
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


def test_a_model_with_data_takes_no_more():
    import numpyro.distributions as dist

    own = Model(prior={"m": dist.Normal(0, 1)}, likelihood=lambda th: dist.Normal(th["m"], 1), y=np.zeros(2))
    with pytest.raises(TypeError, match=r"neither an option of bf.fit nor an argument of the Model, which"):
        ask(own, y=1)


def test_clashes_are_said():
    with pytest.raises(ArgumentError, match=r"needs 'order', which bf.fit takes .* model_kwargs=\{'order': \.\.\.\}"):
        ask(needs, (1,))
    with pytest.raises(ArgumentError, match="got 'y' by keyword and in model_kwargs: give each once"):
        ask(model, (1,), {"y": 1}, y=2)
    with pytest.raises(ArgumentError, match=r"model_kwargs=\[1\]: expected a dict"):
        ask(model, (1,), [1])
