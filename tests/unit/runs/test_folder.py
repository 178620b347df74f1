import json
import os
import shutil

import numpy as np
import pytest
import xarray as xr

import bernflow as bf
from bernflow.errors import ArgumentError, BernflowError, FileFormatError, FileWriteError
from bernflow.runs import check_free, folder, read_run, write_run
from bernflow.runs.material import material_of_run
from bernflow.sealed import checksum_of, sealed_text

FILES = [
    "diagnostics.json",
    "draws.csv",
    "draws.nc",
    "posterior.bernflow",
    "report-data.bernflow",
    "report.html",
    "run.json",
    "summary.csv",
]
ORIGIN = {"model": {"path": "/some/schools.stan"}, "data": {"path": "/some/schools.json"}, "options": {"seed": 7}}


@pytest.fixture(scope="module")
def run(posterior, tmp_path_factory):
    return write_run(posterior, tmp_path_factory.mktemp("runs") / "new" / "run", num=40, origin=ORIGIN)


@pytest.fixture
def copy(run, tmp_path):
    return shutil.copytree(run.folder, tmp_path / "run")


def test_everything_is_there(run, posterior):
    assert sorted(path.name for path in run.folder.iterdir()) == FILES == run.manifest["files"]
    assert os.listdir(run.folder.parent) == ["run"]
    found = json.loads((run.folder / "diagnostics.json").read_text())
    assert found["verdict"] == posterior.diagnostics.verdict
    assert found["khat"] == posterior.diagnostics.khat
    assert found["settings"]["family"] == "gaussian-fullrank"
    loaded = bf.load(run.folder / "posterior.bernflow")
    np.testing.assert_array_equal(loaded.draws(40)["mu"], posterior.draws(40)["mu"])


def test_the_draws_agree_in_all_files(run, posterior):
    expected = posterior.draws(40)
    tree = xr.open_datatree(run.folder / "draws.nc", engine="h5netcdf")
    with tree:
        np.testing.assert_array_equal(tree["posterior"]["part.w"].values[0], expected["part/w"])
        np.testing.assert_array_equal(tree["observed_data"]["y"], [3.0, 4.0])
        assert tree["log_likelihood"]["y"].shape == (1, 40, 2)
        assert tree.attrs["verdict"] == posterior.diagnostics.verdict
    lines = (run.folder / "draws.csv").read_text().splitlines()
    for line in (
        "# model = schools_model",
        "# method = pathfinder",
        "#   seed = 7",
        "#   file = schools.json",
        "# id = 1",
    ):
        assert line in lines
    assert len([line for line in lines if not line.startswith("#")]) == 41


def test_a_run_is_read_back(run, posterior):
    again = read_run(run.folder)
    assert again.manifest == run.manifest
    assert again.summary.equals(run.summary)
    assert again.diagnostics == json.loads(json.dumps(again.diagnostics, allow_nan=False))
    assert again.load().names == posterior.names


