"""The progress bar: one for a whole fit, alive where somebody watches, silent in a log."""

import dataclasses
import io
import re
import sys
import time
from contextlib import redirect_stderr

import numpy as np
import pytest

from bernflow.diagnostics import Finding, judge
from bernflow.fit import bar as module
from bernflow.fit import refining
from bernflow.fit.bar import Bar
from bernflow.fit.deadline import Deadline
from bernflow.fit.train.progress import Recorder
from bernflow.fit.train.state import Trace
from bernflow.watched import in_notebook, is_watched


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def chunk(bar, clock, done, planned, elbo=-3.0, may_end=True, seconds=1.0):
    clock.now += seconds
    bar.trained(done, planned, elbo, may_end)
    return bar.filled


def test_the_bar_never_goes_back(clock):
    bar = Bar(False, clock=clock)
    seen = [bar.filled]
    for done, planned in ((250, 250), (500, 500), (750, 1000), (1000, 1000), (1250, 2000), (1500, 2000)):
        seen.append(chunk(bar, clock, done, planned))
    bar.phase("judging")
    seen.append(bar.filled)
    bar.stage("mixture of 2")
    seen += [chunk(bar, clock, done, 1000, seconds=9.0) for done in (250, 500, 750)]
    bar.stage("2 flows, each alone")
    seen.append(bar.filled)
    assert seen == sorted(seen)
    assert seen[0] == 0.0
    assert 0.0 < seen[3] < seen[4] < seen[7] < seen[10] < seen[11] < 1.0


def test_a_given_number_of_steps_moves_it_evenly(clock):
    bar = Bar(False, clock=clock)
    shares = [chunk(bar, clock, done, 1000, may_end=False) for done in (200, 400, 600, 800, 1000)]
    assert np.diff(shares) == pytest.approx(np.diff(shares)[0])
    assert bar.text() == "00:00 left + verdict, 1,000/1,000 steps, ELBO -3.00"


def test_the_text_says_what_is_left_and_what_has_changed(clock):
    bar = Bar(False, Deadline.start(100, clock), clock=clock)
    chunk(bar, clock, 250, 250, -31.5)
    assert bar.text() == "ELBO -31.50", "the rate is not known yet"
    bar.seen(0.0123)
    chunk(bar, clock, 500, 1000, -31.0)
    assert bar.text() == "00:02 to 01:38 left, KL 0.012, ELBO -31.00 (+0.50)"
    bar = Bar(False, clock=clock)
    chunk(bar, clock, 250, 250, -31.5)
    chunk(bar, clock, 500, 1000, -31.501)
    assert bar.text() == "00:02+ left, ELBO -31.50"
    chunk(bar, clock, 750, 1000, -4e9)
    assert bar.text() == "00:01+ left, ELBO -4e+09 (-4e+09)"
    bar.phase("judging")
    assert bar.text() == "ELBO -4e+09 (-4e+09)"


def test_the_text_says_what_the_start_is_doing(clock):
    bar = Bar(False, clock=clock)
    bar.phase("starting", "8 Newton paths")
    assert bar.text() == "8 Newton paths"
    bar.phase("compiling")
    assert bar.text() == ""
    bar.stage("mixture")
    bar.phase("starting", "24 Newton paths")
    chunk(bar, clock, 250, 250, -31.5)
    assert bar.text() == "ELBO -31.50"


def test_the_text_does_not_say_what_is_nothing(clock):
    bar = Bar(False, clock=clock)
    chunk(bar, clock, 250, 500)
    chunk(bar, clock, 500, 500)
    bar.seen(4.6e-18)
    assert bar.text() == "KL < 1e-05, ELBO -3.00", "at least 00:00 left is no expectation"
    bar = Bar(False, Deadline.start(3, clock), clock=clock)
    chunk(bar, clock, 250, 250)
    chunk(bar, clock, 500, 1250, seconds=2.0)
    assert bar.text() == "00:06 left, ELBO -3.00"


