"""Which lesion is for training, validation and test: the paper's split by image, and one by patient."""

import functools
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from importlib import resources

import numpy as np

PARTS = ("train", "valid", "test")
# Sizes of the paper's parts.
SIZES = {"train": 21_200, "valid": 5_300, "test": 6_626}

_NAME = re.compile(r"ISIC_(\d{7})")


def assign(names: Sequence[str]) -> tuple[np.ndarray, np.ndarray, int]:
    """Assign images to the parts of the paper's split by their names.

    A name that the paper did not have gets a part by its hash, in the paper's proportions, and a place after the
    paper's images.

    Args:
        names: names without a suffix, such as ISIC_7544251.

    Returns:
        the part of every image, its place in the part, and the number of names that the paper did not have.

    Example:
        >>> part, place, num_unknown = assign(["ISIC_7544251"])
        >>> str(part[0]), num_unknown
        ('train', 0)
    """
    known = _paper_split()
    sizes = dict(SIZES)
    parts, places = [], []
    for name in names:
        found = _NAME.fullmatch(name)
        place = known.get(int(found[1])) if found else None
        if place is None:
            part = _part_by_hash(name)
            place = part, sizes[part]
            sizes[part] += 1
        parts.append(place[0])
        places.append(place[1])
    num_unknown = sum(sizes.values()) - sum(SIZES.values())
    return np.array(parts, dtype=f"U{max(map(len, PARTS))}"), np.array(places, dtype=np.int64), num_unknown


def split_by_patient(patient: np.ndarray, target: np.ndarray, sizes: Mapping[str, int]) -> np.ndarray:
    """Split so that no patient is in two parts, with the melanomas spread in proportion.

    Patients with melanomas are dealt first, then the others, large before small, each to the part that lacks most of
    its share; exchanges of similar patients then bring the parts to their sizes. The order is that of a hash of the
    patients' names: nothing depends on the order of the rows or on a seed.

    Args:
        patient: patient of every image (N,).
        target: 1 for a melanoma (N,).
        sizes: wanted number of images of every part, N in all.

    Returns:
        the part of every image (N,).
    """
    ids, row_patient = np.unique(patient, return_inverse=True)
    images = np.bincount(row_patient)
    melanomas = np.bincount(row_patient, weights=target).astype(np.int64)
    order = sorted(range(len(ids)), key=lambda i: (-melanomas[i], -images[i], _hash(str(ids[i]))))
    names = list(sizes)
    wanted = np.array([sizes[name] for name in names], dtype=np.float64)
    share = wanted / wanted.sum()
    lacks_images, lacks_melanomas = wanted.copy(), share * melanomas.sum()
    part = np.empty(len(ids), dtype=np.int64)
    for i in order:
        lacks = lacks_melanomas if melanomas[i] else lacks_images
        part[i] = np.argmax(lacks / share)
        lacks_images[part[i]] -= images[i]
        lacks_melanomas[part[i]] -= melanomas[i]
    _exchange(part, images, melanomas, lacks_images.round().astype(np.int64))
    return np.array(names)[part][row_patient]


def _exchange(part: np.ndarray, images: np.ndarray, melanomas: np.ndarray, lacks: np.ndarray) -> None:
    """Exchange patients with as many melanomas between two parts until the sizes fit, or no exchange helps."""
    for _ in range(100):
        if not lacks.any():
            return
        # `low` has too few images, `high` too many.
        low, high = int(np.argmax(lacks)), int(np.argmin(lacks))
        need = min(lacks[low], -lacks[high])
        pairs = (
            (i, j)
            for i in np.flatnonzero(part == low)
            for j in np.flatnonzero((part == high) & (melanomas == melanomas[i]) & (images == images[i] + need))
        )
        pair = next(pairs, None)
        if pair is None:
            return
        part[pair[0]], part[pair[1]] = high, low
        lacks[low] -= need
        lacks[high] += need


@functools.cache
def _paper_split() -> dict[int, tuple[str, int]]:
    file = resources.files("benchmarks") / "data" / "melanoma_split.npz"
    with np.load(io.BytesIO(file.read_bytes()), allow_pickle=False) as stored:
        return {int(number): (part, place) for part in PARTS for place, number in enumerate(stored[part])}


def _part_by_hash(name: str) -> str:
    place = _hash(name) % sum(SIZES.values())
    return "train" if place < SIZES["train"] else "valid" if place < SIZES["train"] + SIZES["valid"] else "test"


def _hash(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
