"""`map_fits`: one function, many cases, any executor; results as they end, and what is kept is not done again."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass
from os import PathLike
from typing import Any

from tqdm.auto import tqdm

from bernflow.errors import ArgumentError
from bernflow.many.kept import Kept
from bernflow.many.pool import Failure, Pool
from bernflow.posterior import Posterior
from bernflow.watched import is_watched


@dataclass(frozen=True)
class FitResult:
    """How one of many fits ended.

    Attributes:
        name: name of the case, or its number as text.
        value: what the function returned; None if it failed.
        error: why there is no value; None if there is one.
        traceback: where the function failed, as text; empty if its worker was lost.

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
        """The posterior, if the function returned one.

        Raises:
            ArgumentError: if the fit failed, or the function returned something else.
        """
        if not isinstance(self.value, Posterior):
            why = self.error or f"the function returned a {type(self.value).__name__}"
            raise ArgumentError(f"The case {self.name!r} has no posterior: {why}")
        return self.value


def map_fits(
    function: Callable[[Any], Any],
    cases: Mapping[str, Any] | Iterable[Any],
    *,
    executor: Executor | None = None,
    folder: str | PathLike | None = None,
    progress: bool = True,
) -> Iterator[FitResult]:
    """Call a function that fits once for every case, and yield the results as they end.

    A case that raises, or whose worker is killed, costs this one result, which says why; the others go on.

    Args:
        function: takes a case and returns a posterior, or a dict of numbers, texts, lists and arrays with what is
            wanted of it. With processes it must be a function of a module, which workers can import.
        cases: arguments of the function, by name; a list is numbered from 0.
        executor: a `concurrent.futures.Executor`, or anything with such a `submit`: a process pool, the executor of a
            Dask client, of Ray, or of submitit for Slurm. It stays open. None: one case after the other, here.
        folder: keeps every result in a file; a call with the same function and cases then does only what is missing,
            failed cases included. Results of another function, or of a changed case, are refused. A posterior comes
            back without its model, see `bernflow.load`; where it cannot do without, return a dict.
        progress: show a progress bar, in terminals and notebooks.

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
        raise ArgumentError(f"map_fits: the case {wrong[0]!r} has no text as its name: expected names such as 'wide'.")
    kept = None if folder is None else Kept(folder, function, named)
    return _results(function, named, executor, kept, progress)


def _results(
    function: Callable, cases: dict[str, Any], executor: Executor | None, kept: Kept | None, progress: bool
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
