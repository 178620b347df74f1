"""The picture of a structure, and its words: of a few parameters as of thousands."""

import io

import jax
import jax.numpy as jnp
import pytest
from matplotlib.patches import Rectangle
from numpyro.distributions import constraints

from bernflow.errors import ArgumentError
from bernflow.flows.structure import Structure
from bernflow.flows.structured import StructuredBernsteinFlow
from bernflow.models.base import Site
from bernflow.plots import plot_structure
from bernflow.plots.style import ACCENT
from bernflow.posterior.structure import NamedStructure, by_name, labels, named_structure
from bernflow.posterior.tables import Axes
from bernflow.target import Layout

PAIRS = NamedStructure(("tau", "mu"), tuple((f"z[{i}, 0]", f"z[{i}, 1]") for i in range(1000)))
CHAIN = NamedStructure(("tau",), tuple((f"x[{i}]",) for i in range(5)), True)
DENSE = NamedStructure(("l",), (tuple(f"z[{i}]" for i in range(200)),))
TOGETHER = NamedStructure(tuple(f"b[{i}]" for i in range(40)))


def rows(figure):
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def cells(figure, color=None):
    """Return the places of the cells, of one color."""
    patches = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    found = {(round(p.get_y() - 0.07), round(p.get_x() - 0.07)): p for p in patches}
    rgb = None if color is None else tuple(int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return {place for place, p in found.items() if rgb is None or p.get_facecolor()[:3] == rgb}


@pytest.mark.parametrize("structure", [PAIRS, CHAIN, DENSE, TOGETHER, NamedStructure(("a",))])
def test_every_structure_is_drawn_on_one_page(structure):
    figure = plot_structure(structure)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=60)
    assert len(buffer.getvalue()) > 2000
    assert len(rows(figure)) <= 24


def test_of_many_blocks_the_first_ones_and_the_last_one_are_shown():
    figure = plot_structure(PAIRS)
    names = rows(figure)
    assert names[:4] == ["tau", "mu", "z[0, 0]", "z[0, 1]"]
    assert names[-3:] == ["993 more blocks", "z[999, 0]", "z[999, 1]"]
    assert figure.get_suptitle() == "2 globals and 1,000 blocks of 2 locals each"
    # Globals with all; members of a block with each other; blocks not with other blocks.
    found, last = cells(figure), len(names) - 1
    assert {(0, j) for j in range(last + 1)} <= found
    assert {(2, 3), (3, 2), (last, last - 1)} <= found
    assert (3, 4) not in found
    assert (last, last - 2) not in found


def test_neighbors_in_a_chain_are_connected():
    found = cells(plot_structure(CHAIN), ACCENT)
    assert found == {(i, j) for i in range(1, 6) for j in range(1, 6) if abs(i - j) <= 1}


def test_members_of_a_large_block_are_left_out():
    names = rows(plot_structure(DENSE))
    assert names[-2:] == ["189 more", "z[199]"]


def test_words_tell_sizes_and_names():
    assert repr(PAIRS) == "2 globals (tau, mu) and 1,000 blocks of 2 locals each, independent given the globals"
    assert repr(CHAIN) == "1 global (tau) and 5 blocks of 1 local each, each dependent on the one before it"
    assert repr(DENSE) == "1 global (l) and one block of 200 locals"
    assert repr(TOGETHER).startswith("40 globals (b[0], b[1], ")
    assert repr(TOGETHER).endswith("...), no locals")
    html = PAIRS._repr_html_()
    assert "1,000 blocks of 2 locals each" in html
    assert "z[0, 0], z[0, 1]; z[1, 0]" in html
    assert "&lt;i&gt;" in NamedStructure(("<i>",))._repr_html_()


def test_dimensions_have_the_names_of_the_model():
    layout = Layout((Site("tau", (), constraints.positive), Site("b", (2,), constraints.real)))
    assert labels(layout, Axes({"b": ("shop",)}, {"shop": ["park", "harbor"]})) == ["tau", "b[park]", "b[harbor]"]
    # A simplex of three has two dimensions, of which none is one of its components.
    assert labels(Layout((Site("w", (3,), constraints.simplex),)), Axes()) == ["w[0]", "w[1]"]
    assert by_name(None, ["a", "b"]) == NamedStructure(("a", "b"))


def test_a_posterior_is_asked_for_figures_by_name(make):
    post = make(size=3)
    assert post.structure == NamedStructure(("tau", "b[0]", "b[1]", "b[2]"))
    assert post.plot("structure").get_suptitle() == "4 parameters, all fitted together"
    assert len(post.plot("marginals", var_names="tau", num=100).axes) == 1
    with pytest.raises(ArgumentError, match=r"plot\('scatter'\): expected one of 'marginals', 'pairs'"):
        post.plot("scatter")


def test_the_structure_is_that_of_the_flow():
    structure = Structure(4, leaders=(1,), blocks=((0,), (2, 3)), chained=False)
    flow = StructuredBernsteinFlow(jax.random.key(0), structure, jnp.zeros(1), jnp.eye(1), order=3, width=4)
    found = named_structure(flow, Layout((Site("b", (4,), constraints.real),)), Axes())
    assert found == NamedStructure(("b[1]",), (("b[0]",), ("b[2]", "b[3]")))
    assert found.sizes == "2 blocks of 1 to 2 locals"