def test_a_terminal_shows_stages_phases_and_a_clock_that_moves(terminal, monkeypatch, clock):
    monkeypatch.setattr(module, "REFRESH_SECONDS", 0.001)
    with redirect_stderr(terminal), Bar(True, name="network 2 of 3") as bar:
        for _ in range(2000):
            if terminal.getvalue().count("network 2 of 3: starting") > 4:  # without a call
                break
            time.sleep(0.005)
        bar.phase("compiling")
        Recorder(bar, 32, may_end=True)(250, 500, Trace(np.full((1, 250), -2.0), np.ones((1, 250))))
        bar.phase("judging")
        bar.stage("given the network")
    lines = terminal.getvalue()
    assert lines.count("network 2 of 3: starting") > 4
    for words in (
        "bernflow network 2 of 3: compiling |            | 00:0",
        "bernflow network 2 of 3: training |",
        "ELBO -2.00",
        "bernflow network 2 of 3: judging |",
        "bernflow network 2 of 3, given the network: starting |",
        "bernflow network 2 of 3, given the network: done |████████████|",
    ):
        assert words in lines
    bar.close()
    assert terminal.getvalue() == lines, "closed once"


def test_an_error_leaves_the_bar_where_it_was(terminal):
    with pytest.raises(KeyboardInterrupt), redirect_stderr(terminal), Bar(True):
        raise KeyboardInterrupt
    assert "done" not in terminal.getvalue()
    assert "█" not in terminal.getvalue()


def test_a_log_stays_silent():
    log = io.StringIO()
    with redirect_stderr(log):
        assert not is_watched()
        with Bar(True) as bar:
            bar.trained(250, 500, -2.0, False)
    assert log.getvalue() == ""
    closed = io.StringIO()
    closed.close()
    assert not is_watched(closed)


def test_a_notebook_is_watched_without_a_terminal(monkeypatch):
    class Shell:
        kernel = object()

    class Module:
        shell = Shell()

        @classmethod
        def get_ipython(cls):
            return cls.shell

    monkeypatch.setitem(sys.modules, "IPython", Module)
    assert in_notebook()
    assert is_watched(io.StringIO())
    monkeypatch.setattr(Module, "shell", object())
    assert not in_notebook(), "IPython in a terminal"


class Judged:
    """As much of a posterior as decides whether refining has paid."""

    def __init__(self, elbo, verdict, steps):
        findings = (Finding("weights", verdict, "so it is"),)
        self.diagnostics = dataclasses.replace(judge(np.zeros(100)), elbo=elbo, elbo_se=0.01, findings=findings)
        self.settings = {"steps": steps}


@pytest.mark.parametrize(
    ("elbo", "verdict", "kept", "words"),
    [
        (-3.0, "poor", True, r"Refining it by 400 steps raised the ELBO by 2 nats\.$"),
        (-5.01, "usable", True, r"Refining it by 400 steps did not raise the ELBO\.$"),
        (-5.01, "poor", False, r"Refining it by 400 steps did not raise the ELBO, and was undone\.$"),
    ],
)
def test_refining_that_only_does_harm_is_undone(elbo, verdict, kept, words):
    before = Judged(-5.0, "usable", 100)
    refined = Judged(elbo, verdict, 500)
    found = refining.better(refined, before)
    assert (found is refined) == kept
    assert found.settings["steps"] == (500 if kept else 100)
    assert found.diagnostics.verdict == (verdict if kept else "usable")
    assert re.search(words, found.diagnostics.status)
    assert "Refining" not in before.diagnostics.status


class Fit:
    """As much of a posterior as `refine` looks at before it starts."""

    def __init__(self, elbo, improper=None):
        self.history = {"elbo": np.asarray(elbo), "elbo_se": np.full(len(elbo), 0.01)}
        self.diagnostics = type("Diagnostics", (), {"improper": improper})


@pytest.mark.parametrize(
    ("fit", "steps", "words"),
    [
        (Fit(np.linspace(-9, -5, 100)), None, "still rising when the training ended, by 0.4 nats in its last tenth"),
        (Fit(np.full(100, -5.0)), None, "no longer rising .* Training ends after 1,000 steps if these gain nothing."),
        (Fit(np.full(100, -5.0)), 50, "no longer rising .* likely to gain little.$"),
        (Fit(np.full(100, -5.0), "b[0]"), None, "improper along b.0.: training cannot correct that"),
    ],
)
def test_refine_says_first_what_it_expects(terminal, fit, steps, words):
    with redirect_stderr(terminal):
        refining.announce(fit, steps, progress=True)
    written = terminal.getvalue()
    assert written.startswith("bernflow refine: the ")
    assert re.search(words, written.strip())
    with redirect_stderr(terminal):
        refining.announce(fit, steps, progress=False)
    assert terminal.getvalue() == written
