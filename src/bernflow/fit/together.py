"""Many data sets, each fitted as `bf.fit` fits one, with the steps of all of them in common calls."""

import functools
from collections.abc import Iterator, Sequence

from jaxtyping import Array, Key

from bernflow.fit.automatic import fit_target
from bernflow.fit.run import Run
from bernflow.fit.settings import Settings
from bernflow.fit.train.together import run_together
from bernflow.models.base import AbstractModel
from bernflow.posterior import Posterior
from bernflow.target import Target


def fit_together(
    models: Sequence[AbstractModel], settings: Settings, keys: Sequence[Key[Array, ""]], size: int
) -> Iterator[tuple[int, Posterior]]:
    """Fit models that differ in their data alone; yield every posterior, with its number, when it is there.

    Every fit is that of `bf.fit` with these settings and its key: the same start, stopping rule, verdict and, where one
    flow is not enough, mixture. Training steps, which take longest where the density is expensive, are taken by up to
    `size` fits in one call; starts, structured ones among them, and verdicts are computed one fit after the other. To
    be called in the precision of the settings. An interruption stops all fits.
    """
    # Without a number of steps a fit that misses mass is followed by a mixture: only a whole verdict tells.
    run = Run(is_one_of_many=True, is_brief=settings.steps is not None)
    fits = [
        functools.partial(fit_target, Target(model), settings, key, run)
        for model, key in zip(models, keys, strict=True)
    ]
    return run_together(fits, size)
