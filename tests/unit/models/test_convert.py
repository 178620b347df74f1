import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from bernflow.errors import ModelError
from bernflow.models import AbstractModel, Model, as_model


def coin(y, scale=1.0):
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0, scale)), 1), obs=y)


MODEL = Model(prior={"m": dist.Normal(0, 1)}, likelihood=lambda th: dist.Normal(th["m"], 1), y=np.zeros(2))
Trace = type("MultiTrace", (), {"__module__": "pymc.backends.base", "__call__": lambda self: None})
CmdStan = type("CmdStanModel", (), {"__module__": "cmdstanpy.model", "__call__": lambda self: None})


def test_accepted_kinds():
    assert as_model(MODEL) is MODEL
    assert isinstance(as_model(coin, (np.zeros(2),), {"scale": 2.0}), AbstractModel)


@pytest.mark.parametrize(
    ("model", "args", "kwargs", "match"),
    [
        (MODEL, (1,), {}, r"Model was given together with model arguments \(1 positional, 0 by keyword\)"),
        (MODEL, (), {"a": 1}, r"0 positional, 1 by keyword"),
        (Model, (), None, "the class Model itself: expected an instance"),
        ("model.stan", (), None, r"a builtins.str: expected a NumPyro model function.* bf.from_stan\(program, data"),
        (CmdStan(), (), None, r"a cmdstanpy.model.CmdStanModel: .* Convert a Stan program with bf.from_stan\(program"),
        (Trace(), (), None, "The model is a pymc.backends.base.MultiTrace: expected .* a pymc.Model"),
    ],
)
def test_refused(model, args, kwargs, match):
    with pytest.raises(ModelError, match=match):
        as_model(model, args, kwargs)
