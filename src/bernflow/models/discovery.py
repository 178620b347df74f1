"""Analysis of a NumPyro model by a first run: subsampled plates, the sites inside them, trained parameters."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Key, PyTree
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint
from numpyro.primitives import Messenger

from bernflow.errors import ModelError
from bernflow.models.base import Site
from bernflow.models.evaluation import with_training_argument
from bernflow.models.inputs import unpack
from bernflow.models.numpyro import fill, fresh, is_subsampled, warn_broadcast
from bernflow.models.running import run_model
from bernflow.models.supports import check_continuous, check_observed, describe, is_factor, probe


class Plate(NamedTuple):
    """A plate that subsamples `batch_size` of its `size` rows."""

    name: str
    size: int
    batch_size: int


class Local(NamedTuple):
    """A site inside the plate of the rows, and the axis of its log probability that indexes the rows."""

    name: str
    axis: int
    event_dim: int


class take_rows(Messenger):  # noqa: N801  (NumPyro's handlers are lower case)
    """Set the rows of subsampled plates: given ones, else the first (`head`), all (`complete`) or a random sample."""

    def __init__(self, fn: Callable, rows: dict[str, Array], *, complete: bool, head: bool = False):
        self.rows, self.complete, self.head = rows, complete, head
        super().__init__(fn)

    def process_message(self, msg: dict[str, Any]) -> None:
        """Set the rows of a plate."""
        if msg["type"] != "plate" or not is_subsampled(msg):
            return
        size, batch_size = msg["args"]
        if msg["name"] in self.rows:
            rows = jnp.asarray(self.rows[msg["name"]])
        elif self.head or self.complete:
            rows = jnp.arange(batch_size if self.head else size)
        else:
            return
        # Pass the actual number of rows, so that any number is scaled correctly without a warning.
        msg["value"], msg["args"] = rows, (size, rows.shape[0])


class Discovery:
    """The result of a first run of a model."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.plates: list[Plate] = []
        self.local: list[Local] = []
        self.observed: list[str] = []
        self.checkable: dict[str, Any] = {}
        self.constraints: dict[str, Constraint] = {}
        self.has_deterministic = False


def discover(function: Callable, arguments: PyTree) -> Discovery:
    """Run a model on its first rows and classify its sites.

    Args:
        function: the model.
        arguments: its packed positional and keyword arguments.
    """
    found = Discovery()

    def visit(key: Key[Array, ""]) -> None:
        args, kwargs = unpack(arguments)
        args, kwargs = with_training_argument(function, args, kwargs, training=True)
        seeded = handlers.seed(fresh(take_rows(function, {}, complete=False, head=True)), key)
        trace = run_model(handlers.substitute(seeded, substitute_fn=partial(fill, key)), args, kwargs)
        plates = {name: site for name, site in trace.items() if site["type"] == "plate" and is_subsampled(site)}
        for name, site in plates.items():
            found.plates.append(Plate(name, *site["args"]))
            if not 0 < site["args"][1] < site["args"][0]:
                raise ModelError(
                    f"The plate {name!r} takes {site['args'][1]} of {site['args'][0]} rows: expected a subsample_size "
                    "between 1 and the size of the plate."
                )
        for name, site in trace.items():
            if site["type"] == "param":
                _add_constraint(name, site, found)
            elif site["type"] == "deterministic":
                found.has_deterministic = True
            elif site["type"] == "sample":
                _add_sample(name, site, found)

    probe(visit)
    return found


def _add_sample(name: str, site: dict[str, Any], found: Discovery) -> None:
    axes = {frame.name: frame.dim for frame in site["cond_indep_stack"]}
    inside = [plate for plate in found.plates if plate.name in axes]
    fn = site["fn"]
    if found.plates and found.plates[0] in inside:
        found.local.append(Local(name, axes[found.plates[0].name], fn.event_dim))
    if not site["is_observed"]:
        if inside:
            raise ModelError(
                f"The parameter {name!r} is inside the plate {inside[0].name!r}, which takes {inside[0].batch_size} "
                f"of {inside[0].size} rows: minibatches cannot be used with a parameter per row. Move it out of the "
                "plate, marginalize it out, or leave out subsample_size."
            )
        check_continuous(name, fn.support)
        found.sites.append(describe(name, jnp.shape(site["value"]), fn.support))
    # An "observed" value that is computed from parameters is a term of the density and not data.
    elif not is_factor(fn) and not isinstance(site["value"], jax.core.Tracer):
        check_observed(f"The observed site {name!r}", fn, site["value"])
        warn_broadcast(name, site)
        found.observed.append(name)
        # Bounds that vary by row are valid only for these rows.
        if all(not isinstance(leaf, jax.core.Tracer) and np.ndim(leaf) == 0 for leaf in jax.tree.leaves(fn.support)):
            found.checkable[name] = fn


def _add_constraint(name: str, site: dict[str, Any], found: Discovery) -> None:
    constraint = site["kwargs"].get("constraint", constraints.real)
    if constraint is constraints.real:
        return
    constraint = describe(name, (), constraint).support
    if constraint is None:
        raise ModelError(
            f"The constraint of the numpyro.param site {name!r} depends on parameters of the model: expected a fixed "
            "constraint. Use a parameter with a fixed constraint and transform it inside the model."
        )
    found.constraints[name] = constraint
