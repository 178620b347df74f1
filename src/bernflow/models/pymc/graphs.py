"""PyTensor graphs as JAX functions, and PyTensor's random draws in JAX."""

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key

from bernflow.errors import ModelError
from bernflow.filters import local_filters
from bernflow.models.host import host_call
from bernflow.models.pymc.dispatch import is_double, jax_dispatch


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress warnings of PyTensor and JAX about a conversion that the user did not ask for."""
    with local_filters():
        # Deprecations between PyMC and PyTensor.
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", category=category, module=r"(pymc|pytensor)\b")
        # In single precision, JAX warns that float64 constants become float32.
        warnings.filterwarnings("ignore", message="Explicitly requested dtype")
        # Assertions cannot be checked in JAX.
        warnings.filterwarnings("ignore", message="Skipping .* Op")
        # BLAS is for compiled PyTensor functions, which are not used here.
        warnings.filterwarnings("ignore", message="PyTensor could not link to a BLAS installation")
        yield


class JaxGraph:
    """A PyTensor graph that is rewritten once and called as a JAX function, in the precision in use."""

    def __init__(self, inputs: Sequence[Any], outputs: Sequence[Any]):
        import pytensor
        from pytensor.compile.mode import JAX
        from pytensor.graph.fg import FunctionGraph

        # PyTensor 2 modifies inner graphs, which belong to the user's model, during conversion.
        inner: dict[str, Any] = {"clone_inner_graphs": True} if pytensor.__version__.startswith("2.") else {}
        graph = FunctionGraph(list(inputs), list(outputs), clone=True, **inner)
        _drop_exact_checks(graph)
        # As in PyMC, the density is zero for invalid parameters. XLA does its own fusion.
        mode = JAX.including("local_check_parameter_to_ninf_switch").excluding("fusion")
        with jax_dispatch() as self._dispatch:
            mode.optimizer.rewrite(graph)
        self._graph = graph
        self._functions: dict[bool, Callable] = {}

    def __call__(self, *arrays: Array) -> list[Array]:
        """Evaluate the outputs."""
        # The constants of a function have the precision in which it was created.
        precise = is_double()
        if precise not in self._functions:
            # Otherwise the constants would be tracers of the current trace.
            with jax.ensure_compile_time_eval():
                self._functions[precise] = self._convert()
        return [jnp.asarray(value) for value in self._functions[precise](*map(jnp.asarray, arrays))]

    def _convert(self) -> Callable:
        from pytensor.link.utils import fgraph_to_python

        funcify, typify = (functools.partial(convert, self._dispatch) for convert in (_funcify, _typify))
        try:
            return fgraph_to_python(self._graph, funcify, type_conversion_fn=typify, fgraph_name="pymc_graph")
        except NotImplementedError as error:
            raise NotInJaxError(
                f"The PyMC model cannot be run in JAX: {error}. Use other PyTensor functions, or register a JAX "
                "version of the operation with pytensor.link.jax.dispatch.jax_funcify.register."
            ) from error


class NotInJaxError(ModelError):
    """A part of the model cannot be converted to JAX."""


def _drop_exact_checks(graph: Any) -> None:
    """Remove PyMC's check that values sum to zero, which its transform ensures: the check fails by rounding."""
    from pymc.logprob.utils import CheckParameterValue

    for node in list(graph.apply_nodes):
        if isinstance(node.op, CheckParameterValue) and node.op.msg.startswith("mean(value"):
            graph.replace(node.outputs[0], node.inputs[0])


def _funcify(dispatch: ModuleType, op: Any, **kwargs: Any) -> Callable:
    """Convert a PyTensor operation to a JAX function, including two that PyTensor does not support."""
    kind = type(getattr(op, "scalar_op", op)).__name__
    if kind == "Erfcx":  # older PyTensor needs another package for it
        return jax.scipy.special.erfcx
    if kind == "PosDefMatrix":
        return _is_positive_definite
    try:
        return dispatch.jax_funcify(op, **kwargs)
    except NotImplementedError:
        with jax_dispatch() as latest:  # the user may have registered a function meanwhile
            if latest is dispatch:
                raise
        return latest.jax_funcify(op, **kwargs)


