import pytest

from bernflow.cli import main


def run(capsys, *words):
    code = main(list(words))
    return code, *capsys.readouterr()


def test_reproduce_lists_the_experiments(capsys):
    code, out, _ = run(capsys, "reproduce", "--list")
    assert code == 0
    for name in ("bernoulli", "cauchy", "toy-regression", "diamonds", "eight-schools", "khat-table", "nn-regression"):
        assert f"\n{name} " in f"\n{out}"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "Name an experiment, or all: bernoulli"),
        (("frobnicate",), "There is no experiment frobnicate: expected all, or bernoulli"),
        (("bernoulli", "--jobs", "0"), "--jobs 0: expected a whole number of at least 1."),
    ],
)
def test_reproduce_refuses_what_it_cannot_do(capsys, words, message):
    code, out, err = run(capsys, "reproduce", *words)
    assert (code, out) == (1, "")
    assert message in err
