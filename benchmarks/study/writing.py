"""Files and folders that appear whole or not at all: the one place that takes these helpers from the library."""

from bernflow.files import check_plain, ensure_writable, json_text, read_plain, write_whole
from bernflow.folders import write_folder
from bernflow.text import printable
from bernflow.versions import version_of

__all__ = [
    "check_plain",
    "ensure_writable",
    "json_text",
    "printable",
    "read_plain",
    "version_of",
    "write_folder",
    "write_whole",
]