def _typify(dispatch: ModuleType, data: Any, **kwargs: Any) -> Any:
    """Convert a constant of PyTensor to one of JAX.

    PyTensor converts scalars to Python numbers, which adopt the precision of the other operand. That may be a constant
    that PyTensor stores in single precision.
    """
    if isinstance(data, np.ndarray) and data.ndim == 0 and data.dtype.kind == "f":
        return data[()]
    return dispatch.jax_typify(data, **kwargs)


def _is_positive_definite(matrix: Array) -> Array:
    return jnp.all(jnp.isfinite(jnp.linalg.cholesky(matrix)))


def host_function(inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable:
    """Compile a PyTensor function in Python mode: it compiles immediately and is fast enough for draws."""
    import pytensor
    from pytensor.compile.mode import Mode

    mode = Mode(linker="py", optimizer="fast_compile")
    return pytensor.function(
        list(inputs), list(outputs), mode=mode, on_unused_input="ignore", allow_input_downcast=True
    )


def _inline(outputs: list[Any]) -> list[Any]:
    """Inline operations that are graphs themselves, because PyTensor would compile each of them slowly."""
    from pytensor.compile.builders import OpFromGraph
    from pytensor.graph.fg import FunctionGraph
    from pytensor.tensor.rewriting.ofg import inline_ofg_node

    graph = FunctionGraph(outputs=outputs, clone=False)
    while nested := [node for node in graph.apply_nodes if isinstance(node.op, OpFromGraph)]:
        for node in nested:
            graph.replace_all(list(zip(node.outputs, inline_ofg_node(node), strict=True)), import_missing=True)
    return list(graph.outputs)


class HostSampler:
    """Random draws by PyTensor's own generators on the host.

    PyTensor's JAX versions lack some distributions, and the categorical one uses wrong probabilities.
    """

    def __init__(self, inputs: Sequence[Any], outputs: Sequence[Any]):
        from pymc.pytensorf import find_rng_nodes
        from pytensor.graph.replace import clone_replace

        # The generators become arguments, so that draws neither use nor change the state of the user's model.
        shared = find_rng_nodes(outputs)
        generators = [rng.type() for rng in shared]
        outputs = _inline(clone_replace(list(outputs), dict(zip(shared, generators, strict=True))))
        self._num_generators = len(generators)
        self._dtypes = [variable.type.dtype for variable in inputs]
        self._function = host_function([*inputs, *generators], outputs)

    def __call__(self, seed: np.ndarray, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Draw once; the same seed (unsigned integers) gives the same draw."""
        seeds = np.random.SeedSequence([int(s) for s in np.ravel(seed)]).spawn(self._num_generators)
        generators = [np.random.Generator(np.random.PCG64(s)) for s in seeds]
        values = [np.asarray(a, dtype) for a, dtype in zip(arrays, self._dtypes, strict=True)]
        return [np.asarray(value) for value in self._function(*values, *generators)]

    def in_jax(
        self, key: Key[Array, ""], arrays: Sequence[Array], results: Sequence[Any], fill: float | None = None
    ) -> list[Array]:
        """Draw in JAX code that may be jitted and vmapped.

        Args:
            key: a JAX random key.
            arrays: the inputs.
            results: shapes and dtypes of the draws.
            fill: value to return if a draw fails because of invalid parameters; None raises the error.
        """

        def draw(seed: np.ndarray, *values: np.ndarray) -> list[np.ndarray]:
            try:
                return self(seed, values)
            except Exception:  # NumPy's and SciPy's generators raise errors of many kinds
                if fill is None:
                    raise
                return [np.full(result.shape, fill) for result in results]

        return host_call(draw, results, jax.random.key_data(key), *arrays)
