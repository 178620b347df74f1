"""`from_pymc`: checks of a PyMC model, and extraction of its graphs, data and labels."""

from typing import Any
from weakref import ref

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from bernflow.errors import ModelError
from bernflow.models.base import AbstractJointModel, Site, Theta
from bernflow.models.inputs import check_values, freeze, user_code
from bernflow.models.pymc.graphs import NotInJaxError, host_function, quiet
from bernflow.models.pymc.model import AbstractPyMCModel, Notes
from bernflow.models.pymc.parts import batches_in
from bernflow.models.pymc.prediction import SEED, Inputs, arguments, first_line, results_of_draw
from bernflow.models.pymc.program import Program, Shapes, program_of, without_scaling
from bernflow.precision import float_dtype, use_settings


class PyMCModel(AbstractPyMCModel):
    """A PyMC model with its data."""

    sites: tuple[Site, ...]
    inputs: Inputs
    program: Program = eqx.field(static=True)
    shapes: Shapes = eqx.field(static=True)
    has_prior: bool = eqx.field(static=True)
    start: dict[str, np.ndarray] | None
    notes: Notes = eqx.field(static=True)


class MinibatchPyMCModel(AbstractPyMCModel, AbstractJointModel):
    """A PyMC model with `pm.Minibatch`: trained on batches, evaluated on all rows."""

    sites: tuple[Site, ...]
    inputs: Inputs
    program: Program = eqx.field(static=True)
    shapes: Shapes = eqx.field(static=True)
    has_prior: bool = eqx.field(static=True)
    start: dict[str, np.ndarray] | None
    notes: Notes = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)

    def num_rows(self) -> int:
        """Count the rows from which batches are taken."""
        return len(self.inputs.data[self.program.row_names[0]])

    def rows(self) -> PyTree:
        """Return the arrays from which batches are taken."""
        return {name: self.inputs.data[name] for name in self.program.row_names}

    def without_rows(self) -> "MinibatchPyMCModel":
        """Return the model without its rows."""
        rest = {name: value for name, value in self.inputs.data.items() if name not in self.program.row_names}
        return eqx.tree_at(lambda model: model.inputs.data, self, rest)

    def trained(self) -> tuple[None, None]:
        """Return nothing: all parameters have a prior."""
        return None, None

    def log_density_of_batch(
        self, theta: Theta, weights: PyTree, state: PyTree, batch: PyTree, key: Key[Array, ""]
    ) -> tuple[Float[Array, ""], PyTree]:
        """Evaluate the log density with a batch instead of all rows; PyMC's total_size scales it."""
        inputs = Inputs({**self.inputs.data, **batch}, self.inputs.lengths, None)
        terms = self._run("terms", self._point(theta), inputs)
        return sum(terms, start=jnp.zeros(())), state

    def frozen(self, weights: PyTree, state: PyTree) -> "MinibatchPyMCModel":
        """Return the model unchanged."""
        return self


@use_settings()
def from_pymc(model: Any) -> AbstractPyMCModel:
    """Convert a PyMC model to a bernflow model.

    Densities, transforms, deterministics and potentials are PyMC's own, run in JAX. The parameters have the names of
    the free variables; dims and coords label the result of `Posterior.to_arviz`. The data are copied at the time of the
    call. New values of `pm.Data` with the same shapes need no recompilation.

    Args:
        model: a `pymc.Model`; it is not modified.

    Returns:
        A model for `bernflow.fit`.

    Example:
        >>> import pymc as pm
        >>> with pm.Model() as model:
        ...     mu = pm.Normal("mu", 0, 1)
        ...     y = pm.Normal("y", mu, 1, observed=[0.3, 0.7])
        >>> [site.name for site in from_pymc(model).sites]
        ['mu']
    """
    if not is_pymc(model):
        raise ModelError(f"from_pymc: got a {type(model).__name__}: expected a pymc.Model.")
    _check(model)
    with quiet(), user_code("The PyMC model, run in JAX,"):
        program = program_of(model)
        data, lengths, shapes = program.parts.snapshot(), program.lengths(), program.shapes()
        _check_data(program, data)
        return _build(model, program, shapes, _traceable(program, shapes, Inputs(data, lengths, None)))


def is_pymc(model: Any) -> bool:
    """Tell whether something is a PyMC model, without importing PyMC."""
    bases = ("pymc.model.core.Model", "pymc.model.core.BaseModel")
    return any(f"{kind.__module__}.{kind.__qualname__}" in bases for kind in type(model).__mro__)


def _check(model: Any) -> None:
    if not model.isroot:
        raise ModelError(f"from_pymc: the model {model.name!r} is part of another one: pass the outermost pm.Model.")
    discrete = [rv.name for rv in model.free_RVs if not np.issubdtype(np.dtype(rv.type.dtype), np.floating)]
    if discrete:
        raise ModelError(
            f"from_pymc: the free variables {', '.join(map(repr, discrete))} are discrete: expected continuous ones. "
            "Sum over their values, with pm.Mixture or with marginalize of pymc-extras for instance."
        )
    if not model.free_RVs:
        raise ModelError(
            "from_pymc: the model has no free variables to infer: expected at least one without observed values."
        )


