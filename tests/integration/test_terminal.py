"""The progress bar of a fit in a real terminal, and silence in a log."""

import os
import re
import select
import subprocess
import sys

import pytest

CODE = """
import numpyro, numpyro.distributions as dist
import bernflow as bf

def model(y=None):
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0, 1)), 1), obs=y)

bf.fit(model, y=[0.3, 1.2, -0.4], family="gaussian", steps=600)
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
EIGHTHS = " ▏▎▍▌▋▊▉█"


def in_terminal(folder):
    """Run the code with a terminal of 80 columns as its output, and return what it wrote."""
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")
    main, other = pty.openpty()
    termios.tcsetwinsize(other, (24, 80))
    process = subprocess.Popen([sys.executable, "-c", CODE], stdout=other, stderr=other, cwd=folder, env=ENVIRONMENT)
    os.close(other)
    written = b""
    while process.poll() is None or select.select([main], [], [], 0.0)[0]:
        if select.select([main], [], [], 0.1)[0]:
            try:
                written += os.read(main, 1 << 16)
            except OSError:  # the other end is closed
                break
    os.close(main)
    assert process.wait() == 0, written.decode()
    return written.decode()


@pytest.mark.slow
def test_the_bar_of_a_terminal_never_goes_back_and_names_every_phase(tmp_path):
    frames = [frame for frame in re.split(r"[\r\n]", in_terminal(tmp_path)) if "|" in frame]
    filled = [sum(map(EIGHTHS.index, frame.split("|")[1])) for frame in frames]
    assert filled == sorted(filled)
    assert filled[-1] == 12 * 8
    assert max(map(len, frames)) <= 80
    phases = list(dict.fromkeys(re.match(r"(?:\x1b\[A)?bernflow: (\w+)", frame)[1] for frame in frames))
    assert phases == ["starting", "compiling", "training", "judging", "done"]
    said = [re.search(r"starting .*\| \d\d:\d\d, (.*?)\s*$", frame) for frame in frames]
    assert list(dict.fromkeys(each[1] for each in said if each)) == ["reading the model", "8 Newton paths"]
    assert re.search(r"\| \d\d:\d\d, .*/600 steps, ELBO -\d", "".join(frames))
    assert re.search(r"ELBO -\d+\.\d+", frames[-1])


@pytest.mark.slow
def test_a_log_of_a_fit_is_empty(tmp_path):
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, cwd=tmp_path, env=ENVIRONMENT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
