import numpy as np
import pytest

from bernflow.errors import ModelError
from bernflow.models.stan.names import group, sizes


def flat(name, shape):
    """Name the components as Stan does: the first index runs fastest."""
    return [".".join([name, *(str(i + 1) for i in index[::-1])]) for index in np.ndindex(shape[::-1])]


@pytest.mark.parametrize("shape", [(4,), (2, 3), (2, 3, 4), (1, 1), (3, 1)])
def test_the_components_of_an_array_are_found_whatever_their_order(shape):
    names = ["before", *flat("a", shape), "after"]
    before, variable, after = group(names)
    labels = np.array(names)[variable.places].reshape(shape)
    for index in np.ndindex(shape):
        assert labels[index] == "a." + ".".join(str(i + 1) for i in index)
    assert (before.name, before.shape, after.places.tolist()) == ("before", (), [len(names) - 1])
    assert variable.is_contiguous == (len(shape) == 1 or max(shape) == np.prod(shape))


def test_complex_numbers_get_an_axis_and_tuples_a_name_per_slot():
    names = [
        "z.1.real",
        "z.1.imag",
        "z.2.real",
        "z.2.imag",
        "t:1",
        "t:2.1",
        "t:2.2",
        "p.1:1",
        "p.1:2",
        "p.2:1",
        "p.2:2",
    ]
    assert [(v.name, v.shape, v.places.tolist()) for v in group(names)] == [
        ("z", (2, 2), [0, 1, 2, 3]),
        ("t:1", (), [4]),
        ("t:2", (2,), [5, 6]),
        ("p:1", (2,), [7, 9]),
        ("p:2", (2,), [8, 10]),
    ]


def test_sizes_and_arrays_of_tuples():
    assert sizes(["a", "b.1", "b.2", "t:1", "t:2.1"]) == {"a": 1, "b": 2, "t:1": 1, "t:2": 1}
    assert sizes([]) == {}
    with pytest.raises(ModelError, match=r"components of 'p:1', 'p:2' are not contiguous.*declare one array"):
        sizes(["p.1:1", "p.1:2", "p.2:1", "p.2:2"])
