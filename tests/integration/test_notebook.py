"""The progress bar as a notebook gets it, from a kernel."""

import os
import sys

import pytest

CODE = """
import numpyro, numpyro.distributions as dist
import bernflow as bf

def model(y=None):
    numpyro.sample("y", dist.Normal(numpyro.sample("mu", dist.Normal(0, 1)), 1), obs=y)

post = bf.fit(model, y=[0.3, 1.2, -0.4], family="gaussian", steps=300)
"""


@pytest.mark.slow
def test_a_bar_of_widgets_is_full_at_the_end():
    for package in ("ipykernel", "ipywidgets"):
        pytest.importorskip(package)
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in (CODE, "post")])
    client = nbclient.NotebookClient(book, timeout=300, kernel_name="python3", store_widget_state=True)
    client.create_kernel_manager()
    client.km.kernel_spec.argv[0] = sys.executable
    done = client.execute(env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
    shown = done["cells"][0]["outputs"]
    assert [output["output_type"] for output in shown] == ["display_data"], "one bar, and nothing on stderr"
    assert "application/vnd.jupyter.widget-view+json" in shown[0]["data"]
    states = [
        w["state"] for w in done["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"].values()
    ]
    [bar] = [state for state in states if state.get("_model_name") == "FloatProgressModel"]
    assert (bar["value"], bar["max"], bar["bar_style"]) == (1.0, 1.0, "success")
    texts = [state["value"] for state in states if state.get("_model_name") == "HTMLModel"]
    assert any("bernflow: done" in text.replace("\u2007", " ") for text in texts)
    assert any("ELBO" in text for text in texts)
    assert "text/html" in done["cells"][1]["outputs"][0]["data"]