def _check_data(program: Program, data: dict[str, np.ndarray]) -> None:
    for name, value in data.items():
        is_observed = program.sources[name] in program.values.values()
        what = "the observed variable" if name in program.observed_names else "the pm.Data"
        check_values(value, f"from_pymc: {what} {name!r}", allow_infinite=not is_observed)
    lengths = {name: len(data[name]) for name in program.row_names}
    if len(set(lengths.values())) > 1:
        shown = ", ".join(f"{name}: {n}" for name, n in lengths.items())
        raise ModelError(f"from_pymc: pm.Minibatch takes rows of data of several lengths ({shown}): expected one.")


def _traceable(program: Program, shapes: Shapes, inputs: Inputs) -> Inputs:
    """Return the inputs, with those made static whose values JAX needs, for example because they determine shapes."""
    likely = {name for name, value in inputs.data.items() if value.dtype.kind in "biu" or value.ndim == 0}
    for frozen in (set(), likely):
        data = {name: freeze(v) if name in frozen else v for name, v in inputs.data.items()}
        try:
            _trace(program, shapes, Inputs(data, inputs.lengths, None))
        except (jax.errors.JAXTypeError, jax.errors.JAXIndexError, NotInJaxError):
            continue
        return Inputs(data, inputs.lengths, None)
    static = Inputs(freeze(inputs.data), inputs.lengths, None)
    _trace(program, shapes, static)
    return static


def _trace(program: Program, shapes: Shapes, inputs: Inputs) -> None:
    """Convert the graphs that every fit needs and evaluate them on abstract values, to find errors."""

    def density(data: Any, x: list[Array]) -> list[Array]:
        outputs = program.run("constrain", shapes, x, data, inputs.lengths)
        return program.run("terms", shapes, outputs[: len(program.free)], data, inputs.lengths)

    x = [jax.ShapeDtypeStruct(shape, float_dtype()) for shape in shapes.x]
    eqx.filter_eval_shape(density, inputs.data, x)


def _build(model: Any, program: Program, shapes: Shapes, inputs: Inputs) -> AbstractPyMCModel:
    no_draws = None
    try:
        inputs = Inputs(inputs.data, inputs.lengths, results_of_draw(program, shapes, inputs))
    except Exception as error:  # a distribution without random draws, such as a user-defined one
        no_draws = first_line(error)
    coords = {name: np.asarray(values) for name, values in model.coords.items() if values is not None}
    fields: dict[str, Any] = {
        "sites": tuple(Site(n, s, None) for n, s in zip(program.names, shapes.theta, strict=True)),
        "inputs": inputs,
        "program": program,
        "shapes": shapes,
        "has_prior": _can_draw_prior(program, shapes, inputs),
        "start": _start(model, program),
        "notes": Notes(coords, no_draws, ref(model)),
    }
    if not program.parts.rows:
        return PyMCModel(**fields)
    return MinibatchPyMCModel(**fields, batch_size=_batch_size(model, program, shapes))


def _can_draw_prior(program: Program, shapes: Shapes, inputs: Inputs) -> bool:
    try:
        drawn = program.sampler("prior")(SEED, arguments(program, inputs))
    except Exception:  # an improper prior, or a distribution without random draws
        return False
    return [value.shape for value in drawn] == list(shapes.theta)


def _batch_size(model: Any, program: Program, shapes: Shapes) -> int:
    """Return the batch size; raise an error for models that cannot be trained on minibatches."""
    values = [model.rvs_to_values[rv] for rv in model.observed_RVs]
    for rv, value in zip(model.observed_RVs, values, strict=True):
        if batches_in([rv, value]) and without_scaling(rv) is rv:
            raise ModelError(
                f"from_pymc: {rv.name!r} is observed in batches of pm.Minibatch without total_size: expected the "
                "number of all rows, total_size=len(data), by which the likelihood of a batch is scaled."
            )
    batches = batches_in([*model.free_RVs, *model.observed_RVs, *values])
    sizes = {int(n) for n in host_function([], [batch.shape[0] for batch in batches])()}
    if len(sizes) != 1:
        raise ModelError(f"from_pymc: pm.Minibatch takes batches of sizes {sorted(sizes)}: expected one size.")
    of_batch = host_function([], [rv.shape for rv in model.free_RVs])()
    for name, shape, few in zip(program.names, shapes.theta, of_batch, strict=True):
        if shape != tuple(few):
            raise ModelError(
                f"from_pymc: the parameter {name!r} has one value per row, so minibatches cannot be used. Leave out "
                "pm.Minibatch."
            )
    return sizes.pop()


def _start(model: Any, program: Program) -> dict[str, np.ndarray] | None:
    """Return PyMC's initial point on the constrained scale if the user gave an `initval`, else None."""
    if all(model.rvs_to_initial_values.get(rv) is None for rv in program.free):
        return None
    from pymc.initial_point import make_initial_point_fn

    with user_code("The initial point of the PyMC model"):
        point = make_initial_point_fn(model=model, return_transformed=False)(0)
    return {name: np.asarray(point[name], float) for name in program.names}
