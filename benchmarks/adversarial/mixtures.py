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


def mixture(name: str, family: str, parts: Sequence[Part]) -> Case:
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

    return Case(name, family, build, {"x": Moments(mean, sd)})


def concentric(num: int) -> list[Case]:
    """A wide normal around a narrow one of the same center, by random sizes and shares."""
    cases = []
    for i in range(num):
        random = np.random.default_rng([26, 1, i])
        dim = (1, 2, 3, 4, 5, 6, 8, 10, 20, 40)[i % 10]
        share, width = np.exp(random.uniform(np.log((0.005, 3.0)), np.log((0.5, 50.0))))
        center, unit = random.normal(size=dim), np.exp(random.normal(size=dim))
        parts = Part(1.0 - share, center, unit), Part(share, center, width * unit)
        cases.append(mixture(f"concentric-{i}", "concentric", parts))
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
        parts = Part(1.0 - share, np.zeros(dim), np.ones(dim)), Part(share, offset, np.full(dim, width))
        cases.append(mixture(f"far-mode-{i}", "far mode", parts))
    return cases


def spikes(num: int) -> list[Case]:
    """A narrow spike in or near a normal."""
    cases = []
    for i in range(num):
        random = np.random.default_rng([26, 3, i])
        dim = (1, 2, 5)[i % 3]
        share, width = random.uniform(0.1, 0.4), np.exp(random.uniform(np.log(0.02), np.log(0.2)))
        direction = random.normal(size=dim)
        offset = random.uniform(1.0, 8.0) * direction / np.linalg.norm(direction)
        parts = Part(1.0 - share, np.zeros(dim), np.ones(dim)), Part(share, offset, np.full(dim, width))
        cases.append(mixture(f"spike-{i}", "narrow spike", parts))
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
