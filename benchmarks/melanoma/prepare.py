"""From the ISIC 2020 challenge's own download to four parquet files of small pictures."""

import csv
import io
import math
import os
import shutil
import uuid
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import Any

from tqdm.auto import tqdm

from benchmarks.melanoma.extra import import_extra
from benchmarks.melanoma.split import assign
from bernflow import ArgumentError, FileFormatError

SIZE = 128
QUALITY = 88
NUM_FILES = 4
FILE = "isic2020-128-{}of{}.parquet"
WHERE = "The ISIC 2020 challenge's training set (JPEGs and ground truth) is at https://challenge2020.isic-archive.com."
TEXTS = ("image_name", "patient_id", "sex", "anatom_site_general_challenge")
REQUIRED = (*TEXTS, "age_approx", "target")
MISSING = ("", "NA", "NaN", "nan", "unknown")
SUFFIXES = (".jpg", ".jpeg")


def prepare(
    folder: str | PathLike, ground_truth: str | PathLike, out: str | PathLike, *, progress: bool = False
) -> list[Path]:
    """Reduce the challenge's pictures and write them with their table, whole or not at all.

    Every picture is cropped to its central square, reduced to 256 and then to 128 pixels, and stored as a JPEG of
    quality 88. The rows are those of the ground truth, in its order; `split` and `pos_in_split` are the paper's.

    Args:
        folder: the folder of JPEGs, named as in the ground truth.
        ground_truth: the challenge's CSV with image_name, patient_id, sex, age_approx, anatom_site_general_challenge
            and target; lesion_id is kept where it is given.
        out: folder for the four files; made if it is not there.
        progress: show a progress bar.

    Returns:
        the files.
    """
    image = import_extra("PIL.Image")
    arrow = import_extra("pyarrow")
    parquet = import_extra("pyarrow.parquet")
    columns = _read_ground_truth(Path(ground_truth))
    pictures = _find_pictures(Path(folder), columns["image_name"])
    parts, places, num_unknown = assign(columns["image_name"])
    if num_unknown:
        warnings.warn(
            f"{num_unknown} of {len(parts)} images are not in the paper's split (first: "
            f"{_first_unknown(columns['image_name'])}): they get a part by a hash of their names.",
            stacklevel=2,
        )
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        reduced = pool.map(lambda path: _reduce(image, path), pictures)
        jpegs = list(tqdm(reduced, desc="pictures", total=len(pictures), disable=not progress, dynamic_ncols=True))
    text = arrow.large_string()
    kinds = {name: text for name in (*TEXTS, "lesion_id", "split")}
    kinds |= {
        "age_approx": arrow.float64(),
        "target": arrow.int64(),
        "pos_in_split": arrow.int64(),
        "jpeg": arrow.binary(),
    }
    columns |= {"split": parts.tolist(), "pos_in_split": places.tolist(), "jpeg": jpegs}
    order = (*TEXTS[:3], "age_approx", TEXTS[3], "target", "lesion_id", "split", "pos_in_split", "jpeg")
    table = arrow.table({name: arrow.array(columns[name], kinds[name]) for name in order})
    return _write(parquet, table, Path(out))


def _read_ground_truth(path: Path) -> dict[str, list[Any]]:
    if not path.is_file():
        raise ArgumentError(f"{path} is not a file: expected the challenge's ground truth, a CSV file. {WHERE}")
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            header = reader.fieldnames or []
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise FileFormatError(f"{path} is not a CSV file ({error}): expected the challenge's ground truth.") from error
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        raise FileFormatError(
            f"{path} has no column {', '.join(missing)}: expected the challenge's ground truth with "
            f"{', '.join(REQUIRED)}; its columns are {', '.join(header) or '(none)'}."
        )
    if not rows:
        raise FileFormatError(f"{path} has no rows below its header: expected one per picture.")
    columns: dict[str, list[Any]] = {name: [_text(row[name]) for row in rows] for name in TEXTS}
    columns["lesion_id"] = [_text(row.get("lesion_id")) for row in rows]
    columns["age_approx"] = [_number(path, line, row, "age_approx") for line, row in enumerate(rows, 2)]
    columns["target"] = [_number(path, line, row, "target") for line, row in enumerate(rows, 2)]
    for line, (name, patient, target) in enumerate(
        zip(columns["image_name"], columns["patient_id"], columns["target"], strict=True), 2
    ):
        if name is None or patient is None:
            raise FileFormatError(f"{path}, line {line}: image_name or patient_id is missing.")
        if target not in (0.0, 1.0):
            raise FileFormatError(f"{path}, line {line}: target is {rows[line - 2]['target']!r}, expected 0 or 1.")
    columns["target"] = [int(target) for target in columns["target"]]
    twice = [name for name, count in Counter(columns["image_name"]).items() if count > 1]
    if twice:
        raise FileFormatError(f"{path} has {len(twice)} image names more than once, such as {twice[0]}.")
    return columns


def _text(value: str | None) -> str | None:
    value = (value or "").strip()
    return None if value in MISSING else value


def _number(path: Path, line: int, row: dict[str, Any], name: str) -> float | None:
    value = _text(row[name])
    if value is None:
        return None
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise FileFormatError(f"{path}, line {line}: {name} is {value!r}, expected a number.")
    return number


def _find_pictures(folder: Path, names: list[str]) -> list[Path]:
    if not folder.is_dir():
        raise ArgumentError(
            f"{folder} is not a folder: expected the challenge's training pictures, JPEG files. {WHERE}"
        )
    found = {path.stem: path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES}
    missing = [name for name in names if name not in found]
    if missing:
        raise ArgumentError(
            f"{folder} lacks {len(missing)} of the {len(names)} pictures of the ground truth, such as "
            f"{missing[0]}.jpg: expected all of them in one folder. {WHERE}"
        )
    return [found[name] for name in names]


def _first_unknown(names: list[str]) -> str:
    return next(name for name in names if assign([name])[2])


def _reduce(image: Any, path: Path) -> bytes:
    """Crop, reduce and encode one picture."""
    box = image.Resampling.BOX
    try:
        with image.open(path, formats=("JPEG",)) as picture:
            # The decoder itself halves large pictures, while the short side keeps 4 * SIZE pixels: many times faster.
            picture.draft("RGB", (4 * SIZE, 4 * SIZE))
            full = picture.convert("RGB")
    except (OSError, SyntaxError, ValueError, image.DecompressionBombError) as error:
        raise FileFormatError(f"{path} cannot be read as a JPEG picture: {error}") from error
    side = min(full.size)
    left, top = ((length - side) // 2 for length in full.size)
    square = full.crop((left, top, left + side, top + side))
    small = square.resize((2 * SIZE, 2 * SIZE), box).resize((SIZE, SIZE), box)
    encoded = io.BytesIO()
    small.save(encoded, "JPEG", quality=QUALITY)
    return encoded.getvalue()


def _write(parquet: Any, table: Any, out: Path) -> list[Path]:
    """Write the files under other names first and rename all of them at the end."""
    made = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    partial = out / f".{uuid.uuid4().hex}.part"
    names = [FILE.format(i, NUM_FILES) for i in range(NUM_FILES)]
    try:
        partial.mkdir()
        for i, name in enumerate(names):
            start, stop = (k * table.num_rows // NUM_FILES for k in (i, i + 1))
            parquet.write_table(
                table.slice(start, stop - start), partial / name, compression="zstd", row_group_size=2000
            )
        for name in names:
            os.replace(partial / name, out / name)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        if made and not any(out.iterdir()):
            out.rmdir()
        raise
    partial.rmdir()
    return [out / name for name in names]
