import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import bernflow
from bernflow.errors import FileWriteError
from bernflow.models.stan import cache
from bernflow.models.stan.cache import cache_folder, is_intact, produce


@pytest.fixture
def chosen(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "kept"))
    monkeypatch.setattr(cache, "_TEMPORARY", [])
    monkeypatch.setattr(cache.tempfile, "tempdir", str(tmp_path))
    return tmp_path / "kept" / "stan"


def test_the_folder_is_private(chosen):
    assert cache_folder() == chosen
    assert stat.S_IMODE(chosen.stat().st_mode) == 0o700
    assert cache_folder() == chosen


@pytest.mark.parametrize("system", ["linux", "darwin"])
def test_without_the_variable_it_lies_in_the_users_cache(system, tmp_path, monkeypatch):
    monkeypatch.delenv(cache.VARIABLE, raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(cache.sys, "platform", system)
    assert cache_folder() == tmp_path / {"linux": ".cache", "darwin": "Library/Caches"}[system] / "bernflow" / "stan"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o722])
def test_a_folder_that_others_can_write_to_is_not_used(mode, chosen):
    chosen.mkdir(parents=True)
    chosen.chmod(mode)
    with pytest.warns(
        UserWarning, match=rf"not cached in .*, because others can write to it \(mode {mode:o}\).*temporary"
    ):
        folder = cache_folder()
    assert folder != chosen
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with pytest.warns(UserWarning, match="not cached"):
        assert cache_folder() == folder  # one per process


def test_nor_one_in_a_folder_open_to_everybody(chosen):
    chosen.mkdir(parents=True, mode=0o700)
    chosen.parent.chmod(0o777)
    with pytest.warns(UserWarning, match="because everybody can write to .*kept"):
        assert cache_folder() != chosen
    chosen.parent.chmod(0o1777)
    assert cache_folder() == chosen


