import jax
import numpy as np
import pytest

from bernflow.errors import ArgumentError
from bernflow.keys import GENERATOR, as_key, generator, grid, nth, portable, quick, spawn


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


def words(keys):
    return {tuple(row) for row in np.asarray(jax.random.key_data(keys)).reshape(-1, 4).tolist()}


def test_derived_keys_are_all_different():
    key = as_key(0)
    derived = [*spawn(key, 20), nth(key, 2**31), *spawn(nth(key, 0), 20), *spawn(as_key(1), 20)]
    assert len(set().union(words(key), words(grid(key, (5, 4))), *map(words, derived))) == 1 + 20 + 61


def test_derived_keys_belong_to_the_generator_of_their_key():
    assert grid(as_key(0), (2, 3)).shape == (2, 3)
    assert jax.random.key_impl(nth(jax.random.key(0), 1)) == jax.random.key_impl(jax.random.key(0))
    assert jax.random.key_impl(nth(quick(as_key(0)), 1)) == "unsafe_rbg"


def test_the_generator_of_the_host_follows_the_key():
    first, again, other = (generator(key).standard_normal(1000) for key in (as_key(0), as_key(0), nth(as_key(0), 0)))
    assert np.array_equal(first, again)
    assert abs(np.corrcoef(first, other)[0, 1]) < 4 / np.sqrt(1000)


def test_uniform_numbers_of_derived_keys_are_uniform():
    numbers = np.concatenate([np.asarray(jax.random.uniform(key, (50,))) for key in spawn(as_key(3), 40)])
    assert abs(numbers.mean() - 0.5) < 4 * np.sqrt(1 / 12 / numbers.size)
