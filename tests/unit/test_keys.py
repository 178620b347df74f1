import jax
import numpy as np
import pytest

from bernflow.errors import ArgumentError
from bernflow.keys import GENERATOR, as_key, portable


@pytest.mark.parametrize("key", [7, np.int64(7), jax.random.key(7), jax.random.PRNGKey(7), 7 + 2**32])
def test_seeds_and_keys_agree(key):
    assert as_key(key) == jax.random.key(7, impl=GENERATOR)


@pytest.mark.parametrize("key", [1.5, True, None, "seed", jax.random.split(jax.random.key(0), 2), np.zeros(2)])
def test_other_things_are_refused(key):
    with pytest.raises(ArgumentError, match=r"is not a random key: expected an integer seed or one jax\.random\.key"):
        as_key(key)


def test_a_portable_key_serves_every_sampler():
    keys = portable(jax.random.split(as_key(0), 3))
    draws = jax.vmap(lambda key: jax.random.poisson(key, 30.0, (50,)))(keys)
    assert len({tuple(row.tolist()) for row in draws}) == 3