def test_nor_one_of_another_user(chosen, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    with pytest.warns(UserWarning, match=r"because it belongs to another user \(uid \d+\)"):
        assert cache_folder() != chosen


def owned_by_another(monkeypatch, method, place):
    """Let a path seem to belong to another user."""
    original = getattr(cache.Path, method)

    def status(self, **kwargs):
        found = original(self, **kwargs)
        return os.stat_result([*found[:4], 4711, *found[5:]]) if self == place else found

    monkeypatch.setattr(cache.Path, method, status)


def test_nor_one_in_a_folder_of_another_user(chosen, monkeypatch):
    chosen.mkdir(parents=True, mode=0o700)
    chosen.parent.chmod(0o1777)  # sticky, but its owner may exchange what lies in it
    owned_by_another(monkeypatch, "stat", chosen.parent)
    with pytest.warns(UserWarning, match=r"because .*kept belongs to another user \(uid 4711\)"):
        assert cache_folder() != chosen


def test_nor_one_that_a_link_of_another_user_leads_to(chosen, tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir(mode=0o700)
    chosen.parent.mkdir()
    chosen.symlink_to(tmp_path / "mine")
    assert cache_folder() == chosen  # the user's own link is fine
    owned_by_another(monkeypatch, "lstat", chosen)
    with pytest.warns(UserWarning, match=r"because the link .*stan belongs to another user \(uid 4711\)"):
        assert cache_folder() != chosen


def test_where_there_are_no_owners(chosen, monkeypatch):
    monkeypatch.delattr(os, "getuid")
    assert cache_folder() == chosen
    monkeypatch.setattr(os, "access", lambda folder, rights: False)
    with pytest.warns(UserWarning, match="because it cannot be written to"):
        assert cache_folder() != chosen


def test_nor_one_that_cannot_be_made(chosen):
    chosen.parent.write_text("a file")
    with pytest.warns(UserWarning, match="because it cannot be created"):
        assert cache_folder() != chosen


def test_nor_one_in_a_home_that_nobody_knows(chosen, monkeypatch):
    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(cache.VARIABLE)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(cache.Path, "home", home)
    with pytest.warns(UserWarning, match=r"because it cannot be created \(Could not determine home"):
        assert cache_folder().is_dir()


def make_text(text):
    def make(folder):
        (folder / "program.so").write_text(text)
        (folder / "header.hpp.gch").write_text("large")

    return make


def test_an_entry_is_made_once(tmp_path):
    entry = produce(tmp_path, "a", make_text("first"))
    assert produce(tmp_path, "a", make_text("second")) == entry
    assert (entry / "program.so").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("damage", ["changed", "missing", "more", "no checksums", "odd checksums", "empty checksums"])
def test_a_damaged_entry_is_made_again(damage, tmp_path):
    entry = produce(tmp_path, "a", make_text("first"))
    if damage == "changed":
        (entry / "program.so").write_text("other")
    elif damage == "missing":
        (entry / "program.so").unlink()
    elif damage == "more":
        (entry / "other.so").write_text("planted")
    else:
        text = {"no checksums": "{", "odd checksums": "[1]", "empty checksums": "{}"}[damage]
        (entry / cache.CHECKSUMS).write_text(text)
    assert not is_intact(entry)
    assert (produce(tmp_path, "a", make_text("second")) / "program.so").read_text() == "second"
    assert is_intact(entry)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_failure_leaves_nothing(tmp_path):
    def make(folder):
        (folder / "half").write_text("")
        raise RuntimeError("no compiler")

    with pytest.raises(RuntimeError, match="no compiler"):
        produce(tmp_path, "a", make)
    assert list(tmp_path.iterdir()) == []


def test_several_at_once_end_with_one_whole_entry(tmp_path):
    together = threading.Barrier(4)
    seen = []

    def work(number):
        def make(folder):
            (folder / "program.so").write_text(f"{number}" * 1000)
            together.wait(10)  # all have found it missing

        entry = produce(tmp_path, "a", make)
        seen.append((is_intact(entry), (entry / "program.so").read_text()))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [intact for intact, _ in seen] == [True] * 4
    assert len({text for _, text in seen}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_entry_that_cannot_be_replaced(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "odd").write_text("")
    monkeypatch.setattr(cache, "_remove", lambda entry: None)
    with pytest.raises(FileWriteError, match="a is damaged and cannot be replaced: remove it"):
        produce(tmp_path, "a", make_text("new"))


def test_leftovers_of_killed_processes_go_and_nothing_else(tmp_path):
    key, days = "0" * 32, 86_400
    gone = {f".program-{key}-x1": 2, f".headers-{key}-ab": 2, f"headers-{key}": 31}
    # What is still in use, and what never was ours, in a folder that the user has chosen.
    stays = {f".object-{key}-x2": 0, f"headers-{'1' * 32}": 29, f"program-{key}": 400, ".git": 400, "headers-mine": 400}
    for name, age in {**gone, **stays}.items():
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age * days,) * 2)
    produce(tmp_path, "a", make_text("first"))
    assert {path.name for path in tmp_path.iterdir()} == {*stays, "a"}


def test_nor_one_in_a_folder_that_a_group_can_write_to(chosen, monkeypatch):
    chosen.mkdir(parents=True, mode=0o700)
    chosen.parent.chmod(0o775)
    monkeypatch.setattr(cache, "_is_private", lambda group: False)
    with pytest.warns(UserWarning, match=r"because the group \d+ can write to .*kept"):
        assert cache_folder() != chosen
    chosen.parent.chmod(0o1775)
    assert cache_folder() == chosen
    chosen.parent.chmod(0o775)
    monkeypatch.setattr(cache, "_is_private", lambda group: True)
    assert cache_folder() == chosen


def test_the_group_of_a_user_alone_is_private(monkeypatch):
    import grp
    import pwd

    user = pwd.struct_passwd(("ada", "x", 1000, 1000, "", "/home/ada", "/bin/sh"))
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: user)
    groups = {1000: ("ada", "x", 1000, []), 100: ("users", "x", 100, []), 1001: ("ada", "x", 1001, ["ada", "bob"])}
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group(groups[gid]))
    assert [cache._is_private(gid) for gid in (0, 1000, 100, 1001, 7)] == [True, True, False, False, False]
    groups[1000] = ("ada", "x", 1000, ["bob"])
    assert not cache._is_private(1000)


@pytest.mark.parametrize("name", [cache.VARIABLE, "XDG_CACHE_HOME"])
def test_a_relative_folder_is_meant_from_here(name, tmp_path, monkeypatch):
    monkeypatch.delenv(cache.VARIABLE, raising=False)
    monkeypatch.setenv(name, "kept")
    monkeypatch.setattr(cache.sys, "platform", "linux")
    monkeypatch.chdir(tmp_path)
    folder = cache_folder()
    assert folder.is_absolute()
    assert folder.is_relative_to(tmp_path / "kept")


def test_a_temporary_folder_goes_with_its_process(tmp_path):
    code = """
import os, sys, warnings
from bernflow.models.stan import cache
warnings.simplefilter("ignore")
folder = cache.cache_folder()
(folder / "program.so").write_text("")
if os.fork() == 0:
    sys.exit(0)  # a fork leaves it
os.wait()
assert folder.is_dir()
print(folder)
"""
    (tmp_path / "open" / "stan").mkdir(parents=True)
    (tmp_path / "open").chmod(0o777)
    source = str(Path(bernflow.__file__).parents[1])
    env = {**os.environ, cache.VARIABLE: str(tmp_path / "open"), "TMPDIR": str(tmp_path), "PYTHONPATH": source}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=env, capture_output=True, text=True, check=True
    )
    folder = Path(run.stdout.strip())
    assert folder.parent == tmp_path
    assert not folder.exists()
