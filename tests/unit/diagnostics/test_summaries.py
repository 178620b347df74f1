import numpy as np

from bernflow.diagnostics.summaries import summarize


def test_figures():
    assert summarize(np.array([1.0, 2.0, 3.0]), (0.0, 0.25, 1.0)) == (2.0, 1.0, 1.0, 1.5, 3.0)
    assert summarize(np.array([1.0, 3.0]), ())[1] == np.sqrt(2.0)
    # In double precision, whatever the draws are in.
    values = np.full(1_000_000, 0.1, np.float32)
    assert summarize(values, ())[0] == np.float64(np.float32(0.1))


def test_what_is_not_finite_has_figures_that_say_so():
    assert np.isnan(summarize(np.array([np.nan, 1.0]), (0.5,))).all()
    assert np.isnan(summarize(np.array([np.inf, -np.inf]), ())).all()
    assert np.isnan(summarize(np.array([1.0]), ())[1])