def test_zarr(posterior, tmp_path, monkeypatch):
    monkeypatch.setattr(folder.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(BernflowError, match=r"need the package zarr: .*bernflow\[zarr\]"):
        write_run(posterior, tmp_path / "run", formats=("zarr",))
    monkeypatch.undo()
    pytest.importorskip("zarr")
    found = write_run(posterior, tmp_path / "run", num=10, formats=("zarr",))
    assert "draws.zarr" in found.manifest["files"]
    assert "draws.csv" not in found.manifest["files"]
    tree = xr.open_datatree(tmp_path / "run" / "draws.zarr", engine="zarr")
    np.testing.assert_array_equal(tree["posterior"]["mu"].values[0], posterior.draws(10)["mu"])


def test_unknown_formats_are_refused(posterior, tmp_path):
    with pytest.raises(ArgumentError, match="The format feather is unknown: expected some of csv, netcdf, zarr"):
        write_run(posterior, tmp_path / "run", formats=("feather",))
    assert os.listdir(tmp_path) == []


def test_free_folders(copy, tmp_path, monkeypatch):
    check_free(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    check_free(tmp_path / "empty")
    check_free(copy)
    (copy / "notes.txt").write_text("mine")
    with pytest.raises(
        ArgumentError, match=r"contains files that are not of a run of bernflow \(notes.txt\): choose anoth"
    ):
        check_free(copy)
    check_free(copy, force=True)
    (tmp_path / "file").touch()
    with pytest.raises(ArgumentError, match="is a file: expected a folder"):
        check_free(tmp_path / "file", force=True)
    (copy / "run.json").write_text("{}")
    with pytest.raises(ArgumentError, match=r"\(diagnostics.json, draws.csv, draws.nc, \.\.\.\)"):
        check_free(copy)
    monkeypatch.chdir(tmp_path / "empty")
    for inside in (".", ".."):
        with pytest.raises(ArgumentError, match="the current folder: choose a new folder inside it"):
            check_free(inside, force=True)


def test_an_earlier_run_is_replaced_and_files_of_others_stay(copy, posterior):
    (copy / "notes.txt").write_text("mine")
    found = write_run(posterior, copy, num=5, formats=("csv",))
    assert found.manifest["draws"] == 5
    names = {path.name for path in copy.iterdir()}
    assert names == {*FILES, "notes.txt"} - {"draws.nc"}
    assert (copy / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_what_cannot_be_written_leaves_the_earlier_run(copy, posterior, monkeypatch, error):
    before = {path.name: path.read_bytes() for path in copy.iterdir()}

    def fail(*args, **kwargs):
        raise error

    monkeypatch.setattr(folder, "write_csv", fail)
    expected = FileWriteError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected):
        write_run(posterior, copy, num=5)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    assert os.listdir(copy.parent) == [copy.name]


def test_a_report_is_written_and_its_failure_costs_nothing_else(posterior, tmp_path, monkeypatch):
    cls = type(posterior)
    monkeypatch.setattr(cls, "report", lambda self, path, num, weighted: path.write_text(f"{num} {weighted}"))
    found = write_run(posterior, tmp_path / "run", num=5, formats=())
    assert "report.html" in found.manifest["files"]
    assert (tmp_path / "run" / "report.html").read_text() == "5 False"

    def broken(self, path, num, weighted):
        path.write_text("<ht")
        raise ZeroDivisionError("a picture")

    monkeypatch.setattr(cls, "report", broken)
    found = write_run(posterior, tmp_path / "run", num=5, formats=())
    assert "report.html" not in found.manifest["files"]
    assert found.manifest["notes"] == ["report.html could not be written (ZeroDivisionError: a picture)."]


def test_what_is_no_run_is_refused(copy, tmp_path):
    with pytest.raises(
        FileFormatError, match=r"none is not the folder of a run .FileNotFoundError.*expected one written"
    ):
        read_run(tmp_path / "none")
    manifest = json.loads((copy / "run.json").read_text())
    (copy / "run.json").write_text(json.dumps(manifest | {"format": "other"}))
    with pytest.raises(FileFormatError, match=r"is not the folder of a run .*format 'other'"):
        read_run(copy)
    for version, advice in ((99, "install a newer bernflow"), (2, "run it again")):
        (copy / "run.json").write_text(json.dumps(manifest | {"format_version": version}))
        with pytest.raises(FileFormatError, match=f"has format version {version}, written by bernflow .*{advice}"):
            read_run(copy)
    manifest.pop("seal")
    (copy / "run.json").write_text(sealed_text({**manifest, "sha256": 1}))
    with pytest.raises(FileFormatError, match=r"is damaged .it has no checksums"):
        read_run(copy)
    for name, says in (("report-data.bernflow", "is not the draws and data of a run"), ("summary.csv", "is damaged")):
        before = (copy / name).read_bytes()
        (copy / name).write_bytes(b"made up")
        made_up = {**manifest, "sha256": {**manifest["sha256"], name: checksum_of(copy / name)}}
        (copy / "run.json").write_text(sealed_text(made_up))
        with pytest.raises(FileFormatError, match=says):
            material_of_run(copy)
        (copy / name).write_bytes(before)
    (copy / "run.json").write_text(sealed_text(manifest))
    (copy / "diagnostics.json").unlink()
    with pytest.raises(FileFormatError, match=r"is damaged .*diagnostics\.json"):
        read_run(copy)


def everything(folder):
    """Return all that is read of a run, or None for a readable refusal."""
    try:
        found = material_of_run(folder)
    except FileFormatError:
        return None
    draws = {name: values.tobytes() for name, values in found.draws.items()}
    return draws, found.diagnostics, found.settings, found.origin, repr(read_run(folder).summary)


@pytest.mark.parametrize(
    "name", ["run.json", "summary.csv", "diagnostics.json", "posterior.bernflow", "report-data.bernflow"]
)
def test_a_damaged_file_is_refused_or_harmless(copy, name):
    whole, path = everything(copy), copy / name
    assert whole is not None
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for bit in rng.choice(8 * len(content), 25, replace=False):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(damaged)
        assert everything(copy) is None
    for length in rng.integers(0, len(content), 5):
        path.write_bytes(content[:length])
        assert everything(copy) is None
    path.unlink()
    assert everything(copy) is None
    path.write_bytes(content)
    assert everything(copy) == whole


@pytest.mark.parametrize("formats", [("csv",), ()])
def test_a_report_can_be_made_of_other_files(posterior, tmp_path, monkeypatch, formats):
    monkeypatch.setattr(type(posterior), "report", lambda *args, **kwargs: None)
    where = write_run(posterior, tmp_path / "run", num=30, weighted=True, formats=formats, origin=ORIGIN).folder
    found = material_of_run(where)
    np.testing.assert_array_equal(found.draws["part/w"], posterior.draws(30, weighted=True)["part/w"])
    assert found.log_weights is None  # those of resampled draws are not informative
    assert ("Seed", "7") in found.origin
    assert found.axes.first == 1


def test_a_manifest_cannot_have_files_of_others_removed(copy, posterior):
    (copy / "notes.txt").write_text("mine")
    manifest = json.loads((copy / "run.json").read_text())
    manifest["files"] += ["notes.txt", "../../other"]
    (copy / "run.json").write_text(json.dumps(manifest))
    with pytest.raises(ArgumentError, match=r"not of a run of bernflow \(notes.txt\)"):
        check_free(copy)
    write_run(posterior, copy, num=5, formats=())
    assert (copy / "notes.txt").read_text() == "mine"


def test_files_that_appear_meanwhile_stay(copy, posterior, monkeypatch):
    def write(file, *args):
        (copy / "notes.txt").write_text("mine")

    monkeypatch.setattr(folder, "write_csv", write)
    write_run(posterior, copy, num=5, formats=("csv",))
    assert (copy / "notes.txt").read_text() == "mine"


def test_a_folder_of_draws_has_a_checksum(tmp_path):
    for name, text in (("a", "1"), ("b/c", "2")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    before = checksum_of(tmp_path)
    (tmp_path / "b" / "c").rename(tmp_path / "d")
    moved = checksum_of(tmp_path)
    (tmp_path / "d").write_text("3")
    assert len({before, moved, checksum_of(tmp_path)}) == 3
