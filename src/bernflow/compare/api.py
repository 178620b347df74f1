"""`compare`: compare posteriors of the same parameters with a reference."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from bernflow.compare import measure
from bernflow.compare.entries import Entry, as_entry, shared_components
from bernflow.compare.result import Comparison
from bernflow.diagnostics.chains import ChainDiagnostics
from bernflow.errors import ArgumentError
from bernflow.keys import as_key
from bernflow.moved import moved
from bernflow.posterior.arguments import check_count
from bernflow.posterior.weighting import AUTO, Weighted

# `bf.fit` has a tolerance in nats; this one is in standard deviations.
RENAMED = {"tolerance": "max_shift={value}"}


@moved("bf.compare", RENAMED)
def compare(
    entries: Mapping[str, Any],
    reference: str | None = None,
    key: Any = 0,
    *,
    var_names: Sequence[str] | str | None = None,
    num: int = 4000,
    weighted: Weighted = AUTO,
    max_shift: float = 0.0,
    loo: bool = True,
) -> Comparison:
    """Compare posteriors: fits, NUTS runs, ArviZ trees or dicts of draws.

    Every other entry is compared with the reference: means and standard deviations with their Monte Carlo errors,
    marginal and joint distances. An entry agrees if all its means and sds are within four standard errors; the
    false-alarm rate is one in 16,000 per statistic. The standard errors of chains are based on their effective sample
    size. Evidence, verdicts and leave-one-out cross-validation are included if available.

    Args:
        entries: posteriors of `bernflow.fit`, runs of `Posterior.to_nuts`, ArviZ DataTrees with chains, or dicts of
            independent draws, {name: (num, *shape)}; at least two, by names of your choice.
        reference: the name of the reference entry; by default a NUTS run if there is one, else the first entry.
        key: integer seed or `jax.random.key`, for the draws of fits.
        var_names: the parameters to compare, if not all; [] compares only evidence and LOO, for models without common
            parameters.
        num: number of draws of every fit.
        weighted: see `Posterior.draws`; with False, the fits are compared as they are.
        max_shift: difference of means and sds that is allowed in addition to the Monte Carlo error, in units of the
            reference's sd.
        loo: estimate the predictive accuracy of entries with a pointwise log likelihood.

    Returns:
        The differences from the reference with their standard errors, and whether they agree.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> found = compare({name: {"mu": rng.normal(size=1000)} for name in "ab"})
        >>> found.agrees
        {'b': True}
    """
    if not isinstance(entries, Mapping) or len(entries) < 2:
        given = f"{len(entries)} of them" if isinstance(entries, Mapping) else f"a {type(entries).__name__}"
        raise ArgumentError(
            f'compare expects at least two posteriors by name, as in {{"flow": post, "nuts": post.to_nuts()}}; '
            f"got {given}."
        )
    if not max_shift >= 0:
        raise ArgumentError(f"max_shift={max_shift!r}: expected a number of standard deviations, at least 0.")
    draw_key, seed_key = jax.random.split(as_key(key))
    keys = jax.random.split(draw_key, len(entries))
    num = check_count(num)
    # Different keys for each entry, because common random numbers would invalidate the standard errors.
    found = {
        str(name): as_entry(str(name), value, num, own, weighted)
        for own, (name, value) in zip(keys, entries.items(), strict=True)
    }
    chosen = _reference(found, reference)
    components = shared_components(list(found.values()), var_names)
    others = [entry for name, entry in found.items() if name != chosen and components]
    seed = int(jax.random.bits(seed_key, (), "uint32"))
    against = found[chosen]
    elpds, ranking = measure.leave_one_out(list(found.values())) if loo else ({}, None)
    return Comparison(
        chosen,
        found,
        components,
        {e.name: measure.differences(e, against, components, max_shift) for e in others},
        {e.name: measure.marginals(e, against, components) for e in others},
        {e.name: measure.joint(e, against, components, seed) for e in others},
        elpds,
        ranking,
    )


def _reference(entries: Mapping[str, Entry], reference: str | None) -> str:
    if reference is None:
        runs = [name for name, entry in entries.items() if isinstance(entry.diagnostics, ChainDiagnostics)]
        return runs[0] if runs else next(iter(entries))
    if reference not in entries:
        raise ArgumentError(f"reference={reference!r}: expected one of {', '.join(map(repr, entries))}.")
    return reference
