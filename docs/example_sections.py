"""Let Griffe know the section that docstrings here call "Example:"; it knows "Examples:" only."""

import re
from typing import Any

from griffe import Extension, Object


class ExampleSections(Extension):
    """Rename the section before docstrings are parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the text that Griffe parses, not the source."""
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
