import csv
import gzip
import io
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.melanoma import data
from benchmarks.melanoma.data import load
from benchmarks.melanoma.prepare import prepare
from benchmarks.melanoma.split import PARTS, SIZES, assign, split_by_patient
from benchmarks.melanoma.tables import load_m2, load_m2_draws, load_m3_density
from bernflow.cli import main
from bernflow.errors import ArgumentError, BernflowError, FileFormatError

Image = pytest.importorskip("PIL.Image")
parquet = pytest.importorskip("pyarrow.parquet")

SHARED = Path(__file__).parents[3] / "shared" / "data" / "melanoma"
needs_originals = pytest.mark.skipif(not SHARED.is_dir(), reason="the melanoma data are not here")

# The first is in the paper's test part, at place 3340, the second in its training part, the others are made up.
NAMES = ["ISIC_7543736", "ISIC_7544251", *(f"ISIC_X{i}" for i in range(6))]
HEADER = [
    "image_name",
    "patient_id",
    "sex",
    "age_approx",
    "anatom_site_general_challenge",
    "benign_malignant",
    "target",
]


def picture(i, size=(60, 40)):
    """A picture whose central square has one color and whose margins are black."""
    width, height = size
    side = min(size)
    pixels = np.zeros((height, width, 3), np.uint8)
    left, top = (width - side) // 2, (height - side) // 2
    pixels[top : top + side, left : left + side] = (200, 10 * i, 30)
    return Image.fromarray(pixels)


def rows():
    ages = ["30", "NA", "50", "", "60", "45", "45", "80"]
    sexes = ["male", "female", "", "male", "female", "male", "unknown", "male"]
    return [[n, f"IP_{i // 2}", sexes[i], ages[i], "torso", "benign", str(i % 2)] for i, n in enumerate(NAMES)]


def write_csv(path, table, header=HEADER):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *table])
    return path


@pytest.fixture
def download(tmp_path):
    folder = tmp_path / "train"
    folder.mkdir()
    for i, name in enumerate(NAMES):
        picture(i, (60, 40) if i % 2 else (40, 60)).save(folder / f"{name}.jpg", quality=95)
    return folder, write_csv(tmp_path / "truth.csv", rows())


def quietly_prepare(*args):
    with pytest.warns(UserWarning, match=r"6 of 8 images are not in the paper's split \(first: ISIC_X0\)"):
        return prepare(*args)


def test_prepare_writes_the_layout_of_the_readme(download, tmp_path):
    files = quietly_prepare(*download, tmp_path / "out")
    assert [path.name for path in files] == [f"isic2020-128-{i}of4.parquet" for i in range(4)]
    assert sorted((tmp_path / "out").iterdir()) == files
    tables = [parquet.read_table(path) for path in files]
    assert [table.num_rows for table in tables] == [2, 2, 2, 2]
    first = tables[0].to_pylist()
    assert first[0] | {"jpeg": b""} == {
        "image_name": "ISIC_7543736",
        "patient_id": "IP_0",
        "sex": "male",
        "age_approx": 30.0,
        "anatom_site_general_challenge": "torso",
        "target": 0,
        "lesion_id": None,
        "split": "test",
        "pos_in_split": 3340,
        "jpeg": b"",
    }
    assert first[1]["age_approx"] is None
    assert (first[1]["split"], first[1]["pos_in_split"]) == ("train", 11_250)
    with Image.open(io.BytesIO(first[1]["jpeg"])) as small:
        assert (small.size, small.mode) == ((128, 128), "RGB")
        # No black margin is left; at the edges, JPEG's ringing is.
        assert np.abs(np.asarray(small).astype(int) - (200, 10, 30)).max() < 60


def test_large_pictures_keep_their_center(download, tmp_path):
    folder, truth = download
    ramp = np.zeros((1600, 2400, 3), np.uint8)
    ramp[:, 400:2000] = np.linspace(0, 250, 1600).astype(np.uint8)[None, :, None]
    Image.fromarray(ramp).save(folder / f"{NAMES[0]}.jpg", quality=95)
    jpeg = parquet.read_table(quietly_prepare(folder, truth, tmp_path / "out")[0])["jpeg"][0].as_py()
    with Image.open(io.BytesIO(jpeg)) as small:
        middle = np.asarray(small)[:, 2:-2].mean((0, 2))
    np.testing.assert_allclose(middle, 250 * (np.arange(2, 126) + 0.5) / 128, atol=2.5)


