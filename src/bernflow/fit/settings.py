"""The options of a fit: `Training` as the user gives them, `Settings` checked and with their defaults."""

import dataclasses
from typing import Any

import optax

from bernflow.errors import ArgumentError
from bernflow.fit.checks.effort import CHECKS, Checks, resolve_checks
from bernflow.flows.base import AbstractDistribution, AbstractScoredFlow
from bernflow.flows.factors import is_dense
from bernflow.flows.families import Family, Spec, get_family
from bernflow.flows.mixture import Mixture
from bernflow.flows.noise import NOISES
from bernflow.precision import resolve_precision

# Up to this many dimensions the whole learning rate is used.
FULL_RATE_DIM = 64
# Share of the rate where the outer map has no matrix.
WIDE_RATE = 0.1
# Nats from the posterior at which a fit stops by default: hard to see in any plot. The divergences of independent
# parameters add up: with more dimensions than this it is in proportion to their number, up to a most.
DEFAULT_TOLERANCE, DEFAULT_TOLERANCE_DIM, MAX_DEFAULT_TOLERANCE = 0.01, 30, 0.15
# A mixture takes one more part if its ELBO rises by this many nats: a mode of 1 % of the mass does that.
PART_GAIN = 0.01
# Units per hidden layer of the conditioner.
HIDDEN_WIDTH = 32

# One instance for all fits: optax's functions are compared by identity, and a new one would compile again. In
# whitened units gradients are of order one, so that a longer one is an outlier to be cut. Adam with Nesterov's momentum
# of a longer memory, and squares of a shorter one than usual: path gradients shrink while the fit gets better, and what
# they were hundreds of steps ago would keep the steps short. It takes a quarter of the steps.
ADAM = optax.chain(
    optax.clip_by_global_norm(10.0), optax.scale_by_adam(b1=0.95, b2=0.99, nesterov=True), optax.scale(-1.0)
)
# The paper's optimiser, with the constants of its implementation.
RMSPROP = optax.chain(optax.scale_by_rms(decay=0.9, eps=1e-7), optax.scale(-1.0))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Training:
    """Rarely needed options of a training, for `training=` of `bernflow.fit`, `bernflow.calibrate` and `refine`.

    None stands for the default. What ends a training (`steps`, `tolerance`, `time_limit`) is an argument of the call.

    Attributes:
        order: order M of the Bernstein polynomials (default 20; 50 for the paper's family).
        base: base noise, "normal" (default) or "logistic", whose tails are heavier.
        num_particles: draws per step (default 32; 10 for the paper's family).
        optimizer: a learning rate (default 0.02, less in many dimensions), or an optax optimizer with its own; it sees
            the flow as one vector of parameters.
        precision: "float64" (default on a CPU) or "float32" (default on an accelerator) for the training; the verdict
            is always computed in double precision.

    Example:
        >>> post = bf.fit(model, y, training=bf.Training(order=10, optimizer=0.01), steps=100, progress=False)
        >>> post.settings["order"], post.settings["learning_rate"]
        (10, 0.01)
    """

    order: int | None = None
    base: str | None = None
    num_particles: int | None = None
    optimizer: float | optax.GradientTransformation | None = None
    precision: str | None = None

    def __post_init__(self) -> None:
        check_count("order", self.order, 1)
        check_count("num_particles", self.num_particles, 1)
        if self.precision is not None:  # the default would ask JAX for its devices
            resolve_precision(self.precision)
        if self.base is not None and self.base not in NOISES:
            raise ArgumentError(f"base={self.base!r} is unknown: expected one of {', '.join(NOISES)} or None.")
        rate = self.optimizer
        is_rate = isinstance(rate, int | float) and not isinstance(rate, bool) and rate > 0
        if rate is not None and not is_rate and not isinstance(rate, optax.GradientTransformation):
            raise ArgumentError(
                f"optimizer={rate!r}: expected a positive learning rate, an optax optimizer such as optax.adam(1e-2), "
                "or None for the default."
            )


def as_training(training: Any) -> Training:
    """Return options of a training; those by default where None was given."""
    if training is not None and not isinstance(training, Training):
        raise ArgumentError(
            f"training={training!r}: expected options such as bf.Training(order=50), or None. An argument of the model "
            "function with this name is passed by model_kwargs={'training': ...}."
        )
    return training or Training()


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options of a fit, checked and with their defaults.

    Without `steps`, training stops when the estimated KL divergence is below `tolerance`, whose default is known when
    the number of dimensions is (`in_dimension`); if that is None too, when the ELBO stops improving. `piece` is the
    number of steps per call of compiled code, None for as many as fit. A
    component more of a mixture must gain `part_gain` nats. `checks` says how hard the verdict looks for mass elsewhere.
    `num_scales` positive parameters come first, for flows that treat them in their own way.
    """

    family: Family
    order: int
    base: str
    steps: int | None
    num_particles: int
    restarts: int
    components: int | None
    precision: str
    optimizer: optax.GradientTransformation
    learning_rate: float | None
    tolerance: float | None = None
    tolerance_given: bool = False
    piece: int | None = None
    part_gain: float = PART_GAIN
    checks: Checks = CHECKS["default"]
    num_scales: int = 0

    def spec(self, dim: int) -> Spec:
        """Describe the flow for a posterior of `dim` dimensions."""
        return Spec(dim=dim, order=self.order, noise=self.base, width=HIDDEN_WIDTH, num_scales=self.num_scales)

    def trains_by_score(self, flow: AbstractDistribution) -> bool:
        """Tell whether such a flow, or a mixture of such, is trained by path gradients: it must know its score."""
        part = flow.components[0] if isinstance(flow, Mixture) else flow
        return self.family.use_score and isinstance(part, AbstractScoredFlow)

    def trains_together(self, flows: AbstractDistribution) -> bool:
        """Tell whether several flows are first trained as the parts of one mixture."""
        return (self.components or 1) > 1 and self.steps is None and self.trains_by_score(flows)

    def rate_in(self, dim: int) -> float | None:
        """Return the learning rate in so many dimensions; None where the optimizer has its own."""
        if self.learning_rate is None or self.family.paper_recipe:
            return self.learning_rate
        if not is_dense(dim):
            return self.learning_rate * WIDE_RATE
        # The outer map has p^2 entries, and the noise of their steps adds up.
        return self.learning_rate * min(1.0, FULL_RATE_DIM / dim)

    def in_dimension(self, dim: int) -> "Settings":
        """Return the same choices with the default tolerance of so many dimensions, where none was given."""
        if self.tolerance is None or self.tolerance_given:
            return self
        return dataclasses.replace(self, tolerance=default_tolerance(dim))

    def with_scales(self, num_scales: int) -> "Settings":
        """Return the same choices for a posterior with so many positive parameters; the paper's recipe depends on it.

        For all other families they stay the same, because compiled code is shared by fits with equal choices.
        """
        return dataclasses.replace(self, num_scales=num_scales) if self.family.paper_recipe else self

    def thorough(self) -> "Settings":
        """Return the same choices for a training that ends when the ELBO stops improving."""
        return dataclasses.replace(self, tolerance=None)

    def describe(self) -> dict[str, Any]:
        """Return the choices as JSON-able values, `tolerance` as `fit` takes it."""
        skip = ("family", "optimizer", "piece", "part_gain", "tolerance_given", "num_scales")
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in skip}
        tolerance = None if self.steps is not None else self.tolerance or 0.0
        return {"family": self.family.name, **fields, "tolerance": tolerance, "checks": self.checks.name}


def resolve_settings(
    *,
    family: Any = "bernstein",
    steps: int | None = None,
    tolerance: float | None = None,
    restarts: int | None = None,
    components: int | None = None,
    checks: str = "default",
    training: Training | None = None,
) -> Settings:
    """Check the options of a fit and fill in their defaults."""
    kind, chosen = get_family(family), as_training(training)
    if chosen.order is not None and kind.default_order is None:
        raise ArgumentError(f"order={chosen.order!r}: the family {kind.name!r} has no polynomial; leave order out.")
    if chosen.base is not None and not kind.has_tails:
        raise ArgumentError(f"base={chosen.base!r}: the family {kind.name!r} has its own base noise; leave base out.")
    components = None if components is None else check_count("components", components, 1)
    usual = 4 * components if components is not None and components > 1 else 1
    restarts = max(check_count("restarts", restarts, usual), components or 1)
    if restarts > 1 and kind.one_start is not None:
        raise ArgumentError(
            f"restarts={restarts}, components={components or 1}: the family {kind.name!r} has one start only, since "
            f"{kind.one_start}. Leave both out, or choose another family."
        )
    transformation, learning_rate = _optimizer(chosen.optimizer, kind)
    return Settings(
        family=kind,
        order=chosen.order or kind.default_order or 1,
        base=chosen.base or "normal",
        steps=None if steps is None and not kind.paper_recipe else check_count("steps", steps, 100_000),
        num_particles=chosen.num_particles or (10 if kind.paper_recipe else 32),
        restarts=restarts,
        components=components,
        precision=resolve_precision(chosen.precision),
        optimizer=transformation,
        learning_rate=learning_rate,
        tolerance=_tolerance(tolerance, steps, kind),
        tolerance_given=tolerance is not None,
        checks=resolve_checks(checks),
    )


def default_tolerance(dim: int) -> float:
    """Return the divergence in nats at which a fit in so many dimensions stops by default."""
    return min(DEFAULT_TOLERANCE * max(1.0, dim / DEFAULT_TOLERANCE_DIM), MAX_DEFAULT_TOLERANCE)


def _tolerance(tolerance: Any, steps: Any, family: Family) -> float | None:
    """Return the tolerance to train to, or None where something else ends the training."""
    if tolerance is None:
        return None if steps is not None or family.paper_recipe else DEFAULT_TOLERANCE
    if isinstance(tolerance, bool) or not isinstance(tolerance, int | float) or not 0.0 <= tolerance < float("inf"):
        raise ArgumentError(
            f"tolerance={tolerance!r}: expected a number of nats such as 0.01, 0 to train until the ELBO stops "
            f"improving, or None for the default of {DEFAULT_TOLERANCE:g}."
        )
    if steps is not None:
        raise ArgumentError(f"steps={steps!r}, tolerance={tolerance!r}: one of them ends the training; leave one out.")
    if family.paper_recipe:
        raise ArgumentError(
            f"tolerance={tolerance!r}: the family {family.name!r} trains for a number of steps; give steps."
        )
    return float(tolerance) or None


def check_count(name: str, value: Any, default: int) -> int:
    """Return a count, or its default where None was given; refuse everything else."""
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ArgumentError(f"{name}={value!r}: expected a whole number of at least 1, or None for the default.")
    return value


def _optimizer(chosen: Any, family: Family) -> tuple[optax.GradientTransformation, float | None]:
    """Return the transformation and the peak learning rate, which is None if the optimizer has its own."""
    if isinstance(chosen, optax.GradientTransformation):
        return chosen, None
    return RMSPROP if family.paper_recipe else ADAM, family.learning_rate if chosen is None else float(chosen)
