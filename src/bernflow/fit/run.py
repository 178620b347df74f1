"""What all stages of one fit share."""

import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from bernflow.fit.bar import Bar
from bernflow.fit.deadline import Deadline
from bernflow.fit.devices import Devices
from bernflow.fit.train.interruption import Interruption
from bernflow.posterior import Posterior
from bernflow.target import Target

if TYPE_CHECKING:
    from bernflow.fit.checkpoints.resume import Resumption

Refiner = Callable[..., Posterior]


@dataclasses.dataclass(frozen=True)
class Run:
    """The surroundings of one fit.

    Attributes:
        deadline: when it must be over.
        bar: shows how far it is.
        refiner: what `Posterior.refine` calls.
        resumption: the folder of its checkpoints; None without one.
        devices: over which its rows are spread; None for one device.
        is_one_of_many: other fits like it run beside it. Its model is known to work, nothing is compiled ahead for it
            alone, and an interruption stops all of them, where otherwise it ends the training and keeps the fit.
        is_brief: judge by the weights of few draws alone, where nothing that a verdict finds could change the fit.
    """

    deadline: Deadline = dataclasses.field(default_factory=Deadline.start)
    bar: Bar = dataclasses.field(default_factory=lambda: Bar(False))
    refiner: Refiner | None = None
    resumption: "Resumption | None" = None
    devices: Devices | None = None
    is_one_of_many: bool = False
    is_brief: bool = False

    def spread(self, target: Target) -> Target:
        """Return the target with its rows on the devices, if there are any."""
        return target if self.devices is None else Target(self.devices.spread(target.model))

    def common(self, identity: dict[str, Any]) -> dict[str, Any]:
        """Return an identity of the whole fit, the same in every process."""
        return identity if self.devices is None else self.devices.common(identity)

    def interruption(self) -> AbstractContextManager[Interruption]:
        """Hold the first interruption back until the training asks for it."""
        return Interruption(not self.is_one_of_many)
