"""Importing bernflow, fitting, reporting and plotting leave the global state of the process as it was."""

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parent / "global_state.py"


def test_nothing_is_left_behind():
    done = subprocess.run([sys.executable, PROGRAM], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    changes = json.loads(done.stdout.splitlines()[-1])
    assert changes.pop("start JAX").keys() == {"devices of JAX"}, "of the user's own: a change is noticed"
    assert len(changes) == 9
    assert {step: changed for step, changed in changes.items() if changed} == {}
