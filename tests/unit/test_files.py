import errno
import json
import os
import re

import numpy as np
import pytest

from bernflow.errors import BernflowError, FileWriteError
from bernflow.files import ensure_writable, json_text, write_whole
from bernflow.folders import write_folder

not_as_root = pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")


def text(content):
    return lambda file: file.write(content.encode())


def fill(**contents):
    def write(folder):
        for name, content in contents.items():
            (folder / f"{name}.txt").write_text(content)

    return write


def read(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def failing(error):
    def write(target):
        if hasattr(target, "write"):
            target.write(b"half")
        else:
            (target / "half.txt").write_text("half")
        raise error

    return write


def test_a_file_is_written_and_replaced(tmp_path):
    path = tmp_path / "file"
    for content in ("one", "two"):
        assert write_whole(path, text(content)) == path
        assert path.read_text() == content
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), ValueError()])
def test_what_fails_leaves_what_was_there(tmp_path, error):
    write_whole(tmp_path / "file", text("old"))
    write_folder(tmp_path / "folder", fill(a="old"))
    expected = FileWriteError if isinstance(error, OSError) else type(error)
    for write, name in ((write_whole, "file"), (write_folder, "folder")):
        with pytest.raises(expected):
            write(tmp_path / name, failing(error))
    assert (tmp_path / "file").read_text() == "old"
    assert read(tmp_path / "folder") == {"a.txt": "old"}
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


@pytest.mark.parametrize("write", [write_whole, write_folder])
def test_a_full_disk_is_named(tmp_path, write):
    path = tmp_path / "out"
    message = rf"^{re.escape(str(path))} cannot be written \(No space left on device\): free some space on that disk"
    with pytest.raises(FileWriteError, match=message) as caught:
        write(path, failing(OSError(errno.ENOSPC, "No space left on device")))
    assert isinstance(caught.value, BernflowError)
    assert isinstance(caught.value, OSError)
    assert os.listdir(tmp_path) == []


@not_as_root
@pytest.mark.parametrize("write", [write_whole, write_folder])
def test_a_folder_without_rights_is_named(tmp_path, write):
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(FileWriteError, match=r"Permission denied\): choose a folder that you may write to\."):
            write(tmp_path / "out", lambda _: None)
        with pytest.raises(FileWriteError, match="Permission denied"):
            ensure_writable(tmp_path)
    finally:
        tmp_path.chmod(0o700)


def test_a_missing_folder_is_named(tmp_path):
    with pytest.raises(FileWriteError, match="create its folder first"):
        write_whole(tmp_path / "none" / "file", text("x"))


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "file").symlink_to(tmp_path / "disk" / "file")
    for _ in range(2):
        write_whole(tmp_path / "file", text("x"))
    assert (tmp_path / "file").is_symlink()
    assert (tmp_path / "disk" / "file").read_text() == "x"


def test_ensure_writable(tmp_path):
    folder = tmp_path / "new" / "folder"
    assert ensure_writable(folder) == folder
    assert os.listdir(folder) == []
    (tmp_path / "file").touch()
    with pytest.raises(FileWriteError, match=r"file cannot be written \(File exists\)"):
        ensure_writable(tmp_path / "file")


def test_json_is_strict():
    value = {"a": np.float64(1.5), 2: [np.inf, float("nan")], "b": np.arange(2), "c": None, "d": True}
    assert json.loads(json_text(value), parse_constant=lambda _: pytest.fail("not strict")) == {
        "a": 1.5,
        "2": ["inf", "nan"],
        "b": [0, 1],
        "c": None,
        "d": True,
    }
