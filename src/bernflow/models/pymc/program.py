"""The graphs of a PyMC model, with its data, its parameters and the lengths of its dims as inputs."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from bernflow.errors import ModelError
from bernflow.models.inputs import Opaque
from bernflow.models.pymc.described import described
from bernflow.models.pymc.graphs import HostSampler, JaxGraph, host_function, quiet
from bernflow.models.pymc.parts import Parts, dissect
from bernflow.models.pymc.transforms import is_half_line, unconstraining

# Lengths of dims by name; never traced, because they determine shapes.
Lengths = tuple[tuple[str, int], ...]
Data = Mapping[str, Any]

NO_MEAN = "PyMC does not know the mean of an observed variable"
AVERAGE = "Call predict() without average=True and average its draws."

_PROGRAMS: "WeakKeyDictionary[Any, Program]" = WeakKeyDictionary()


class Shapes(NamedTuple):
    """Shapes of every parameter on both scales."""

    theta: tuple[tuple[int, ...], ...]
    x: tuple[tuple[int, ...], ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of unconstrained dimensions of every parameter."""
        return tuple(math.prod(shape) for shape in self.x)


def program_of(model: Any) -> "Program":
    """Return the program of a model, cached until variables are added to the model.

    With the same program, new data of the same shapes need no recompilation.
    """
    program = _PROGRAMS.get(model)
    if program is None or program.variables != _variables(model):
        program = _PROGRAMS[model] = Program(model)
    return program


def _variables(model: Any) -> tuple[Any, ...]:
    groups = (model.free_RVs, model.observed_RVs, model.deterministics, model.potentials, model.data_vars)
    # Groups are separated by None, because the same variables in other roles are another model.
    return tuple(v for group in groups for v in (*group, None))


