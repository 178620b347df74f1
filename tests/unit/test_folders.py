"""Folders appear whole or not at all, whoever else writes them and whenever a process is killed."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from bernflow import folders
from bernflow.errors import FileWriteError
from bernflow.folders import write_folder


def fill(**contents):
    def write(folder):
        for name, content in contents.items():
            (folder / f"{name}.txt").write_text(content)

    return write


def read(folder):
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_errors_name_files_inside_of_the_folder(tmp_path):
    with pytest.raises(FileWriteError, match=r"folder cannot be written \(no/such: No such file"):
        write_folder(tmp_path / "folder", lambda fresh: (fresh / "no" / "such").write_text("x"))


@pytest.mark.usefixtures("swap")
def test_a_folder_is_replaced_as_a_whole(tmp_path):
    folder = tmp_path / "new" / "folder"
    assert write_folder(folder, fill(a="1", b="2")) == folder
    assert read(folder) == {"a.txt": "1", "b.txt": "2"}
    write_folder(folder, fill(c="3"))
    assert read(folder) == {"c.txt": "3"}
    write_folder(folder, fill(d="4"), keep=lambda old: ["c.txt"])
    assert read(folder) == {"c.txt": "3", "d.txt": "4"}
    write_folder(folder, fill(c="5"), keep=lambda old: ["c.txt", "d.txt"])
    assert read(folder) == {"c.txt": "5", "d.txt": "4"}
    assert os.listdir(folder.parent) == ["folder"]


def test_a_file_in_the_place_of_the_folder_stays(tmp_path):
    (tmp_path / "out").write_text("mine")
    with pytest.raises(FileWriteError, match="Not a directory"):
        write_folder(tmp_path / "out", fill(a="1"))
    assert read(tmp_path) == {"out": "mine"}


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "folder").symlink_to(tmp_path / "disk" / "folder")
    for _ in range(2):
        write_folder(tmp_path / "folder", fill(a="1"))
    assert (tmp_path / "folder").is_symlink()
    assert read(tmp_path / "disk" / "folder") == {"a.txt": "1"}


@pytest.fixture(params=["in one step", "by two renames"])
def swap(request, monkeypatch):
    """Both ways to put a folder into the place of another."""
    if request.param == "by two renames":
        monkeypatch.setattr(folders, "_exchange", lambda one, other: False)
    elif sys.platform != "linux":
        pytest.skip("only Linux exchanges folders in one step")


@pytest.mark.usefixtures("swap")
def test_writers_of_one_folder_do_not_mix(tmp_path):
    folder, rounds, errors = tmp_path / "out", 25, []

    def work(name):
        try:
            for i in range(rounds):
                write_folder(folder, fill(one=f"{name}{i}", two=f"{name}{i}"))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    contents = read(folder)
    assert contents.keys() == {"one.txt", "two.txt"}
    assert len(set(contents.values())) == 1
    assert os.listdir(tmp_path) == ["out"]


def test_a_swap_that_fails_brings_the_old_folder_back(tmp_path, monkeypatch):
    folder = tmp_path / "out"
    write_folder(folder, fill(a="old"))
    rename = os.rename
    monkeypatch.setattr(folders, "_exchange", lambda one, other: False)

    def refuse(source, target):
        if str(source).endswith(".part") and not os.path.exists(target):
            raise OSError(errno.EIO, "Input/output error")
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(FileWriteError, match=r"Input/output error.*Existing files are unchanged\."):
        write_folder(folder, fill(a="new"))
    assert read(folder) == {"a.txt": "old"}
    assert os.listdir(tmp_path) == ["out"]


def test_a_place_that_others_keep_taking_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_exchange", lambda one, other: False)
    rename, taken = os.rename, []

    def another_comes_first(source, target):
        if str(source).endswith(".part"):
            taken.append(target)
            raise OSError(errno.ENOTEMPTY, "Directory not empty")
        if len(taken) % 2:
            raise FileNotFoundError  # that one has just been moved away
        rename(source, target)

    write_folder(tmp_path / "out", fill(a="old"))
    monkeypatch.setattr(os, "rename", another_comes_first)
    monkeypatch.setattr(folders, "MAX_SWAPS", 1)
    with pytest.raises(FileWriteError, match="other processes keep replacing it"):
        write_folder(tmp_path / "out", fill(a="new"))
    assert read(tmp_path / "out") == {"a.txt": "old"}


@pytest.mark.parametrize("error", [OSError, AttributeError])
def test_systems_without_an_exchange(tmp_path, monkeypatch, error):
    def refuse(name):
        raise error

    monkeypatch.setattr(folders.ctypes, "CDLL", refuse)
    assert not folders._exchange(tmp_path, tmp_path)


def test_folders_and_links_of_others_go_on(tmp_path):
    folder = tmp_path / "out"
    write_folder(folder, fill(a="1"))
    (folder / "notes").mkdir()
    (folder / "notes" / "deep.txt").write_text("mine")
    (folder / "link").symlink_to("nowhere")
    write_folder(folder, fill(b="2"), keep=lambda old: ["notes", "link", "gone"])
    assert sorted(os.listdir(folder)) == ["b.txt", "link", "notes"]
    assert (folder / "notes" / "deep.txt").read_text() == "mine"
    assert os.readlink(folder / "link") == "nowhere"


def test_files_of_others_are_copied_where_there_are_no_second_names(tmp_path, monkeypatch):
    write_folder(tmp_path / "out", fill(a="1"))

    def refuse(*args, **kwargs):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    write_folder(tmp_path / "out", fill(b="2"), keep=lambda old: ["a.txt"])
    assert read(tmp_path / "out") == {"a.txt": "1", "b.txt": "2"}


# A package of that name with the same modules: the whole of bernflow would take seconds to import.
WRITER = """
import sys, types
sys.modules["bernflow"] = package = types.ModuleType("bernflow")
package.__path__ = [sys.argv[4]]
from bernflow.folders import write_folder
def write(fresh):
    for name in ("one", "two"):
        (fresh / f"{name}.txt").write_text(sys.argv[2] + str(count))
for count in range(int(sys.argv[3])):
    write_folder(sys.argv[1], write, keep=lambda old: ["notes.txt"])
    print(count, flush=True)
"""


def writer(folder, name, rounds):
    command = [sys.executable, "-c", WRITER, str(folder), name, str(rounds), os.path.dirname(folders.__file__)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux exchanges folders in one step")
def test_two_processes_and_one_that_is_killed_leave_a_whole_folder(tmp_path):
    folder = tmp_path / "out"
    write_folder(folder, fill(one="first", two="first", notes="mine"))
    killed, other = writer(folder, "a", 1_000_000), writer(folder, "b", 100)
    for process in (killed, other):
        process.stdout.readline()  # both are at work
    until = time.monotonic() + 0.5
    seen = set()
    while time.monotonic() < until:
        assert (folder / "notes.txt").read_text() == "mine"  # there at every moment
        seen.add((folder / "one.txt").read_text()[0])
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert other.communicate(timeout=60)[1] == b""
    assert other.returncode == 0
    assert seen == {"a", "b"}
    contents = read(folder)
    assert contents.keys() == {"one.txt", "two.txt", "notes.txt"}
    assert contents["one.txt"] == contents["two.txt"]
    leftovers = [path.name for path in tmp_path.iterdir() if path != folder]
    assert len(leftovers) <= 1  # of the one that was killed
    assert all(name.startswith(".out.") for name in leftovers)
