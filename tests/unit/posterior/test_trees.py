import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bernflow.posterior.container import to_array, to_bytes
from bernflow.posterior.trees import fill_arrays, named_arrays

TREE = {"a": jnp.arange(3.0), "b": (jnp.ones((2, 2), jnp.bfloat16), "text"), "key": jax.random.key(7), "none": None}


def test_a_tree_comes_back_from_its_arrays():
    stored = {name: to_array(to_bytes(values)) for name, values in named_arrays("x", TREE).items()}
    assert list(stored) == ["x_00000", "x_00001", "x_00002"]
    empty = jax.tree.map(lambda leaf: leaf if isinstance(leaf, str) else jnp.zeros_like(leaf), {**TREE, "key": None})
    again = fill_arrays("x", {**empty, "key": jax.random.key(0)}, stored)
    assert again["b"][1] == "text"
    assert again["b"][0].dtype == jnp.bfloat16
    for one, other in zip(named_arrays("x", again).values(), named_arrays("x", TREE).values(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert jax.random.key_data(again["key"]).tolist() == jax.random.key_data(TREE["key"]).tolist()


@pytest.mark.parametrize("template", [jnp.zeros(4), jnp.zeros(3, int)])
def test_other_arrays_are_refused(template):
    with pytest.raises(ValueError, match=r"an array is float32\(3,\), expected"):
        fill_arrays("x", template, {"x_00000": np.zeros(3, np.float32)})
    with pytest.raises(KeyError):
        fill_arrays("x", template, {})
