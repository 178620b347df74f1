"""Archives of arrays that NumPy has compressed, read without trust: they may come from anybody."""

import io
import zipfile
from pathlib import Path

import numpy as np

from benchmarks.study.writing import check_plain
from bernflow.posterior.container import to_array

# What an archive may unpack to: so many bytes, and so many times its own size.
SLACK, MAX_RATIO = 2**26, 100


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read all arrays of an .npz file by name.

    Raises:
        ValueError: if they claim to be much larger than the file, or are not arrays of plain values.
    """
    check_plain(path)
    content = path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(content)) as archive:  # it verifies the checksum of all that it reads
        infos = archive.infolist()
        total = sum(info.file_size for info in infos)
        if total > SLACK + MAX_RATIO * len(content):
            raise ValueError(f"its {len(content):,} bytes claim to hold {total:,}")
        return {info.filename.removesuffix(".npy"): to_array(archive.read(info)) for info in infos}
