import equinox as eqx
import jax
import numpy as np
import pytest

from bernflow.models.network import Network, as_network

AGE, MALE = 0.8, -0.5


class Net(eqx.Module):
    """Averages 8x8 pictures to 4x4 and passes them through a small network."""

    mlp: eqx.nn.MLP

    def __init__(self, key, size="scalar"):
        self.mlp = eqx.nn.MLP(16, size, 8, 1, key=key)

    def __call__(self, picture):
        return self.mlp(picture.reshape(4, 2, 4, 2).mean((1, 3)).ravel())


_SHARED = as_network(Net(jax.random.key(0)))


def make(key):
    """Make a network whose function is the same for every key and every test, so that it is compiled once."""
    return Network(as_network(Net(key)).weights, None, _SHARED.apply)


def pictures(rng, num):
    """Return the brightness of a blob, and 8x8 pictures with it."""
    brightness = rng.normal(size=num)
    images = 0.3 * rng.normal(size=(num, 8, 8))
    images[:, 3:5, 3:5] += brightness[:, None, None]
    return brightness, images.astype(np.float32)


def predictor(seed, num):
    """Return table, images and eta; the table is independent of the pictures."""
    rng = np.random.default_rng(seed)
    brightness, images = pictures(rng, num)
    table = {"age": rng.normal(size=num), "sex": rng.choice(["f", "m"], num)}
    return table, images, -0.5 + 1.5 * brightness + AGE * table["age"] + MALE * (table["sex"] == "m"), rng


def binary(seed=0, num=1000):
    """Return table, images and y."""
    table, images, eta, rng = predictor(seed, num)
    return table, images, (rng.random(num) < 1 / (1 + np.exp(-eta))).astype(int)


@pytest.fixture
def net():
    return Net(jax.random.key(0))
