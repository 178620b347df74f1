import subprocess
import sys

import pytest


@pytest.mark.parametrize("first", ["bernflow", "arviz_base, bernflow"])
def test_importing_leaves_numpyro_whole(first):
    # In a process of its own: here NumPyro may have been imported before.
    code = f"import {first}, numpyro; numpyro.distributions.distribution"
    subprocess.run([sys.executable, "-c", code], check=True)
