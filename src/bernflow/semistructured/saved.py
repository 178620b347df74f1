"""A fitted `SemiStructured` as one file of plain arrays and JSON; the code of the network is not in it."""

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from bernflow.errors import ArgumentError, FileFormatError
from bernflow.fit.api import load as load_posterior
from bernflow.models.network import Network
from bernflow.posterior.container import Kind as FileKind
from bernflow.posterior.container import read_container, write_container
from bernflow.posterior.trees import fill_arrays, named_arrays
from bernflow.precision import resolve_precision, use_precision
from bernflow.semistructured.crossfit import Layers
from bernflow.semistructured.design import Design, read_formula
from bernflow.semistructured.effects import find_units
from bernflow.semistructured.features import Reduction
from bernflow.semistructured.fitting import Problem, Trained
from bernflow.semistructured.inference import Effects
from bernflow.semistructured.lastlayer import Gaussian, Kind
from bernflow.semistructured.likelihoods import num_extra, num_predictors
from bernflow.semistructured.members import missing_network
from bernflow.semistructured.runs import Data
from bernflow.semistructured.training import Kept

if TYPE_CHECKING:
    from bernflow.semistructured.estimator import SemiStructured

KIND = FileKind(
    "bernflow-semistructured", 1, "a saved SemiStructured", "SemiStructured.save(path)", "fit and save it again"
)
# Arguments of the estimator that are plain values.
PLAIN = ("formula", "outcome", "networks", "precision", "images")


def save(estimator: "SemiStructured", path: str | os.PathLike) -> Path:
    """Save a fitted estimator to one file, atomically."""
    path = Path(path)
    if not path.parent.is_dir():
        raise ArgumentError(f"save({str(path)!r}): the folder {str(path.parent)!r} does not exist: create it first.")
    problem, effects = estimator._fitted("save")
    arrays: dict[str, Any] = {
        f"column_{i:05d}": _without_objects(values) for i, values in enumerate(problem.design.kept.values())
    }
    arrays |= {f"found_{name}": values for name, values in effects.found._asdict().items()}
    arrays |= {f"draws_{i:05d}": values for i, values in enumerate(effects.draws.values())}
    reduction = effects.layers.reduction
    arrays |= {"mean": reduction.mean, "scale": reduction.scale, "columns": effects.layers.columns}
    arrays |= {} if reduction.rotation is None else {"rotation": reduction.rotation}
    for number, one in enumerate(estimator._trained):
        arrays |= named_arrays(f"network{number}", one.best[:2])
        arrays |= {f"history{number}_{name}": values for name, values in one.history.items()}
    with tempfile.TemporaryDirectory() as folder:
        arrays["posterior"] = np.frombuffer(effects.posterior.save(Path(folder) / "posterior").read_bytes(), np.uint8)
    facts = {
        "arguments": {name: getattr(estimator, name) for name in PLAIN},
        "trained_in": resolve_precision(estimator.precision),
        "columns": list(problem.design.kept),
        "num_classes": problem.kind.num_classes,
        "origin": problem.units.origin,
        "unit": problem.units.unit,
        "last": effects.last,
        "draws": list(effects.draws),
        "findings": effects.findings,
        "priors": effects.priors,
        "best_epochs": estimator.best_epochs,
    }
    return write_container(path, KIND, facts, arrays)


