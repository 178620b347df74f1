"""Fits with the defaults are called good and agree with the reference draws."""

import pytest

import bernflow as bf
from benchmarks.posteriordb.catalogue import POSTERIORS
from benchmarks.posteriordb.front_ends import build
from benchmarks.posteriordb.reference import load_data, load_draws
from bernflow.diagnostics.agreement import compare


@pytest.mark.slow
@pytest.mark.parametrize("name", POSTERIORS)
def test_fit_agrees_with_the_reference(name, folder):
    entry = POSTERIORS[name]
    model, args = build(entry, "numpyro", load_data(entry, folder))
    post = bf.fit(model, *args, progress=False)
    assert post.diagnostics.verdict == "good", post.diagnostics.status
    reference = load_draws(entry, folder)
    for weighted in (False, True):
        found = compare(entry.to_columns(post.draws(20_000, weighted=weighted)), reference, tolerance=0.02)
        assert found.agrees, f"weighted={weighted}: {found}"
