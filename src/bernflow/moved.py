"""Arguments that have moved or changed their names: the error says what to write instead."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from bernflow.errors import UnknownArgumentError

F = TypeVar("F", bound=Callable)
# Options of `bernflow.Training` that were arguments of their own.
INTO_TRAINING = dict.fromkeys(
    ("order", "base", "num_particles", "optimizer", "precision"), "training=bf.Training({name}={value})"
)


def moved_error(call: str, replacements: Mapping[str, str], given: Mapping[str, Any]) -> UnknownArgumentError:
    """Return the error for old arguments: it names them, and what to write in place of them.

    Args:
        call: what was called.
        replacements: what to write for every old name; "{name}" and "{value}" are replaced by those given.
        given: the old arguments.

    Example:
        >>> print(moved_error("bf.fit", INTO_TRAINING, {"order": 5, "precision": "float32"}))
        bf.fit no longer takes 'order', 'precision': write training=bf.Training(order=5, precision='float32').
    """
    shown = {name: repr(v) if isinstance(v, int | float | str | None) else "..." for name, v in given.items()}
    written = [replacements[name].format(name=name, value=value) for name, value in shown.items()]
    text = ", ".join(written).replace("), training=bf.Training(", ", ")
    return UnknownArgumentError(f"{call} no longer takes {', '.join(map(repr, given))}: write {text}.")


def moved(call: str, replacements: Mapping[str, str]) -> Callable[[F], F]:
    """Make a function refuse the old names of its arguments."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            given = {name: value for name, value in kwargs.items() if name in replacements}
            if given:
                raise moved_error(call, replacements, given)
            return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate
