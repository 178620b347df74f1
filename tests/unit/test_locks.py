import errno
import os

import pytest

from bernflow import locks
from bernflow.locks import FolderTakenError, locked


def test_one_at_a_time(tmp_path):
    with locked(tmp_path):
        with pytest.raises(FolderTakenError, match="is in use by another process"), locked(tmp_path):
            pass
        (tmp_path / "inside").mkdir()
        with locked(tmp_path / "inside"):  # another folder is another lock
            pass
    for _ in range(2):
        with locked(tmp_path):
            pass
    assert os.listdir(tmp_path) == ["inside"]


def test_an_error_frees_the_folder(tmp_path):
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        _ = 1 / 0
    with locked(tmp_path):
        pass


def test_where_there_are_no_locks(tmp_path, monkeypatch):
    def refuse(*args):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks.fcntl, "flock", refuse)
    with locked(tmp_path), locked(tmp_path):
        pass
    monkeypatch.setattr(locks, "fcntl", None)
    with locked(tmp_path), locked(tmp_path):
        pass
