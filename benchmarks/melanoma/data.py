"""The melanoma pictures and their table, read from the four files that `prepare` writes.

Example:
    >>> melanoma = load("../shared/data/melanoma")  # doctest: +SKIP
    >>> rows = melanoma.rows("train")  # doctest: +SKIP
    >>> melanoma.images[rows].shape  # doctest: +SKIP
    (21200, 128, 128, 3)
"""

import dataclasses
import hashlib
import io
import os
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from benchmarks.melanoma.extra import import_extra
from benchmarks.melanoma.prepare import FILE, SIZE, WHERE
from benchmarks.melanoma.split import PARTS, split_by_patient
from bernflow import ArgumentError, BernflowError, FileFormatError

COLUMNS = (
    "image_name",
    "patient_id",
    "sex",
    "age_approx",
    "anatom_site_general_challenge",
    "target",
    "split",
    "pos_in_split",
)
UNKNOWN = "unknown"
# Decoded pictures lie here unless `load` is told another folder; the environment variable comes first.
CACHE_VARIABLE = "BERNFLOW_CACHE"


@dataclass(frozen=True)
class Melanoma:
    """The lesions, one row each: training, validation, test, each in the paper's order.

    Attributes:
        images: pictures (N, 128, 128, 3), uint8, on the disk and read when they are used.
        target: 1 for a melanoma (N,), int8.
        age: age in years (N,), the mean age where it is missing.
        age_std: age standardized within each part (N,).
        age_missing: where the age was filled in (N,).
        sex: "female", "male" or "unknown" (N,).
        site: site of the body, or "unknown" (N,).
        patient_id: patient (N,).
        image_name: name of the image (N,).
        split: "train", "valid" or "test" (N,).
    """

    images: np.ndarray
    target: np.ndarray
    age: np.ndarray
    age_std: np.ndarray
    age_missing: np.ndarray
    sex: np.ndarray
    site: np.ndarray
    patient_id: np.ndarray
    image_name: np.ndarray
    split: np.ndarray

    def __len__(self) -> int:
        return len(self.target)

    def rows(self, part: str) -> np.ndarray:
        """Return the rows of a part: "train", "valid" or "test"."""
        if part not in PARTS:
            raise ArgumentError(f"part={part!r} is unknown: expected one of {', '.join(PARTS)}.")
        return np.flatnonzero(self.split == part)

    def by_patient(self) -> "Melanoma":
        """Return the same rows with a split of the same sizes in which no patient is in two parts."""
        sizes = {part: len(self.rows(part)) for part in PARTS}
        split = split_by_patient(self.patient_id, self.target, sizes)
        return dataclasses.replace(self, split=split, age_std=standardize(self.age, split))


def standardize(values: np.ndarray, split: np.ndarray) -> np.ndarray:
    """Standardize every part by its own mean and sd (divisor n), as the paper did."""
    out = np.empty(len(values), dtype=np.float64)
    for part in np.unique(split):
        here = split == part
        out[here] = values[here] - values[here].mean()
        out[here] /= values[here].std() or 1.0
    return out


def load(folder: str | PathLike, *, cache: str | PathLike | None = None, progress: bool = False) -> Melanoma:
    """Read the table and the pictures; the pictures are decoded once and kept, uncompressed, in a cache.

    Args:
        folder: the folder with isic2020-128-0of4.parquet and so on.
        cache: folder for the decoded pictures, 1.6 GB for all; by default $BERNFLOW_CACHE, or bernflow in the user's
            cache folder ($XDG_CACHE_HOME, else ~/.cache).
        progress: show a progress bar while the pictures are decoded.
    """
    parquet = import_extra("pyarrow.parquet")
    files = find_files(Path(folder))
    columns = _read_columns(parquet, files)
    order = np.lexsort((columns["pos_in_split"], np.array([PARTS.index(part) for part in columns["split"]])))
    table = {name: values[order] for name, values in columns.items()}
    missing = np.isnan(table["age_approx"])
    if missing.all():
        raise FileFormatError(f"{folder}: the age is missing in every row.")
    age = np.where(missing, np.nanmean(table["age_approx"]), table["age_approx"])
    return Melanoma(
        images=_decoded(parquet, files, order, table["image_name"], cache_folder(cache), progress),
        target=table["target"].astype(np.int8),
        age=age,
        age_std=standardize(age, table["split"]),
        age_missing=missing,
        sex=table["sex"],
        site=table["anatom_site_general_challenge"],
        patient_id=table["patient_id"],
        image_name=table["image_name"],
        split=table["split"],
    )


def find_files(folder: Path) -> list[Path]:
    """Return the parquet files of a folder, or say what is missing."""
    explain = f"`bernflow data melanoma FOLDER CSV --out {folder}` makes them from the challenge's download. {WHERE}"
    pattern = re.compile(re.escape(FILE).replace(r"\{\}", r"(\d+)"))
    found = {path: pattern.fullmatch(path.name) for path in folder.iterdir()} if folder.is_dir() else {}
    places = {(int(match[1]), int(match[2])): path for path, match in found.items() if match}
    if not places:
        raise ArgumentError(f"{folder} has no files {FILE.format(0, 4)} and so on: {explain}")
    numbers = {num for _, num in places}
    num = max(numbers)
    missing = [FILE.format(i, num) for i in range(num) if (i, num) not in places]
    if missing or len(numbers) > 1:
        what = f"lacks {', '.join(missing)}" if missing else "has files of two preparations"
        raise ArgumentError(f"{folder} {what}: {explain}")
    return [places[i, num] for i in range(num)]


