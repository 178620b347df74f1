"""PyTensor graphs as JAX functions, and PyTensor's own random draws inside of JAX."""

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
    """Keep to ourselves what PyTensor and JAX say of a conversion that the user did not ask them for."""
    with local_filters():
        # What PyMC and PyTensor have to say to each other.
        for category in (DeprecationWarning, FutureWarning):
            warnings.filterwarnings("ignore", category=category, module=r"(pymc|pytensor)\b")
        # In single precision, JAX says of every float64 in the graph that it becomes a float32.
        warnings.filterwarnings("ignore", message="Explicitly requested dtype")
        # Assertions cannot be checked inside of JAX.
        warnings.filterwarnings("ignore", message="Skipping .* Op")
        # A library for compiled PyTensor functions, of which there are none here.
        warnings.filterwarnings("ignore", message="PyTensor could not link to a BLAS installation")
        yield


class JaxGraph:
    """A PyTensor graph that is rewritten once and called as a JAX function, in the precision of the moment."""

    def __init__(self, inputs: Sequence[Any], outputs: Sequence[Any]):
        import pytensor
        from pytensor.compile.mode import JAX
        from pytensor.graph.fg import FunctionGraph

        # Converting inner graphs changes them in PyTensor 2, and they belong to the user's model.
        inner: dict[str, Any] = {"clone_inner_graphs": True} if pytensor.__version__.startswith("2.") else {}
        graph = FunctionGraph(list(inputs), list(outputs), clone=True, **inner)
        _drop_exact_checks(graph)
        # As in PyMC the density is zero where a distribution gets invalid parameters. XLA fuses operations by itself.
        mode = JAX.including("local_check_parameter_to_ninf_switch").excluding("fusion")
        with jax_dispatch() as self._dispatch:
            mode.optimizer.rewrite(graph)
        self._graph = graph
        self._functions: dict[bool, Callable] = {}

    def __call__(self, *arrays: Array) -> list[Array]:
        """Evaluate the outputs."""
        # A function keeps the constants of its graph in the precision in which it was made.
        precise = is_double()
        if precise not in self._functions:
            # Else the constants would belong to the computation that happens to be traced.
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
                f"The PyMC model cannot be run in JAX: {error}. Write this part with other PyTensor functions, or give "
                "the operation a JAX version with pytensor.link.jax.dispatch.jax_funcify.register."
            ) from error


class NotInJaxError(ModelError):
    """A part of the model has no counterpart in JAX."""


def _drop_exact_checks(graph: Any) -> None:
    """Trust that values which PyMC's transform makes to sum to zero do so: PyMC's check leaves no room for rounding."""
    from pymc.logprob.utils import CheckParameterValue

    for node in list(graph.apply_nodes):
        if isinstance(node.op, CheckParameterValue) and node.op.msg.startswith("mean(value"):
            graph.replace(node.outputs[0], node.inputs[0])


def _funcify(dispatch: ModuleType, op: Any, **kwargs: Any) -> Callable:
    """Turn a PyTensor operation into a JAX function; two that PyTensor leaves out are here."""
    kind = type(getattr(op, "scalar_op", op)).__name__
    if kind == "Erfcx":  # older PyTensor looks for it in another package than JAX
        return jax.scipy.special.erfcx
    if kind == "PosDefMatrix":
        return _is_positive_definite
    try:
        return dispatch.jax_funcify(op, **kwargs)
    except NotImplementedError:
        with jax_dispatch() as latest:  # where the user may have registered a function since
            if latest is dispatch:
                raise
        return latest.jax_funcify(op, **kwargs)


def _typify(dispatch: ModuleType, data: Any, **kwargs: Any) -> Any:
    """Turn a constant of PyTensor into one of JAX.

    PyTensor makes Python numbers of scalars. What is computed from those takes on the precision of whatever it meets,
    which may be one of the constants that PyTensor stores in single precision.
    """
    if isinstance(data, np.ndarray) and data.ndim == 0 and data.dtype.kind == "f":
        return data[()]
    return dispatch.jax_typify(data, **kwargs)


def _is_positive_definite(matrix: Array) -> Array:
    return jnp.all(jnp.isfinite(jnp.linalg.cholesky(matrix)))


def host_function(inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable:
    """Compile a PyTensor function that runs operation by operation: ready at once, and fast enough for draws."""
    import pytensor
    from pytensor.compile.mode import Mode

    mode = Mode(linker="py", optimizer="fast_compile")
    return pytensor.function(
        list(inputs), list(outputs), mode=mode, on_unused_input="ignore", allow_input_downcast=True
    )


def _inline(outputs: list[Any]) -> list[Any]:
    """Write out operations that are graphs themselves: PyTensor would compile each one the slow way."""
    from pytensor.compile.builders import OpFromGraph
    from pytensor.graph.fg import FunctionGraph
    from pytensor.tensor.rewriting.ofg import inline_ofg_node

    graph = FunctionGraph(outputs=outputs, clone=False)
    while nested := [node for node in graph.apply_nodes if isinstance(node.op, OpFromGraph)]:
        for node in nested:
            graph.replace_all(list(zip(node.outputs, inline_ofg_node(node), strict=True)), import_missing=True)
    return list(graph.outputs)


class Sampler:
    """Random draws by PyTensor's own generators, which run on the host.

    PyTensor's versions in JAX lack distributions, and that of the categorical one draws from other probabilities than
    those given.
    """

    def __init__(self, inputs: Sequence[Any], outputs: Sequence[Any]):
        from pymc.pytensorf import find_rng_nodes
        from pytensor.graph.replace import clone_replace

        # The generators become arguments, so that draws neither read nor change the state of the user's model.
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
        """Draw inside of JAX code that may be jitted and vmapped.

        Args:
            key: a JAX random key.
            arrays: the inputs.
            results: shapes with dtypes of what is drawn.
            fill: what to return where a draw fails, because a distribution got invalid parameters; None: raise.
        """

        def draw(seed: np.ndarray, *values: np.ndarray) -> list[np.ndarray]:
            try:
                return self(seed, values)
            except Exception:  # NumPy's and SciPy's generators raise errors of many kinds
                if fill is None:
                    raise
                return [np.full(result.shape, fill) for result in results]

        return host_call(draw, results, jax.random.key_data(key), *arrays)
