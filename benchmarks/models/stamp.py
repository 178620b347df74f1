"""The commit and the date that results are stamped with."""

import datetime
import subprocess
from pathlib import Path


def stamp() -> dict[str, str | None]:
    """Return the date (UTC) and the commit of the source, None where it is not in a Git repository."""
    return {"date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}", "commit": commit()}


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
