"""`map_fits`: apply a function to many cases on any executor, with results cached in a folder."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from os import PathLike
from typing import Any

from tqdm.auto import tqdm

from bernflow.errors import ArgumentError
from bernflow.many.kept import ResultFolder
from bernflow.many.pool import Failure, Pool
from bernflow.moved import moved
from bernflow.posterior import Posterior
from bernflow.watched import is_watched


@dataclass(frozen=True)
class FitResult:
    """The result of one of many fits.

    Attributes:
        name: name of the case, or its number as a string.
        value: the return value of the function; None if it failed.
        error: the error message, or None.
        traceback: the traceback of the error; empty if the worker was lost.

    Example:
        >>> bf.map_fits(lambda y: bf.fit(model, y, steps=50, progress=False), [y], progress=False)
        <generator object ...>
        >>> bf.FitResult("0", None, "ValueError: no data").ok
        False
    """

    name: str
    value: Any = None
    error: str | None = None
    traceback: str = ""

    @property
    def ok(self) -> bool:
        """Whether there is a value."""
        return self.error is None

    @property
    def posterior(self) -> Posterior:
        """The posterior that the function returned.

        Raises:
            ArgumentError: if the fit failed or the function returned something else.
        """
        if not isinstance(self.value, Posterior):
            why = self.error or f"the function returned a {type(self.value).__name__}"
            raise ArgumentError(f"The case {self.name!r} has no posterior: {why}")
        return self.value


@moved("bf.map_fits", {"folder": "resume={value}"})
def map_fits(
    function: Callable[[Any], Any],
    cases: Mapping[str, Any] | Iterable[Any],
    *,
    executor: Executor | None = None,
    resume: str | PathLike | None = None,
    progress: bool = True,
) -> Iterator[FitResult]:
    """Call a function for every case, and yield the results as they are completed.

    If a case raises an error or its worker is killed, its result contains the error; other cases continue.

    Args:
        function: takes a case and returns a posterior, or a dict of numbers, strings, lists and arrays. With processes
            it must be a module-level function that workers can import.
        cases: arguments of the function, by name; a list is numbered from 0.
        executor: a `concurrent.futures.Executor`, or any object with such a `submit`: a process pool, the executor of a
            Dask client, of Ray, or of submitit for Slurm. It is not shut down. None runs the cases sequentially here.
        resume: a folder for the results; a later call with the same function and cases computes only missing and
            failed ones. Results of another function, or of a changed case, raise an error. A cached posterior has no
            model, see `bernflow.load`; if it needs its model, return a dict.
        progress: show a progress bar, in terminals and notebooks.

    Returns:
        An iterator over the results; no case runs before it is used.

    Example:
        >>> import numpyro.distributions as dist
        >>> def with_scale(scale):
        ...     prior = {"mu": dist.Normal(0.0, scale)}
        ...     model = bf.Model(prior=prior, likelihood=lambda th: dist.Normal(th["mu"], 1.0), y=y)
        ...     return bf.fit(model, family="gaussian", steps=50, progress=False)
        >>> results = bf.map_fits(with_scale, {"narrow": 0.1, "wide": 10.0}, progress=False)
        >>> found = {result.name: result.posterior for result in results}
        >>> sorted(found)
        ['narrow', 'wide']
    """
    if not callable(function):
        raise ArgumentError(f"map_fits: function is a {type(function).__name__}: expected a function of one case.")
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise ArgumentError(
            f"executor={executor!r}: expected a concurrent.futures.Executor, such as a ProcessPoolExecutor or what "
            "client.get_executor() of Dask returns, or None."
        )
    named = dict(cases) if isinstance(cases, Mapping) else {str(i): case for i, case in enumerate(cases)}
    wrong = [name for name in named if not isinstance(name, str)]
    if wrong:
        raise ArgumentError(f"map_fits: the name {wrong[0]!r} of a case is not a string: expected one such as 'wide'.")
    kept = None if resume is None else ResultFolder(resume, function, named)
    return _results(function, named, executor, kept, progress)


def _results(
    function: Callable, cases: dict[str, Any], executor: Executor | None, kept: ResultFolder | None, progress: bool
) -> Iterator[FitResult]:
    with tqdm(
        total=len(cases), desc="bernflow", unit="fit", disable=not (progress and is_watched()), dynamic_ncols=True
    ) as bar:
        missing = {}
        for name, case in cases.items():
            found = None if kept is None else kept.load(name)
            if found is None:
                missing[name] = case
                continue
            bar.update()
            yield FitResult(name, found)
        for name, outcome in Pool(executor, function).run(missing):
            bar.update()
            if isinstance(outcome, Failure):
                yield FitResult(name, None, outcome.reason, outcome.traceback)
                continue
            if kept is not None:
                kept.save(name, outcome)
            yield FitResult(name, outcome)
