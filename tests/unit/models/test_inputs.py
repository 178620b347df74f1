import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bernflow.errors import ModelError
from bernflow.models.inputs import Opaque, call, check_values, freeze, name_of, pack, unpack, user_code


class Unhashable:
    __hash__ = None


def test_pack_keeps_dtype_and_wraps_what_cannot_be_hashed():
    thing = Unhashable()
    tree = {
        "a": np.arange(3.0),
        "n": 3,
        "s": "text",
        "none": None,
        "j": jnp.ones(2),
        "o": thing,
        "g": np.float64(2),
    }
    packed = pack(tree)
    assert packed["a"].dtype == np.float64
    assert isinstance(packed["j"], np.ndarray)
    assert isinstance(packed["g"], np.ndarray)
    assert packed["n"] == 3
    assert packed["o"] == Opaque(thing)
    assert hash(packed["o"]) == hash(Opaque(thing))
    assert packed["o"] != Opaque(Unhashable())
    assert repr(packed["o"]) == "Opaque(Unhashable)"
    back = unpack(packed)
    assert back["o"] is thing
    assert back["s"] == "text"
    with jax.enable_x64(True):
        assert unpack(packed)["a"].dtype == jnp.float64


def test_pack_leaves_keys_and_text_arrays_alone():
    key, words = jax.random.key(0), np.array(["a", "b"])
    packed = pack((key, words))
    assert packed[0] is key
    assert packed[1] == Opaque(words)


def test_freeze_makes_arrays_static_and_keeps_the_object():
    y = np.arange(3)
    assert freeze({"y": y, "n": 2}) == {"y": Opaque(y), "n": 2}
    assert unpack(freeze(y)) is y


@pytest.mark.parametrize(
    "value",
    [
        np.arange(5),
        np.array([True, False]),
        np.array(["a"]),
        np.array([None], dtype=object),
        np.ma.masked_array([1.0, 2.0], mask=[False, False]),
        jax.random.key(0),
        Unhashable(),
        "nan",
        None,
        np.zeros((0,)),
    ],
)
def test_check_values_passes_what_has_no_missing_values(value):
    check_values({"v": value}, "x")


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (
            np.array([[0.0, 1.0], [np.nan, np.inf]]),
            r"x\['v'\] has 2 NaN or infinite values, the first at index \(1, 0\)",
        ),
        (np.array([0.0, np.nan], dtype=np.float16), r"1 NaN or infinite values, the first at index \(1,\)"),
        (jnp.array([jnp.nan], dtype=jnp.bfloat16), "1 NaN or infinite"),
        (np.float64("nan"), r"at index \(\) \(nan\)"),
        (np.ma.masked_array([1.0, 2.0], mask=[True, False]), "masked array with 1 masked values"),
        (np.ma.masked_array([1, 2], mask=[True, True]), "masked array with 2 masked values"),
    ],
)
def test_check_values_refuses(value, match):
    with pytest.raises(ModelError, match=match):
        check_values({"v": value}, "x")


def test_check_values_looks_into_foreign_arrays():
    class Column:
        def __array__(self, dtype=None, copy=None):
            return np.array([1.0, np.nan])

    class Refuses:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("no")

    with pytest.raises(ModelError, match="1 NaN"):
        check_values(Column(), "x")
    check_values(Refuses(), "x")


def test_infinite_values_can_be_allowed_but_nan_cannot():
    check_values(np.array([np.inf]), "args", allow_infinite=True)
    with pytest.raises(ModelError, match="args has 1 NaN values"):
        check_values(np.array([np.inf, np.nan]), "args", allow_infinite=True)


def test_user_code_keeps_the_cause_and_our_own_errors():
    with (
        pytest.raises(ModelError, match="The thing failed with TypeError: wrong") as caught,
        user_code("The thing"),
    ):
        raise TypeError("wrong")
    assert isinstance(caught.value.__cause__, TypeError)
    with pytest.raises(ModelError, match=r"^ours$"), user_code("The thing"):
        raise ModelError("ours")


def test_call_passes_as_many_arguments_as_are_taken():
    assert call(lambda a: (a,), 1, 2, 3) == (1,)
    assert call(lambda a, b: (a, b), 1, None) == (1, None)
    assert call(lambda a, n=7: (a, n), 1, None) == (1, 7)
    assert call(lambda a, n=7: (a, n), 1, 2) == (1, 2)
    assert call(lambda *args: args, 1, 2, 3) == (1, 2, 3)
    assert call(max, 1, 2) == 2


def test_name_of():
    assert name_of(test_name_of) == "test_name_of"
    assert name_of(Unhashable()) == "Unhashable"
