"""The commit and the date that results are stamped with."""

import datetime
import os
import subprocess
from pathlib import Path


def stamp() -> dict[str, str | None]:
    """Return the date (UTC) and the commit of the source.

    A copy of the source without its Git repository takes the commit from the variable SOURCE_COMMIT; None without it.
    """
    found = commit() or os.environ.get("SOURCE_COMMIT") or None
    return {"date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}", "commit": found}


def commit(folder: Path | None = None) -> str | None:
    """Return the abbreviated commit of a folder, by default that of this package."""
    place = Path(__file__).resolve().parent if folder is None else folder
    try:
        found = subprocess.run(
            ["git", "-C", str(place), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip()
