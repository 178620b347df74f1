"""Every experiment by the name that the command line uses."""

from benchmarks.melanoma import experiment as melanoma
from benchmarks.paper import (
    additions,
    bernoulli,
    cauchy,
    diamonds,
    eight_schools,
    khat_table,
    loss_curves,
    nn_regression,
    overview,
    toy_regression,
)
from benchmarks.study.plan import Experiment

_MODULES = (
    bernoulli,
    cauchy,
    toy_regression,
    diamonds,
    eight_schools,
    khat_table,
    nn_regression,
    loss_curves,
    additions,
    melanoma,
    overview,
)

EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in _MODULES}
