import subprocess
import sys

import pytest

import bernflow


@pytest.mark.parametrize("first", ["bernflow", "arviz_base, bernflow"])
def test_importing_leaves_numpyro_whole(first):
    # In a process of its own: here NumPyro may have been imported before.
    code = f"import {first}, numpyro, sys; numpyro.distributions.distribution"
    # Drawing is imported when it is first used.
    code += "; assert 'bernflow.plots' not in sys.modules; bernflow.plots.use('matplotlib')"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_other_names_are_unknown():
    with pytest.raises(AttributeError, match="module 'bernflow' has no attribute 'plot'"):
        bernflow.plot  # noqa: B018
