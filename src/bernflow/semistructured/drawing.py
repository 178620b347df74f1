"""Draws of coefficients and last layers for every network, and its columns for other rows."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from bernflow.keys import as_key
from bernflow.precision import use_precision
from bernflow.semistructured.effects import Vector, last_layers, sites_of
from bernflow.semistructured.features import evaluate_features
from bernflow.semistructured.fitting import Problem, Trained
from bernflow.semistructured.inference import Effects
from bernflow.semistructured.prediction import Draws, Inputs


def draw_by_network(
    problem: Problem,
    effects: Effects,
    trained: Sequence[Trained],
    x: np.ndarray,
    images: np.ndarray,
    num: int,
    key: Any,
    precision: str,
    network: int | None = None,
) -> Iterator[tuple[Draws, Inputs, Any]]:
    """Yield, for every network, draws, the inputs of the rows, and a key.

    Args:
        problem: what was fitted.
        effects: the posterior.
        trained: the networks.
        x: standardized columns of the rows.
        images: of the rows.
        num: draws, shared by the networks.
        key: integer seed or key.
        precision: of the networks.
        network: index of the only one to use; None uses all.
    """
    numbers = range(len(trained)) if network is None else [network]
    vector = Vector(sites_of(problem.design), problem.kind)
    for number, own in zip(numbers, jax.random.split(as_key(key), len(numbers)), strict=True):
        draw_key, layer_key, outcome_key = jax.random.split(own, 3)
        with use_precision(precision):
            best = trained[number].best
            frozen = trained[number].network.with_weights(best.weights, best.state)
            out, features = evaluate_features(frozen, images, effects.last)
        with use_precision("float64"):
            layer = jax.tree.map(lambda leaf, number=number: leaf[number : number + 1], effects.layers)
            z = np.asarray(layer(out[None], features[None].astype(float)))[0]
            theta: Any = _choose(effects.draws, -(-num // len(numbers)), draw_key)
            vectors = np.asarray(jax.vmap(vector)(theta))
            inside, w = last_layers(effects.found, vectors, problem.units, number, layer_key)
        yield Draws(problem.kind, inside, w, problem.units.origin, problem.units.unit), Inputs(x, z), outcome_key


def _choose(draws: dict[str, np.ndarray], num: int, key: Any) -> dict[str, np.ndarray]:
    """Choose some of the draws, repeatedly if more are requested than there are."""
    total = len(next(iter(draws.values())))
    seed = np.asarray(jax.random.key_data(key)).ravel().tolist()
    rows = np.resize(np.random.default_rng(seed).permutation(total), num)
    return {name: values[rows] for name, values in draws.items()}
