"""Kept results and records that somebody else has made up."""

import io
import json
import os
import tracemalloc
import zipfile

import numpy as np
import pytest

from benchmarks.accuracy.suite import _load as load_accuracy
from benchmarks.models.suite import _load as load_models
from benchmarks.speed.suite import _load as load_speed
from benchmarks.study.arrays import read_arrays
from benchmarks.study.plan import Task
from benchmarks.study.records import load_records, save_records
from benchmarks.study.store import Store
from bernflow.errors import FileFormatError

TASK = Task("benchmarks.study.fits:fit", {"a": 1})


@pytest.fixture
def kept(tmp_path):
    store = Store(tmp_path)
    store.save(TASK, {"number": 1.0, "values": np.arange(3.0)}, {"date": "2026-11-19"})
    (path,) = tmp_path.glob("*.npz")
    return store, path


def bomb(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("header.npy", bytes(200_000_000))


def huge_header(path):
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": (10**10,)})
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("header.npy", buffer.getvalue())


def objects(path):
    np.savez(path, header=np.array([{"a": 1}], dtype=object))


def pipe(path):
    path.unlink()
    os.mkfifo(path)


def link(path):
    path.rename(path.with_name("other"))
    path.symlink_to(path.with_name("other"))


@pytest.mark.parametrize("craft", [bomb, huge_header, objects, pipe, link])
def test_made_up_results_do_not_count(kept, craft):
    store, path = kept
    assert store.load(TASK)["values"].tolist() == [0.0, 1.0, 2.0]
    craft(path)
    tracemalloc.start()
    try:
        assert store.load(TASK) is None
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    with pytest.raises(ValueError, match=r"claim|says|link"):
        read_arrays(path)


RECORDS = [
    "[]",
    "{}",
    '{"records": 3}',
    '{"records": [1]}',
    '{"records": [[]]}',
    '{"records": ["target"]}',
    '{"records": [{}]}',
    '{"records": [{"target": 1, "method": [], "model": {}, "part": 7, "status": null}]}',
    '{"records": [{"target": "a", "method": "b", "model": "c", "part": "d", "key": {}, "matched": [], "status": 5}]}',
    "[" * 100_000,
    "\x00",
]


@pytest.mark.parametrize("load", [load_accuracy, load_models, load_speed], ids=["accuracy", "models", "speed"])
@pytest.mark.parametrize("text", RECORDS, ids=range(len(RECORDS)))
def test_made_up_records_are_refused(load, text, tmp_path):
    path = tmp_path / "records.json"
    path.write_text(text)
    with pytest.raises(FileFormatError, match="does not hold records of this suite"):
        load(path)


def test_records_do_not_reach_a_terminal_unread(tmp_path):
    path = tmp_path / "records.json"
    save_records(path, [{"target": "a", "status": "\x1b[2Jok", "khat": float("inf")}], ())
    assert load_records(path) == [{"target": "a", "status": "\\x1b[2Jok", "khat": "inf"}]
    assert json.loads(path.read_text())["records"][0]["status"] == "\x1b[2Jok"