@needs_originals
def test_prepare_writes_the_same_columns_as_the_originals(download, tmp_path):
    ours = parquet.read_schema(quietly_prepare(*download, tmp_path / "out")[0])
    theirs = parquet.read_schema(SHARED / "isic2020-128-0of4.parquet")
    assert [(field.name, field.type) for field in ours] == [(field.name, field.type) for field in theirs]


def test_load_reads_what_prepare_wrote(download, tmp_path, monkeypatch):
    quietly_prepare(*download, tmp_path / "out")
    melanoma = load(tmp_path / "out", cache=tmp_path / "cache")
    assert len(melanoma) == 8
    assert melanoma.images.shape == (8, 128, 128, 3)
    assert melanoma.images.dtype == np.uint8
    order = [PARTS.index(part) for part in melanoma.split]
    assert order == sorted(order)
    place = [NAMES.index(name) for name in melanoma.image_name]
    assert np.abs(melanoma.images[:, 64, 64, 1] - 10.0 * np.array(place)).max() < 12
    assert melanoma.target.tolist() == [i % 2 for i in place]
    assert melanoma.age_missing.tolist() == [i in (1, 3) for i in place]
    np.testing.assert_allclose(melanoma.age[place.index(1)], np.mean([30, 50, 60, 45, 45, 80]))
    assert melanoma.sex[place.index(2)] == melanoma.sex[place.index(6)] == "unknown"
    for part in PARTS:
        here = melanoma.rows(part)
        assert (melanoma.split[here] == part).all()
        if len(set(melanoma.age[here])) > 1:
            np.testing.assert_allclose(melanoma.age_std[here].mean(), 0.0, atol=1e-12)
            np.testing.assert_allclose(melanoma.age_std[here].std(), 1.0)
    # A second time nothing is decoded.
    monkeypatch.setattr(data, "_decode", None)
    again = load(tmp_path / "out", cache=tmp_path / "cache")
    assert isinstance(again.images, np.memmap)
    np.testing.assert_array_equal(again.images, melanoma.images)


def test_a_damaged_cache_is_made_again(download, tmp_path, monkeypatch):
    quietly_prepare(*download, tmp_path / "out")
    monkeypatch.setenv("BERNFLOW_CACHE", str(tmp_path / "cache"))
    images = np.array(load(tmp_path / "out").images)
    (file,) = (tmp_path / "cache").iterdir()
    file.unlink()
    file.write_bytes(b"damaged")
    np.testing.assert_array_equal(load(tmp_path / "out").images, images)


def test_the_cache_is_in_the_users_folder_unless_told(monkeypatch):
    monkeypatch.delenv("BERNFLOW_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert data.cache_folder() == Path("/caches/bernflow")
    monkeypatch.setenv("BERNFLOW_CACHE", "/mine")
    assert data.cache_folder() == Path("/mine")
    assert data.cache_folder("/other") == Path("/other")


def test_a_cache_that_cannot_be_written(download, tmp_path):
    quietly_prepare(*download, tmp_path / "out")
    (tmp_path / "file").touch()
    with pytest.raises(BernflowError, match=r"cannot be written to .*file.*cache= or by \$BERNFLOW_CACHE"):
        load(tmp_path / "out", cache=tmp_path / "file")


def test_load_says_what_is_missing(download, tmp_path):
    with pytest.raises(
        ArgumentError, match=r"has no files isic2020-128-0of4\.parquet and so on: `bernflow data melanoma"
    ):
        load(tmp_path)
    files = quietly_prepare(*download, tmp_path / "out")
    files[2].rename(tmp_path / "kept")
    with pytest.raises(ArgumentError, match=r"lacks isic2020-128-2of4\.parquet"):
        load(tmp_path / "out")
    files[2].write_bytes(b"nothing")
    with pytest.raises(FileFormatError, match=r"2of4\.parquet cannot be read as a parquet file"):
        load(tmp_path / "out")
    (tmp_path / "kept").rename(files[2])
    with pytest.raises(ArgumentError, match="part='training' is unknown: expected one of train, valid, test"):
        load(tmp_path / "out", cache=tmp_path).rows("training")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: [r[:-1] for r in t], r"has no column target: .* its columns are image_name"),
        (lambda t: [t[0]], "has no rows below its header"),
        (lambda t: [*t, t[1]], "has 1 image names more than once, such as ISIC_7543736"),
        (lambda t: [*t[:2], [*t[2][:-1], "2"]], "line 3: target is '2', expected 0 or 1"),
        (lambda t: [*t[:2], [*t[2][:-1], "yes"]], "line 3: target is 'yes', expected a number"),
        (lambda t: [*t[:2], [*t[2][:3], "old", *t[2][4:]]], "line 3: age_approx is 'old', expected a number"),
        (lambda t: [*t[:2], ["", *t[2][1:]]], "line 3: image_name or patient_id is missing"),
    ],
)
def test_prepare_refuses_a_wrong_table(download, tmp_path, change, message):
    header, *table = change([HEADER, *rows()])
    with pytest.raises(FileFormatError, match=message):
        prepare(download[0], write_csv(tmp_path / "wrong.csv", table, header), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_prepare_refuses_missing_and_unreadable_pictures(download, tmp_path):
    folder, truth = download
    out = tmp_path / "out"
    with pytest.raises(ArgumentError, match="nowhere is not a folder: expected the challenge's training pictures"):
        prepare(tmp_path / "nowhere", truth, out)
    with pytest.raises(ArgumentError, match="nothing is not a file: expected the challenge's ground truth"):
        prepare(folder, tmp_path / "nothing", out)
    jpeg = folder / "ISIC_X3.jpg"
    whole = jpeg.read_bytes()
    jpeg.write_bytes(whole[: len(whole) // 2])
    with (
        pytest.warns(UserWarning, match="6 of 8"),
        pytest.raises(FileFormatError, match=r"ISIC_X3\.jpg cannot be read as a JPEG picture: .*[Tt]runcated"),
    ):
        prepare(folder, truth, out)
    jpeg.unlink()
    with pytest.raises(ArgumentError, match=r"lacks 1 of the 8 pictures of the ground truth, such as ISIC_X3.jpg"):
        prepare(folder, truth, out)
    assert not out.exists()


def test_a_failed_write_leaves_nothing(download, tmp_path, monkeypatch):
    write, calls = parquet.write_table, []

    def fail_third(*args, **kwargs):
        calls.append(args)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        write(*args, **kwargs)

    monkeypatch.setattr(parquet, "write_table", fail_third)
    with pytest.warns(UserWarning, match="6 of 8"), pytest.raises(OSError, match="No space left"):
        prepare(*download, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("module", "package"), [("pyarrow", "pyarrow"), ("PIL.Image", "pillow")])
def test_a_missing_package_is_named_with_the_extra(download, tmp_path, monkeypatch, module, package):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(BernflowError, match=rf"need the package {package} .* pip install 'bernflow\[images\]'"):
        prepare(*download, tmp_path / "out")


def test_command(download, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["data", "melanoma", *map(str, download), "--out", str(out), "--quiet"]) == 0
    printed, err = capsys.readouterr()
    assert err == ""
    note, *files = printed.splitlines()
    assert note.startswith("Note: 6 of 8 images are not in the paper's split")
    assert files == [str(out / f"isic2020-128-{i}of4.parquet") for i in range(4)]


def test_command_explains_failures(download, tmp_path, capsys):
    assert main(["data", "melanoma", str(tmp_path / "nowhere"), str(download[1])]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"bernflow: {tmp_path / 'nowhere'} is not a folder: expected")
    assert "https://challenge2020.isic-archive.com" in err
    assert main(["data", "diamonds", "a", "b"]) == 2


def test_unknown_names_get_a_part_in_the_papers_proportions():
    part, place, num_unknown = assign([f"other{i}" for i in range(5000)])
    assert num_unknown == 5000
    for name in PARTS:
        share = SIZES[name] / sum(SIZES.values())
        # Five standard errors: the names are fixed, so that this passes always or never.
        assert abs((part == name).mean() - share) < 5 * np.sqrt(share / 5000)
        np.testing.assert_array_equal(place[part == name], SIZES[name] + np.arange((part == name).sum()))
    assert assign(["ISIC_7543736", "ISIC_75437361"])[2] == 1


def test_split_by_patient_keeps_sizes_and_spreads_melanomas():
    rng = np.random.default_rng(1)
    patient = np.repeat([f"IP_{i}" for i in range(400)], rng.integers(2, 40, 400))
    target = (rng.random(len(patient)) < 0.02).astype(int)
    sizes = {"train": len(patient) * 64 // 100, "valid": len(patient) * 16 // 100}
    sizes["test"] = len(patient) - sum(sizes.values())
    split = split_by_patient(patient, target, sizes)
    assert {part: int((split == part).sum()) for part in PARTS} == sizes
    for part, size in sizes.items():
        assert not set(patient[split == part]) & set(patient[split != part])
        assert abs(target[split == part].sum() - target.sum() * size / len(patient)) <= 3
    order = rng.permutation(len(patient))
    np.testing.assert_array_equal(split_by_patient(patient[order], target[order], sizes), split[order])


def test_split_by_patient_with_one_patient_does_what_it_can():
    split = split_by_patient(np.array(["a"] * 5), np.zeros(5), {"train": 3, "valid": 1, "test": 1})
    assert len(set(split)) == 1


def test_tables_are_those_of_the_paper():
    train, test = load_m2()
    assert (len(train.age), len(test.age)) == (SIZES["train"], SIZES["test"])
    assert (int(train.target.sum()), int(test.target.sum())) == (377, 116)
    np.testing.assert_allclose(train.age.mean(), 0.0, atol=1e-12)
    draws = load_m2_draws()
    assert draws.beta.shape == draws.beta0.shape == (2000,)
    # Four standard errors of the mean of 2,000 nearly independent draws.
    assert abs(draws.beta.mean() - draws.mean[0]) < 4 * draws.sd[0] / np.sqrt(2000)
    density = load_m3_density()
    np.testing.assert_allclose(np.trapezoid(density.density, density.x), 1.0, atol=1e-3)
    assert not any(array.flags.writeable for array in (*train, *test, *draws, *density))


@needs_originals
def test_tables_against_the_originals():
    for name, table in zip(("train", "test"), load_m2(), strict=True):
        original = np.loadtxt(SHARED / f"m2_{name}.csv", delimiter=",", skiprows=1)
        np.testing.assert_array_equal(table.age, original[:, 1])
        np.testing.assert_array_equal(table.target, original[:, 2])
    with gzip.open(SHARED / "m2_mcmc.csv.gz") as file:
        nuts = np.loadtxt(file, delimiter=",", skiprows=1)[:, :2]
    draws = load_m2_draws()
    np.testing.assert_allclose(np.stack([draws.beta, draws.beta0], 1), nuts[::10], rtol=1e-7)
    np.testing.assert_allclose(draws.mean, nuts.mean(0), rtol=1e-12)
    np.testing.assert_allclose(draws.sd, nuts.std(0, ddof=1), rtol=1e-12)
    curve = np.loadtxt(SHARED / "m3_slope_density.csv", delimiter=",", skiprows=1)
    density = load_m3_density()
    # Between the points that were kept, straight lines lose little.
    np.testing.assert_allclose(
        np.interp(curve[:, 0], density.x, density.density), curve[:, 1], atol=2e-3 * curve[:, 1].max()
    )


@needs_originals
def test_the_papers_split_against_the_originals(monkeypatch):
    monkeypatch.setattr(data, "_decoded", lambda *args: np.zeros(0, np.uint8))
    melanoma = load(SHARED)
    assert len(melanoma) == 33_126
    part, place, num_unknown = assign(melanoma.image_name.tolist())
    assert num_unknown == 0
    np.testing.assert_array_equal(part, melanoma.split)
    for name in PARTS:
        np.testing.assert_array_equal(place[melanoma.rows(name)], np.arange(SIZES[name]))
    for name, table in zip(("train", "test"), load_m2(), strict=True):
        np.testing.assert_allclose(melanoma.age_std[melanoma.rows(name)], table.age, atol=1e-12)
        np.testing.assert_array_equal(melanoma.target[melanoma.rows(name)], table.target)
    apart = melanoma.by_patient()
    for name in PARTS:
        here, others = apart.split == name, apart.split != name
        assert here.sum() == SIZES[name]
        assert not set(apart.patient_id[here]) & set(apart.patient_id[others])
        assert abs(apart.target[here].sum() - 584 * SIZES[name] / 33_126) < 5
        np.testing.assert_allclose(apart.age_std[here].std(), 1.0)
