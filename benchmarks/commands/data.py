"""`bernflow data`: bring the data of an experiment, from where its owners publish it, into the form bernflow reads."""

import argparse
import warnings
from pathlib import Path

from benchmarks.melanoma.prepare import prepare
from bernflow.cli import Command

MELANOMA = "melanoma"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", choices=(MELANOMA,), help="which data: melanoma, of the ISIC 2020 challenge")
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="folder of the challenge's training JPEGs")
    parser.add_argument("csv", type=Path, metavar="CSV", help="the challenge's ground truth, a CSV file")
    parser.add_argument(
        "--out", type=Path, default=Path(MELANOMA), metavar="DIR", help="folder for the four files (default: melanoma)"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def run(options: argparse.Namespace) -> None:
    """Prepare the data and name the files."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        files = prepare(options.folder, options.csv, options.out, progress=not options.quiet)
    for warning in caught:
        print(f"Note: {warning.message}")
    for path in files:
        print(path)


COMMAND = Command(
    "data",
    "prepare the images of the melanoma experiment",
    "Reduce the pictures of the ISIC 2020 challenge's own download to 128x128 and write them, with their table and "
    "the paper's split, to four parquet files of about 25 MB. The download is at "
    "https://challenge2020.isic-archive.com; the pictures' license is CC BY-NC 4.0. The files appear all at once, at "
    "the end.",
    add_arguments,
    run,
    """
examples:
  bernflow data melanoma train train.csv
  bernflow data melanoma train train.csv --out pictures --quiet
""",
)
