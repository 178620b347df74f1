"""Mixtures of normals: wide parts around narrow ones, far modes, spikes, wide parts of one coordinate."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

import bernflow as bf
from benchmarks.adversarial.case import Case, Moments


class Part:
    """One normal of a mixture.

    Args:
        weight: its share of the mass.
        loc: its mean, (p,).
        scale: its standard deviations, (p,).
    """

    def __init__(self, weight: float, loc: Any, scale: Any):
        self.weight = weight
        self.loc, self.scale = np.asarray(loc, float), np.asarray(scale, float)


def mixture(name: str, family: str, parts: Sequence[Part], num_keys: int = 3) -> Case:
    """Return the case of a mixture of normals with independent coordinates."""
    weights = np.array([part.weight for part in parts])
    locs, scales = (np.stack([getattr(part, field) for part in parts]) for field in ("loc", "scale"))
    mean = weights @ locs
    sd = np.sqrt(weights @ (scales**2 + locs**2) - mean**2)

    def build() -> tuple[Any, tuple[Any, ...]]:
        def log_density(x):
            each = -0.5 * ((x - locs) / scales) ** 2 - jnp.log(scales) - 0.5 * jnp.log(2.0 * jnp.pi)
            return logsumexp(jnp.sum(each, -1) + jnp.log(weights))

        return bf.from_log_density(log_density, init=locs[0]), ()

    return Case(name, family, build, {"x": Moments(mean, sd)}, num_keys)


# Dimension, share and width of wide normals around a standard one that fits once missed and called good.
MISSED = (
    (4, 0.05, 20.0),
    (5, 0.002, 50.0),
    (5, 0.01, 20.0),
    (6, 0.01, 10.0),
    (8, 0.1, 10.0),
    (10, 0.5, 20.0),
    (20, 0.5, 10.0),
    (40, 0.5, 5.0),
)


def missed() -> list[Case]:
    """A wide normal around a standard one, by sizes and shares that were missed once."""
    return [_around(f"concentric-{p}-{w}-{s:g}", "concentric", p, w, s, num_keys=3) for p, w, s in MISSED]


def wide(num: int) -> list[Case]:
    """A part that is hundreds of times as wide as the other."""
    cases = []
    for i in range(num):
        random = np.random.default_rng([26, 6, i])
        width = 1000.0 if i == 0 else np.exp(random.uniform(np.log(100.0), np.log(1000.0)))
        dim, share = (1, 2, 3, 5)[i % 4], random.uniform(0.02, 0.4)
        cases.append(_around(f"wide-{i}", "very wide part", dim, share, width, num_keys=3))
    return cases


def _around(name: str, family: str, dim: int, share: float, width: float, num_keys: int) -> Case:
    center, unit = np.zeros(dim), np.ones(dim)
    return mixture(name, family, [Part(1.0 - share, center, unit), Part(share, center, width * unit)], num_keys)


def concentric(num: int) -> list[Case]:
    """A wide normal around a narrow one of the same center, by random sizes and shares."""
    cases = []
    for i in range(num):
        random = np.random.default_rng([26, 1, i])
        dim = (1, 2, 3, 4, 5, 6, 8, 10, 20, 40)[i % 10]
        share, width = np.exp(random.uniform(np.log((0.005, 3.0)), np.log((0.5, 50.0))))
        center, unit = random.normal(size=dim), np.exp(random.normal(size=dim))
        parts = Part(1.0 - share, center, unit), Part(share, center, width * unit)
        cases.append(mixture(f"concentric-{i}", "concentric", parts, num_keys=1))
    return cases


def far_modes(num: int) -> list[Case]:
    """A second mode at a random distance and of random weight and width."""
    cases = []
    for i in range(num):
        random = np.random.default_rng([26, 2, i])
        dim = (1, 2, 3, 5, 10)[i % 5]
        share, distance = random.uniform(0.05, 0.5), np.exp(random.uniform(np.log(4.0), np.log(30.0)))
        direction = random.normal(size=dim)
        offset = distance * direction / np.linalg.norm(direction)
        width = np.exp(random.uniform(-0.7, 0.7))
        cases.append(_second(f"far-mode-{i}", "far mode", share, offset, width))
    return cases


def known_modes() -> list[Case]:
    """A second mode, and a narrow spike, with 30 % of the mass each, in places that were missed once."""
    places = [("far mode", dim, distance, 1.0) for dim in (1, 2, 10) for distance in (6.0, 30.0)]
    places += [("narrow spike", dim, 3.0, 0.05) for dim in (1, 2, 5)]
    return [
        _second(f"{family.replace(' ', '-')}-{dim}-{distance:g}", family, 0.3, distance * np.eye(dim)[0], width)
        for family, dim, distance, width in places
    ]


def _second(name: str, family: str, share: float, offset: np.ndarray, width: float) -> Case:
    ones = np.ones(len(offset))
    return mixture(name, family, [Part(1.0 - share, 0.0 * ones, ones), Part(share, offset, width * ones)])


def spikes(num: int) -> list[Case]:
    """A narrow spike in or near a normal."""
    cases = []
    for i in range(num):
        random = np.random.default_rng([26, 3, i])
        dim = (1, 2, 5)[i % 3]
        share, width = random.uniform(0.1, 0.4), np.exp(random.uniform(np.log(0.02), np.log(0.2)))
        direction = random.normal(size=dim)
        offset = random.uniform(1.0, 8.0) * direction / np.linalg.norm(direction)
        cases.append(_second(f"spike-{i}", "narrow spike", share, offset, width))
    return cases


def slabs(num: int) -> list[Case]:
    """A wide part in one coordinate of several."""
    cases = []
    for i in range(num):
        random = np.random.default_rng([26, 4, i])
        dim = (4, 8, 15, 25)[i % 4]
        share, width = random.uniform(0.02, 0.3), np.exp(random.uniform(np.log(5.0), np.log(50.0)))
        scale = np.ones(dim)
        scale[random.integers(dim)] = width
        parts = Part(1.0 - share, np.zeros(dim), np.ones(dim)), Part(share, np.zeros(dim), scale)
        cases.append(mixture(f"slab-{i}", "slab in one coordinate", parts))
    return cases


def single(num: int) -> list[Case]:
    """One normal with correlations: nothing is hidden, so that any alarm is a false one."""
    cases = []
    for i in range(num):
        random = np.random.default_rng([26, 5, i])
        dim = (1, 3, 6, 12)[i % 4]
        factor = np.tril(random.normal(size=(dim, dim))) * np.exp(random.normal(size=(dim, 1)))
        center = 10.0 * random.normal(size=dim)
        cases.append(_normal(f"normal-{i}", center, factor + 0.3 * np.eye(dim)))
    return cases


def _normal(name: str, center: np.ndarray, factor: np.ndarray) -> Case:
    inverse = np.linalg.inv(factor)

    def build() -> tuple[Any, tuple[Any, ...]]:
        return bf.from_log_density(
            lambda x: -0.5 * jnp.sum((inverse @ (x - center)) ** 2), init=np.zeros(len(center))
        ), ()

    return Case(name, "normal", build, {"x": Moments(center, np.sqrt(np.sum(factor**2, 1)))})
