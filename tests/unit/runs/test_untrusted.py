"""Runs that somebody else has made up: nothing is executed, no other file is read, no memory is filled."""

import json
import os
import resource
import shutil
import sys

import numpy as np
import pytest

from bernflow.errors import FileFormatError
from bernflow.posterior import archive
from bernflow.posterior.container import read_container, write_container
from bernflow.runs import read_run, write_run
from bernflow.runs.folder import DATA, MANIFEST, POSTERIOR
from bernflow.runs.material import KIND, material_of_run
from bernflow.sealed import SEAL, checksum_of, read_sealed, sealed_text

NUM = 20


@pytest.fixture(scope="module")
def made(posterior, tmp_path_factory):
    """Runs in each format."""
    pytest.importorskip("zarr")
    patch = pytest.MonkeyPatch()
    patch.setattr(type(posterior), "report", lambda *args, **kwargs: None)
    formats = ("csv", "netcdf", "zarr")
    folder = tmp_path_factory.mktemp("made")
    for name in formats:
        write_run(posterior, folder / name, num=NUM, formats=(name,))
    patch.undo()
    return folder


@pytest.fixture
def crafted(made, tmp_path):
    """Return a copy of a run, and what gives it the right checksums after it was tampered with."""

    def copy(name):
        where = tmp_path / name
        shutil.copytree(made / name, where)
        return where

    return copy


def reseal(folder, **changes):
    manifest = {**read_sealed(folder / MANIFEST), **changes}
    manifest.pop(SEAL, None)
    manifest["sha256"] = {name: checksum_of(folder / name) for name in sorted(os.listdir(folder)) if name != MANIFEST}
    (folder / MANIFEST).write_text(sealed_text(manifest))


def refused(folder, says):
    """Make sure that a run is refused before it takes memory."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FileFormatError, match=says):
        material_of_run(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


@pytest.mark.parametrize("name", ["csv", "netcdf", "zarr"])
def test_what_was_written_can_be_read(crafted, name):
    folder = crafted(name)
    reseal(folder)
    assert material_of_run(folder).draws["part/w"].shape == (NUM, 2, 3)


def test_draws_in_formats_of_others_are_not_opened(crafted, monkeypatch):
    """A pickle in the filter of a Zarr array, storage of HDF5 elsewhere, a header of gigabytes: no parser sees them."""
    csv, netcdf, zarr = map(crafted, ("csv", "netcdf", "zarr"))
    before = [material_of_run(folder).draws for folder in (csv, netcdf, zarr)]
    (csv / "draws.csv").write_bytes(b"mu." + b"9" * 200 + b"\n")
    (netcdf / "draws.nc").write_bytes(b"\x89HDF\r\n\x1a\n" + b"\x00" * 200)
    arrays = list((zarr / "draws.zarr").rglob(".zarray"))
    assert arrays
    for path in arrays:
        path.write_text(json.dumps({**json.loads(path.read_text()), "filters": [{"id": "pickle"}]}))
    for package in ("h5py", "h5netcdf", "zarr", "numcodecs"):
        monkeypatch.setitem(sys.modules, package, None)  # importing it fails
    for folder, draws in zip((csv, netcdf, zarr), before, strict=True):
        reseal(folder)
        found = material_of_run(folder).draws
        assert found.keys() == draws.keys()
        np.testing.assert_array_equal(found["part/w"], draws["part/w"])


@pytest.mark.parametrize("end", ["\n", "\r"])
def test_short_rows_claim_nothing(crafted, end):
    folder, name = crafted("csv"), "summary.csv"
    columns = ",".join(["name", "mu", *(f"a.{i}" for i in range(1, 30_000))])
    (folder / name).write_bytes((columns + end + f"1{end}" * 30_000).encode())
    reseal(folder)
    refused(folder, "claims 30,001 rows of 30,001 columns")


def test_other_numbers_of_draws_are_refused(crafted):
    folder = crafted("csv")
    reseal(folder, draws=NUM + 1)
    refused(folder, "are not those of its parameters .other numbers")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"groups": {"draws": ["mu"]}}, "is not the draws and data of a run, or it is damaged .KeyError"),
        ({"groups": 1}, "AttributeError"),
        ({"dims": {"part.w": 1}}, "TypeError"),
        ({"coords": 1}, "AttributeError"),
    ],
)
def test_descriptions_of_other_content_are_refused(crafted, changes, says):
    folder = crafted("csv")
    manifest, arrays = read_container(folder / DATA, KIND)
    facts = {name: manifest[name] for name in ("groups", "dims", "coords")}
    write_container(folder / DATA, KIND, facts | changes, arrays)
    reseal(folder)
    refused(folder, says)


def test_draws_that_are_not_numbers_are_refused(crafted):
    folder = crafted("csv")
    manifest, arrays = read_container(folder / DATA, KIND)
    facts = {name: manifest[name] for name in ("groups", "dims", "coords")}
    write_container(folder / DATA, KIND, facts, arrays | {"draws_0000": np.full(NUM, "text")})
    reseal(folder)
    refused(folder, "draws are not numbers")


@pytest.mark.parametrize("name", ["summary.csv", DATA, POSTERIOR, "diagnostics.json"])
def test_links_and_pipes_are_not_followed(crafted, name, tmp_path):
    folder = crafted("csv")
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    reseal(folder)
    refused(folder, "is a link")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refused(folder, "neither a file nor a folder")


def test_the_manifest_is_no_link_and_not_large(crafted, tmp_path):
    folder = crafted("csv")
    with open(folder / MANIFEST, "r+b") as file:
        file.truncate(2**33)  # sparse
    with pytest.raises(FileFormatError, match=r"run.json has 8,589,934,592 bytes"):
        read_run(folder)
    (folder / MANIFEST).unlink()
    os.mkfifo(folder / MANIFEST)
    with pytest.raises(FileFormatError, match="is a link, or neither"):
        read_run(folder)


def test_parameters_without_draws_are_refused(crafted, posterior, monkeypatch):
    folder = crafted("csv")
    describe = archive._describe_sites
    monkeypatch.setattr(archive, "_describe_sites", lambda sites: [{**s, "shape": [10**9]} for s in describe(sites)])
    posterior.save(folder / POSTERIOR)
    reseal(folder)
    refused(folder, "are not those of its parameters")