def cache_folder(cache: str | PathLike | None = None) -> Path:
    """Return the folder of decoded pictures: the given one, that of $BERNFLOW_CACHE, or the user's."""
    chosen = cache or os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bernflow"


def _read_columns(parquet: Any, files: list[Path]) -> dict[str, np.ndarray]:
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for path in files:
        for name, values in _read(parquet, path, COLUMNS).items():
            columns[name] += values
    texts = {"image_name", "patient_id", "sex", "anatom_site_general_challenge", "split"}
    numbers = {"age_approx": np.float64, "target": np.int64, "pos_in_split": np.int64}
    out = {name: np.array([value or UNKNOWN for value in columns[name]], dtype=np.str_) for name in texts}
    out |= {
        name: np.array([np.nan if v is None else v for v in columns[name]], dtype=numbers[name]) for name in numbers
    }
    odd = set(out["split"].tolist()) - set(PARTS)
    if odd:
        raise FileFormatError(f"{files[0].parent}: split is {odd.pop()!r} somewhere, expected {', '.join(PARTS)}.")
    return out


def _read(parquet: Any, path: Path, columns: tuple[str, ...]) -> dict[str, list[Any]]:
    arrow = import_extra("pyarrow")
    try:
        file = parquet.ParquetFile(path)
        lacks = [name for name in columns if name not in file.schema_arrow.names]
        if lacks:
            raise FileFormatError(
                f"{path} has no column {', '.join(lacks)}: it was not made by `bernflow data melanoma`."
            )
        return file.read(columns=list(columns)).to_pydict()
    except (arrow.ArrowInvalid, OSError) as error:
        raise FileFormatError(f"{path} cannot be read as a parquet file: {error}") from error


def _decoded(
    parquet: Any, files: list[Path], order: np.ndarray, names: np.ndarray, cache: Path, progress: bool
) -> np.ndarray:
    """Return the pictures from the cache, decoding them into it first where they are not there."""
    shape = (len(order), SIZE, SIZE, 3)
    path = cache / f"melanoma-{_fingerprint(files, names)}.npy"
    try:
        images = np.load(path, mmap_mode="r", allow_pickle=False)
        if images.shape == shape and images.dtype == np.uint8:
            return images
    except (OSError, EOFError, ValueError):
        pass  # not there or damaged: decoded again
    image = import_extra("PIL.Image")
    partial = cache / f".{uuid.uuid4().hex}.part"
    try:
        cache.mkdir(parents=True, exist_ok=True)
        try:
            _decode(parquet, image, files, np.argsort(order), partial, shape, progress)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise BernflowError(
            f"The decoded pictures ({np.prod(shape) / 1e9:.1f} GB) cannot be written to {cache} ({error}): name a "
            f"folder that can be written, by cache= or by ${CACHE_VARIABLE}."
        ) from error
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _decode(
    parquet: Any,
    image: Any,
    files: list[Path],
    places: np.ndarray,
    partial: Path,
    shape: tuple[int, ...],
    progress: bool,
) -> None:
    out = np.lib.format.open_memmap(partial, "w+", np.uint8, shape)
    bar = tqdm(desc="pictures", total=shape[0], unit="picture", disable=not progress, dynamic_ncols=True)

    def decode(job: tuple[int, Path, int, bytes]) -> None:
        place, path, row, jpeg = job
        try:
            with image.open(io.BytesIO(jpeg), formats=("JPEG",)) as picture:
                pixels = np.asarray(picture.convert("RGB"))
        except (OSError, SyntaxError, ValueError) as error:
            raise FileFormatError(f"{path}, row {row}: the picture cannot be decoded: {error}") from error
        if pixels.shape != shape[1:]:
            raise FileFormatError(f"{path}, row {row}: the picture has shape {pixels.shape}, expected {shape[1:]}.")
        out[place] = pixels

    first = 0
    with bar, ThreadPoolExecutor(os.cpu_count()) as pool:
        for path in files:
            jpegs = _read(parquet, path, ("jpeg",))["jpeg"]
            jobs = ((int(places[first + row]), path, row, jpeg) for row, jpeg in enumerate(jpegs))
            for _ in pool.map(decode, jobs):
                bar.update()
            first += len(jpegs)
    out.flush()


def _fingerprint(files: list[Path], names: np.ndarray) -> str:
    """Name the pictures by the order of the rows and the ends of the files, where parquet keeps all sizes."""
    digest = hashlib.sha256("\n".join(names.tolist()).encode())
    for path in files:
        size = path.stat().st_size
        with open(path, "rb") as file:
            file.seek(max(0, size - 2**16))
            digest.update(b"%d\n" % size + file.read())
    return digest.hexdigest()[:16]
