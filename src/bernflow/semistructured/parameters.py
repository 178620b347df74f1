"""The interface that scikit-learn expects of an estimator."""

import inspect
from typing import Any

from bernflow.errors import ArgumentError


class Parameters:
    """Arguments of the constructor as parameters; scikit-learn itself is not needed."""

    @classmethod
    def _parameters(cls) -> list[str]:
        return list(inspect.signature(cls.__init__).parameters)[1:]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the arguments of the estimator by name."""
        return {name: getattr(self, name) for name in self._parameters()}

    def set_params(self, **params: Any) -> Any:
        """Change arguments of the estimator, which must then be fitted again."""
        unknown = sorted(set(params) - set(self._parameters()))
        if unknown:
            raise ArgumentError(
                f"set_params: {unknown[0]!r} is no argument: expected some of "
                f"{', '.join(map(repr, self._parameters()))}."
            )
        self.__init__(**(self.get_params() | params))  # type: ignore[misc]
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return getattr(self, "_effects", None) is not None

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import Tags, TargetTags

        return Tags(estimator_type=None, target_tags=TargetTags(required=True))