class Program:
    """The graphs of a PyMC model with symbols for data and for parameters on both scales.

    Graphs are specialized to the shapes of the data when needed. The program does not reference the model itself.
    """

    def __init__(self, model: Any):
        self.variables = _variables(model)
        self.parts = dissect(model)
        self.free, self.observed, self.sources = self.parts.free, self.parts.observed, self.parts.sources
        self.values = dict(zip(self.observed, self.parts.values, strict=True))
        self.transforms = {
            rv: unconstraining(rv, model.rvs_to_transforms.get(own))
            for rv, own in zip(self.free, model.free_RVs, strict=True)
        }
        self.data_names = tuple(v.name for v in model.data_vars if v.name in self.sources)
        self.constant_names = _constant_names(self.parts, self.data_names)
        self.dims = {name: tuple(dims) for name, dims in model.named_vars_to_dims.items()}
        self.dim_lengths = {n: v for n, v in model.dim_lengths.items() if hasattr(v, "get_value")}
        self.theta = [rv.type() for rv in self.free]
        self.x = [_forward(rv, rv, self.transforms[rv]).type() for rv in self.free]
        self._graphs: dict[Any, JaxGraph] = {}
        self._samplers: dict[str, HostSampler] = {}

    def identity_parts(self) -> tuple[Any, ...]:
        """Return everything that the density depends on except the data, see `fingerprint`."""
        symbols = [*self.x, *self.theta, *self.sources.values(), *self.dim_lengths.values()]
        with quiet():
            graphs = described([*self._outputs("constrain"), *self._outputs("terms")], symbols)
        return self.term_names, tuple(self.sources), graphs

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return tuple(rv.name for rv in self.free)

    @property
    def observed_names(self) -> tuple[str, ...]:
        """Names of the observed variables."""
        return tuple(rv.name for rv in self.observed)

    @property
    def deterministic_names(self) -> tuple[str, ...]:
        """Names of the derived quantities."""
        return tuple(v.name for v in self.parts.deterministics)

    @property
    def term_names(self) -> tuple[str, ...]:
        """Names of the terms of the log density."""
        return (*self.names, *self.observed_names, *(v.name for v in self.parts.potentials))

    @property
    def row_names(self) -> tuple[str, ...]:
        """Names of the sources from which `pm.Minibatch` takes rows."""
        return tuple(name for name, v in self.sources.items() if v in self.parts.rows)

    def scales(self) -> tuple[bool, ...]:
        """Return for each parameter whether its support is a half line with a lower bound."""
        return tuple(is_half_line(rv, self.transforms[rv]) for rv in self.free)

    def lengths(self) -> Lengths:
        """Return the lengths of dims that the shapes of the data do not determine."""
        return tuple((name, int(v.get_value())) for name, v in self.dim_lengths.items())

    def shapes(self) -> Shapes:
        """Evaluate the shapes of the parameters for the current data; all rows for batches."""
        from pytensor.graph.replace import clone_replace

        symbols = [_tensor(v).shape for rv in self.free for v in (rv, _forward(rv, rv, self.transforms[rv]))]
        values = host_function([], clone_replace(symbols, self.parts.rows))()
        shapes = [tuple(int(n) for n in value) for value in values]
        return Shapes(tuple(shapes[::2]), tuple(shapes[1::2]))

    def center(self, shapes: Shapes, data: Data, lengths: Lengths) -> list[np.ndarray]:
        """Evaluate theta at x = 0, on the host."""
        from pytensor.graph.replace import clone_replace

        zeros = {x: _constant(x, np.zeros(shape)) for x, shape in zip(self.x, shapes.x, strict=True)}
        values = {n: v.value if isinstance(v, Opaque) else v for n, v in data.items()}
        fixed = self._constants_for(values, lengths)
        return host_function([], clone_replace(self._outputs("constrain")[: len(self.free)], zeros | fixed))()

    def run(self, kind: str, shapes: Shapes, point: Sequence[Any], data: Data, lengths: Lengths) -> list[Any]:
        """Evaluate the graphs of a kind in JAX.

        Args:
            kind: "constrain" takes x; "unconstrain", "terms", "pointwise", "deterministic" and "mean" take theta;
                "observed" takes no point.
            shapes: shapes of the parameters.
            point: one array per parameter.
            data: arrays by name; those wrapped in `Opaque` become constants of the graph.
            lengths: lengths of dims.
        """
        if not self._num_outputs(kind):
            return []
        traced = {name: value for name, value in data.items() if not isinstance(value, Opaque)}
        frozen = tuple((name, value) for name, value in data.items() if isinstance(value, Opaque))
        key = (kind, shapes, tuple((name, np.shape(v)) for name, v in traced.items()), frozen, lengths)
        with quiet():
            if key not in self._graphs:
                self._graphs[key] = self._make(kind, shapes, traced, dict(frozen), lengths)
            return self._graphs[key](*point, *traced.values())

    def sampler(self, kind: str) -> HostSampler:
        """Return a sampler of the parameters from the prior ("prior") or of the observed variables ("predictive").

        Its inputs are the lengths of dims, the data, and theta for the observed variables, in this order.
        """
        if kind not in self._samplers:
            from pytensor.graph.replace import clone_replace

            replace = {v: v.type() for v in (*self.dim_lengths.values(), *self.sources.values())}
            if kind == "predictive":
                replace |= dict(zip(self.free, self.theta, strict=True))
            outputs = self._redrawn() if kind == "predictive" else self.free
            inputs = [v for v in replace.values() if v not in self.theta]
            inputs += self.theta if kind == "predictive" else []
            self._samplers[kind] = HostSampler(inputs, clone_replace(list(outputs), replace))
        return self._samplers[kind]

    def _redrawn(self) -> list[Any]:
        """Return the observed variables; batches are extended to all rows."""
        from pymc.distributions.shape_utils import change_dist_size

        if not self.parts.rows:
            return list(self.observed)
        plain = {rv: without_scaling(rv) for rv in self.observed}
        return [
            change_dist_size(own, self.values[rv].shape[: rv.ndim - own.owner.op.ndim_supp])
            for rv, own in plain.items()
        ]

    def _make(self, kind: str, shapes: Shapes, data: Data, frozen: dict[str, Opaque], lengths: Lengths) -> JaxGraph:
        """Replace the symbols by inputs of fixed shapes, so that all shapes in the graph are known."""
        from pytensor.graph.replace import clone_replace

        symbols, points = {"constrain": (self.x, shapes.x), "observed": ([], ())}.get(kind, (self.theta, shapes.theta))
        replace = {v: v.type.clone(shape=shape)() for v, shape in zip(symbols, points, strict=True)}
        replace |= {self.sources[n]: self.sources[n].type.clone(shape=np.shape(v))() for n, v in data.items()}
        inputs = list(replace.values())
        replace |= self._constants_for({n: v.value for n, v in frozen.items()}, lengths)
        outputs = clone_replace(self._outputs(kind), replace)
        _check_not_random(kind, outputs)
        return JaxGraph(inputs, list(map(_tensor, outputs)))

    def _num_outputs(self, kind: str) -> int:
        by_kind = {"observed": self.observed, "pointwise": self.observed, "mean": self.observed}
        return len({**by_kind, "deterministic": self.parts.deterministics}.get(kind, self.free))

    def _constants_for(self, data: Data, lengths: Lengths) -> dict[Any, Any]:
        sources = {self.sources[name]: _constant(self.sources[name], value) for name, value in data.items()}
        return sources | {v: _constant(v, length) for n, length in lengths for v in (self.dim_lengths[n],)}

    def _outputs(self, kind: str) -> list[Any]:
        """Return the graphs of a kind on the symbols."""
        from pymc.logprob.utils import replace_rvs_by_values

        if kind == "observed":
            return [self.values[rv] for rv in self.observed]
        if kind == "constrain":
            jacobians = [
                t.log_jac_det(x, *rv.owner.inputs).sum()
                for rv, x in zip(self.free, self.x, strict=True)
                if (t := self.transforms[rv]) is not None
            ]
            at_x = self.values | dict(zip(self.free, self.x, strict=True))
            return replace_rvs_by_values(
                [*self.free, *jacobians], rvs_to_values=at_x, rvs_to_transforms=dict(self.transforms)
            )
        at_theta = self.values | dict(zip(self.free, self.theta, strict=True))
        if kind == "unconstrain":
            forward = [_forward(rv, at_theta[rv], self.transforms[rv]) for rv in self.free]
            return replace_rvs_by_values(forward, rvs_to_values=at_theta)
        if kind == "deterministic":
            return replace_rvs_by_values(self.parts.deterministics, rvs_to_values=at_theta)
        if kind == "mean":
            return replace_rvs_by_values([_mean(rv) for rv in self.observed], rvs_to_values=at_theta)
        return self._log_densities(at_theta, pointwise=kind == "pointwise")

    def _log_densities(self, at_theta: dict[Any, Any], pointwise: bool) -> list[Any]:
        """Return the terms of the log density at theta, without any Jacobian; if pointwise, only observed terms."""
        from pymc.logprob import transformed_conditional_logp
        from pymc.logprob.utils import replace_rvs_by_values

        rvs = self.observed if pointwise else (*self.free, *self.observed)
        terms = transformed_conditional_logp(rvs, rvs_to_values=at_theta, rvs_to_transforms={}) if rvs else []
        if pointwise:
            return terms
        return [t.sum() for t in (*terms, *replace_rvs_by_values(self.parts.potentials, rvs_to_values=at_theta))]


def _tensor(variable: Any) -> Any:
    """Convert a variable of `pymc.dims` to an ordinary tensor."""
    import pytensor.tensor as pt

    return pt.as_tensor(variable, allow_xtensor_conversion=True)


def _forward(rv: Any, value: Any, transform: Any) -> Any:
    return value if transform is None else transform.forward(value, *rv.owner.inputs)


def _constant_names(parts: Parts, data_names: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the `pm.Data` that are not only observed values."""
    from pytensor.graph.traversal import ancestors

    used = set(ancestors([*parts.free, *parts.observed, *parts.deterministics, *parts.potentials]))
    return tuple(n for n in data_names if parts.sources[n] in used or parts.sources[n] not in parts.values)


def _constant(source: Any, value: Any) -> Any:
    """Return a constant of the type of a variable."""
    array = np.asarray(value, source.type.dtype)
    return source.type.clone(shape=array.shape).make_constant(array)


def _mean(rv: Any) -> Any:
    from pymc.distributions.moments.means import mean
    from pymc.exceptions import UndefinedMomentException

    try:
        return mean(without_scaling(rv))
    except (NotImplementedError, UndefinedMomentException) as error:
        raise ModelError(f"{NO_MEAN} ({error}). {AVERAGE}") from error


def without_scaling(rv: Any) -> Any:
    """Return the variable without the wrapper for `total_size`."""
    from pymc.variational.minibatch_rv import MinibatchRandomVariable

    return rv.owner.inputs[0] if isinstance(rv.owner.op, MinibatchRandomVariable) else rv


def _check_not_random(kind: str, outputs: Sequence[Any]) -> None:
    from pymc.pytensorf import find_rng_nodes

    if not find_rng_nodes(outputs):
        return
    if kind == "mean":
        raise ModelError(f"{NO_MEAN}. {AVERAGE}")
    raise ModelError(
        "The log density of the PyMC model is itself random (pm.Simulator, or random numbers drawn outside the "
        "model's variables): expected a function of the parameters. Give the model a likelihood."
    )
