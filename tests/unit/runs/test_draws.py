import io

import numpy as np
import pytest

from bernflow.errors import ArgumentError
from bernflow.posterior.export import to_datatree
from bernflow.runs import draws
from bernflow.runs.draws import named_draws, tabulate, take_draws, write_csv


def read(text):
    """Read a CSV file as CmdStan's stansummary does: comments, a header, rows of numbers."""
    lines = text.splitlines()
    comments = [line for line in lines if line.startswith("#")]
    header, *rows = [line for line in lines if not line.startswith("#")]
    assert lines.index(header) == len(comments)
    settings = dict(line[1:].strip().split(" = ") for line in comments if " = " in line)
    return settings, header.split(","), np.array([[float(cell) for cell in row.split(",")] for row in rows])


def written(tree, settings=None):
    file = io.BytesIO()
    write_csv(file, tree, settings or {})
    return file.getvalue().decode()


def tree_of(num=3, **values):
    return to_datatree(
        {
            "posterior": {name: np.broadcast_to(v, (num, *np.shape(v))) for name, v in values.items()},
            "sample_stats": {"log_q": np.arange(num) - 0.1, "lp": np.arange(num) + 0.3},
        }
    )


def test_columns_are_those_of_cmdstan():
    matrix = np.arange(6.0).reshape(2, 3)
    settings, header, table = read(written(tree_of(a=1.5, b=np.array([1.0, 2.0]), m=matrix), {"model": "m_model"}))
    assert settings == {"model": "m_model"}
    assert header == ["lp_approx__", "lp__", "a", "b.1", "b.2", "m.1.1", "m.2.1", "m.1.2", "m.2.2", "m.1.3", "m.2.3"]
    np.testing.assert_array_equal(table[1], [0.9, 1.3, 1.5, 1.0, 2.0, 0.0, 3.0, 1.0, 4.0, 2.0, 5.0])
    assert table.shape == (3, len(header))


def test_numbers_keep_their_digits():
    values = np.array([1 / 3, 1e-300, -np.pi * 1e17, np.inf, np.nan])
    np.testing.assert_array_equal(read(written(tree_of(x=values)))[2][0, 2:], values)


def test_comments():
    text = written(tree_of(a=1.0), {"A sentence": None, "on": True, "data": {"file": "a\n b"}})
    assert text.startswith("# A sentence\n# on = true\n# data\n#   file = a b\nlp_approx__")


def test_names_that_csv_cannot_hold():
    values = {"a.b": 1.0, "a,b": 2.0, "t:1": 3.0, "t:x": 4.0, "lp__": 5.0, 'q"': 6.0}
    found = named_draws(tree_of(**values))
    assert list(found) == ["a_b", "a_b_", "t:1", "t_x", "lp___", "q_"]
    assert [float(v[0]) for v in found.values()] == list(values.values())


def test_summary_counts_from_one_and_rounds_nothing():
    rng = np.random.default_rng(0)
    x, m = rng.normal(size=101), rng.normal(size=(101, 1, 2))
    table = tabulate(to_datatree({"posterior": {"x": x, "m": m}}))
    assert list(table.index) == ["x", "m[1,1]", "m[1,2]"]
    assert list(table.columns) == ["mean", "sd", "2.5%", "5%", "25%", "50%", "75%", "95%", "97.5%"]
    assert table.loc["x", "mean"] == x.mean()
    assert table.loc["x", "sd"] == x.std(ddof=1)
    assert table.loc["m[1,2]", "95%"] == np.quantile(m[:, 0, 1], 0.95)


def test_the_draws_are_those_of_the_posterior(posterior):
    for weighted in (False, True):
        tree, notes = take_draws(posterior, 50, weighted)
        assert notes == []
        assert tree.attrs["weighted"] == int(weighted)
        expected = posterior.draws(50, weighted=weighted)
        _, header, table = read(written(tree))
        assert header[2:4] == ["mu", "part_w.1.1"]
        np.testing.assert_array_equal(table[:, header.index("part_w.2.1")], expected["part/w"][:, 1, 0])
        np.testing.assert_array_equal(table[:, header.index("twice.1.3")], expected["twice"][:, 0, 2])
    log_weights = posterior.log_weights(50)
    _, _, table = read(written(take_draws(posterior, 50, False)[0]))
    np.testing.assert_allclose(table[:, 1] - table[:, 0], log_weights, rtol=1e-12)


def test_a_huge_log_likelihood_is_left_out(posterior, monkeypatch):
    assert "log_likelihood" in take_draws(posterior, 50, False)[0]
    monkeypatch.setattr(draws, "MAX_LOG_LIKELIHOOD", 99)
    tree, notes = take_draws(posterior, 50, False)
    assert "log_likelihood" not in tree
    assert notes == ["The pointwise log likelihood (100 numbers) was omitted from the draws."]


def test_draws_that_cannot_be_weighted_are_not(posterior, monkeypatch):
    call = draws.export

    def refuse(posterior, num, key, weighted, log_likelihood):
        if weighted:
            raise ArgumentError("every draw lies where the density is zero.")
        return call(posterior, num, key, weighted, log_likelihood)

    monkeypatch.setattr(draws, "export", refuse)
    tree, notes = take_draws(posterior, 10, True)
    assert tree.attrs["weighted"] == 0
    assert notes == ["The draws are not resampled: every draw lies where the density is zero."]
    with pytest.raises(ArgumentError, match="expected a positive integer"):
        take_draws(posterior, 0, False)


def test_cmdstanpy_reads_the_file(posterior, tmp_path):
    cmdstanpy = pytest.importorskip("cmdstanpy")
    from bernflow.runs import write_run

    write_run(posterior, tmp_path / "run", num=20, formats=("csv",))
    found = cmdstanpy.from_csv(tmp_path / "run" / "draws.csv")
    expected = posterior.draws(20)
    np.testing.assert_array_equal(found.stan_variable("part_w"), expected["part/w"])
    np.testing.assert_array_equal(found.stan_variable("mu"), expected["mu"])
    assert set(found.method_variables()) == {"lp__", "lp_approx__"}
