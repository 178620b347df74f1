"""Runs that somebody else has made up: nothing is executed, no other file is read, no memory is filled."""

import contextlib
import json
import os
import pickle
import resource
import shutil

import h5py
import numpy as np
import pytest

from bernflow.errors import FileFormatError
from bernflow.posterior import archive
from bernflow.runs import read_run, write_run
from bernflow.runs.folder import MANIFEST, POSTERIOR
from bernflow.runs.material import material_of_run
from bernflow.runs.untrusted import check_hdf5, check_zarr
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


@pytest.mark.parametrize(
    "header",
    [
        "mu,part_w.20000.20000",
        "mu,part_w.1.1,part_w.20000.3",
        "mu,part_w.0.1,part_w.1.1",
        "mu,part_w.1.1",
        "mu,other." + ".".join(["9" * 18] * 9),
        "mu,mu",
        "mu",
        "mu,text",
    ],
)
def test_headers_of_tables_claim_nothing(crafted, header):
    folder = crafted("csv")
    values = ",".join("x" if name == "text" else "0.5" for name in header.split(","))
    (folder / "draws.csv").write_text(f"{header}\n" + f"{values}\n" * NUM)
    reseal(folder)
    refused(folder, r"draws of the run .* (cannot be read|are not those of its parameters)")


@pytest.mark.parametrize("name", ["draws.csv", "summary.csv"])
def test_short_rows_claim_nothing(crafted, name):
    folder = crafted("csv")
    columns = ",".join(["name", "mu", *(f"a.{i}" for i in range(1, 30_000))])
    (folder / name).write_text(columns + "\n" + "1\n" * 30_000)
    reseal(folder)
    refused(folder, "claims 30,001 rows of 30,001 columns")


def test_other_numbers_of_draws_are_refused(crafted):
    for name in ("netcdf", "zarr"):
        folder = crafted(name)
        reseal(folder, draws=NUM + 1)
        refused(folder, r"has the shape \(1, 20.*expected \(1, 21")


def change(path, act):
    with h5py.File(path, "a") as file:
        act(file)


def replace(file, **how):
    del file["posterior/mu"]
    how.setdefault("shape", (1, NUM))
    file["posterior"].create_dataset("mu", dtype="f8", **how)


def virtual(file):
    layout = h5py.VirtualLayout((1, NUM), "f8")
    layout[:] = h5py.VirtualSource("/etc/hostname", "x", (1, NUM))
    del file["posterior/mu"]
    file["posterior"].create_virtual_dataset("mu", layout)


def linked(link):
    def act(file):
        del file["posterior/mu"]
        file["posterior/mu"] = link

    return act


def many_names(file):
    file["posterior/big"] = np.zeros((1, 2**20))
    for i in range(200):
        file[f"posterior/b{i}"] = file["posterior/big"]


def one_long_text(file):
    """Let many places hold the same text, which is stored once."""
    num = 1000
    texts = file.create_dataset("posterior/labels", (num,), h5py.string_dtype())
    texts[:] = ["x" * 10**6] + ["y"] * (num - 1)
    offset, path = texts.id.get_offset(), file.filename
    file.close()
    with open(path, "r+b") as raw:
        raw.seek(offset)
        reference = raw.read(16)
        raw.seek(offset)
        raw.write(reference * num)


def nested(file):
    file["posterior/again"] = file["posterior"]


def of_objects(file):
    file["posterior"].create_dataset("references", (3,), dtype=h5py.ref_dtype)


def texts_of_attributes(file):
    file["posterior"].attrs["labels"] = ["a", "b"]


HDF5 = {
    "external storage": (lambda f: replace(f, external=[("/etc/hostname", 0, 8 * NUM)]), "stored in another file"),
    "virtual": (virtual, "stored in another file"),
    "external link": (linked(h5py.ExternalLink("/tmp/other.h5", "/x")), "is a link"),
    "soft link": (linked(h5py.SoftLink("/posterior/mu")), "is a link"),
    "sparse": (lambda f: f["posterior"].create_dataset("big", (1, NUM, 10**9), "f8", chunks=(1, 1, 10)), "claim more"),
    "other shape": (
        lambda f: replace(f, shape=(1, 10**6), chunks=(1, 10)),
        r"shape \(1, 1000000\), expected \(1, 20\)",
    ),
    "filter": (lambda f: replace(f, compression="gzip"), "has filters"),
    "many names": (many_names, "claim more"),
    "long texts": (one_long_text, "claim more"),
    "nested": (nested, "nested too deeply"),
    "references": (of_objects, "holds object"),
    "texts": (texts_of_attributes, "has 2 texts"),
}