def load(path: str | os.PathLike, model: Any = None, *args: Any, **options: Any) -> Any:
    """Load a file written by `Posterior.save` or `SemiStructured.save`.

    Args:
        path: the file.
        model: for a posterior, the model as it was passed to `fit`, for weighted draws, predictions and refining; its
            code and data are not in the file. For a `SemiStructured`, the network as it was passed to it, for
            predictions.
        *args: positional arguments of a NumPyro model.
        **options: for a posterior: `model_kwargs`, keyword arguments of a NumPyro model, and `check`: False attaches a
            model or data other than those of the fit, which is then judged again. For a `SemiStructured`: its `augment`
            and `prior`, for another fit.

    Returns:
        The posterior, or the fitted `SemiStructured`.

    Example:
        >>> path = post.save("posterior.bernflow")
        >>> bf.load(path).diagnostics.verdict
        'good'
        >>> bf.load(path, model, y).predict(num=10)["y"].shape  # with the model also weights and predictions
        (10, 3)
    """
    try:
        manifest, arrays = read_container(Path(path), KIND)
    except FileFormatError as error:
        # Another kind of file, or none: the reader of posteriors reports the error.
        if KIND.what in str(error) and "damaged" in str(error) and _names_itself(Path(path)):
            raise
        return load_posterior(path, model, *args, **options)
    try:
        return _restore(manifest, arrays, model, options)
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise KIND.damaged(Path(path), f"{type(error).__name__}: {error}") from error


def _restore(manifest: dict[str, Any], arrays: dict[str, np.ndarray], network: Any, options: dict) -> Any:
    from bernflow.semistructured.estimator import SemiStructured

    given = {name: manifest["arguments"][name] for name in PLAIN}
    estimator = SemiStructured(Network(None, None, missing_network) if network is None else network, **given, **options)
    names = map(str, manifest["columns"])
    table = {name: arrays[f"column_{i:05d}"] for i, name in enumerate(names)}
    outcome, classes = str(given["outcome"]), int(manifest["num_classes"])
    design = Design(read_formula(given["formula"]), table, has_cutpoints=outcome == "ordinal")
    kind = Kind(outcome, classes, num_predictors(outcome, classes), num_extra(outcome, classes))
    units = find_units(design, kind, float(manifest["origin"]), float(manifest["unit"]))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "posterior").write_bytes(arrays["posterior"].tobytes())
        posterior = load_posterior(Path(folder) / "posterior")
    plain: dict[str, Any] = dict(arrays)
    found = Gaussian(**{name: plain[f"found_{name}"] for name in Gaussian._fields})
    layers = Layers(Reduction(plain["mean"], plain["scale"], plain.get("rotation")), plain["columns"])
    trained = []
    for number, best_epoch in enumerate(manifest["best_epochs"]):
        prefix = f"history{number}_"
        with use_precision(str(manifest["trained_in"])):
            own = estimator._source(jax.random.key(0))
            parts = jax.tree.map(jnp.asarray, (own.weights, own.state))
            if network is not None:
                parts = fill_arrays(f"network{number}", parts, arrays)
            kept = Kept(parts[0], parts[1], jnp.zeros(0))
        history = {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}
        trained.append(Trained(own, kept, None, history, int(best_epoch)))
    empty = Data(np.zeros((0, 0)), np.zeros(0), np.zeros(0))
    normal = (np.zeros(0), np.zeros(0))
    estimator._problem = Problem(design, kind, units, {}, empty, empty.y, normal, np.zeros(0, int), len(trained))
    estimator._trained = trained
    last = manifest["last"]
    estimator._effects = Effects(
        posterior=posterior,
        found=found,
        layers=layers,
        last=None if last is None else int(last),
        findings=list(manifest["findings"]),
        priors=manifest["priors"],
        draws={str(name): arrays[f"draws_{i:05d}"] for i, name in enumerate(manifest["draws"])},
    )
    return estimator


def _names_itself(path: Path) -> bool:
    """Tell whether a damaged file says that it is one of ours."""
    try:
        return f'"{KIND.format}"'.encode() in path.read_bytes()
    except OSError:
        return False


def _without_objects(values: np.ndarray) -> np.ndarray:
    """Return text as an array of characters, since the file contains plain arrays only."""
    if values.dtype.kind != "O":
        return values
    if all(isinstance(value, str) for value in values):
        return values.astype(str)
    if all(isinstance(value, bool | np.bool_) for value in values):
        return values.astype(bool)
    raise ArgumentError(
        "save: a column of the table holds objects other than text, numbers and dates: turn it into one of these "
        "before the fit."
    )