@pytest.mark.parametrize("name", HDF5)
def test_hdf5_is_plain_arrays_in_one_file(crafted, name):
    folder = crafted("netcdf")
    act, says = HDF5[name]
    change(folder / "draws.nc", act)
    reseal(folder)
    refused(folder, says)


class Harm:
    def __reduce__(self):
        return os.mkdir, ("harm",)


def described(folder, array="posterior/mu", both=True, **changes):
    """Change the description of an array, in its own file and in the summary."""
    path = folder / "draws.zarr" / array / ".zarray"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    if both:
        path = folder / "draws.zarr" / ".zmetadata"
        summary = json.loads(path.read_text())
        summary["metadata"][f"{array}/.zarray"] |= changes
        path.write_text(json.dumps(summary))


ZARR = {
    "pickle": ({"filters": [{"id": "pickle"}], "dtype": "|O"}, "has filters"),
    "object codec": ({"filters": [{"id": "vlen-utf8"}], "dtype": "|O"}, "has filters"),
    "objects": ({"dtype": "|O"}, r"holds '\|O'"),
    "fields": ({"dtype": [["a", "<f8"]]}, "has fields"),
    "codec": ({"compressor": {"id": "lzma"}}, "is compressed by 'lzma'"),
    "pickle as compressor": ({"compressor": {"id": "pickle"}}, "is compressed by 'pickle'"),
    "format": ({"zarr_format": 3}, "another format"),
    "separator": ({"dimension_separator": "/"}, "another format"),
    "size": ({"shape": [1, 10**12]}, "claim .* bytes"),
    "chunks": ({"chunks": [1, 10**12]}, "in chunks"),
    "negative": ({"shape": [1, -20]}, "in chunks"),
    "type": ({"dtype": "<f4"}, "another size than 80"),
    "no mapping": ({"compressor": "pickle"}, "cannot be read"),
}


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("name", ZARR)
def test_zarr_is_plain_arrays(crafted, name, both, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = crafted("zarr")
    changes, says = ZARR[name]
    described(folder, both=both, **changes)
    if "pickle" in name:
        (folder / "draws.zarr" / "posterior" / "mu" / "0.0").write_bytes(pickle.dumps(Harm()))
    reseal(folder)
    refused(folder, says)
    assert not (tmp_path / "harm").exists()


def test_chunks_unpack_to_their_size(crafted):
    folder = crafted("zarr")
    chunk = folder / "draws.zarr" / "posterior" / "mu" / "0.0"
    content = bytearray(chunk.read_bytes())
    content[4:8] = (2**31).to_bytes(4, "little")
    chunk.write_bytes(content)
    reseal(folder)
    refused(folder, "another size than 160 bytes")
    chunk.write_bytes(b"short")
    reseal(folder)
    refused(folder, "another size than 160 bytes")


@pytest.mark.parametrize("name", ["zarr.json", "code.py"])
def test_other_files_in_zarr_are_refused(crafted, name):
    folder = crafted("zarr")
    (folder / "draws.zarr" / "posterior" / name).write_text("{}")
    reseal(folder)
    refused(folder, f"contains '{name}'")


@pytest.mark.parametrize("name", ["summary.csv", "draws.csv", POSTERIOR, "diagnostics.json"])
def test_links_and_pipes_are_not_followed(crafted, name, tmp_path):
    folder = crafted("csv")
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    reseal(folder)
    refused(folder, "is a link")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    refused(folder, "neither a file nor a folder")


def test_a_link_in_a_folder_of_draws_is_not_followed(crafted):
    folder = crafted("zarr")
    (folder / "draws.zarr" / "posterior" / "mu" / "0.1").symlink_to("/etc/hostname")
    reseal(folder)
    refused(folder, "is a link")


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


def test_bits_of_hdf5_and_zarr_are_read_or_refused(made, tmp_path):
    content = (made / "netcdf" / "draws.nc").read_bytes()
    rng, path = np.random.default_rng(0), tmp_path / "damaged.nc"
    for bit in rng.choice(8 * len(content), 200, replace=False):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(damaged)
        with contextlib.suppress(Exception):  # of h5py's own, which the caller explains; it must not crash
            check_hdf5(path)
    assert check_zarr(made / "zarr" / "draws.zarr")["posterior/mu"] == (1, NUM)
