import hashlib
import io
import json
import os
import pickle
import re
import tracemalloc
import zipfile

import equinox as eqx
import jax
import numpy as np
import pytest
from numpyro.distributions import constraints

from bernflow.errors import ArgumentError, FileFormatError, ModelError
from bernflow.flows.families import build as build_family
from bernflow.models.base import Site
from bernflow.posterior import archive, container, load


@pytest.fixture
def saved(make, build, tmp_path):
    post = make(shift=0.1)
    return post, post.save(tmp_path / "post.bernflow")


def rewrite(path, manifest=None, members=None, compression=zipfile.ZIP_STORED):
    """Write the file again with an edited manifest and edited members."""
    with zipfile.ZipFile(path) as file:
        content = {name: file.read(name) for name in file.namelist()}
    described = json.loads(content["manifest.json"])
    if manifest:
        manifest(described)
    content["manifest.json"] = json.dumps(described).encode()
    content |= members or {}
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, value in content.items():
            if value is not None:
                file.writestr(name, value)
        file.comment = container.UNSEALED
    with open(path, "r+b") as file:
        container.seal(file)


def test_round_trip(saved):
    post, path = saved
    again = load(path)
    for name in post.names:
        np.testing.assert_array_equal(again.draws(50)[name], post.draws(50)[name])
    theta = post.draws(20)
    np.testing.assert_array_equal(again.log_prob(theta), post.log_prob(theta))
    assert again.diagnostics == post.diagnostics
    assert again.settings == post.settings
    assert again.layout.names == post.layout.names
    for name, values in post.history.items():
        np.testing.assert_array_equal(again.history[name], values)
    assert list(again.summary().index) == ["mu", "twice", "s[0]", "s[1]"]
    assert repr(again) == repr(post)
    assert set(again.to_arviz(10, kind="datatree").children) == {"posterior", "sample_stats"}


def test_round_trip_in_single_precision_with_odd_numbers(make, build, tmp_path):
    settings = {"precision": "float32", "limit": np.inf, "sizes": (1, np.int64(2)), "none": None}
    post = make(precision="float32", settings=settings)
    again = load(post.save(tmp_path / "p"))
    assert again.settings == {"precision": "float32", "limit": np.inf, "sizes": [1, 2], "none": None}
    np.testing.assert_array_equal(again.draws(5)["s"], post.draws(5)["s"])


def as_before_findings(manifest):
    """Describe a verdict as files of earlier versions do: by its sentence."""
    spec = manifest["diagnostics"]
    del spec["findings"]
    spec.update(verdict="poor", status="Poor (k-hat 2.00): as it was said.", improper="b[0]")


def test_a_file_of_an_earlier_version_keeps_its_verdict(saved):
    post, path = saved
    rewrite(path, as_before_findings)
    again = load(path)
    found = again.diagnostics
    assert (found.verdict, found.improper) == ("poor", "b[0]")
    assert found.status == "Poor (k-hat 2.00): as it was said."
    assert (found.khat, found.elbo, found.missing_mass) == tuple(
        getattr(post.diagnostics, name) for name in ("khat", "elbo", "missing_mass")
    )
    assert "proper prior" in again.advice[1]
    assert load(again.save(path)).diagnostics == found


def test_without_model_the_rest_says_what_to_do(saved):
    again = load(saved[1])
    for call in (
        lambda: again.draws(5, weighted=True),
        lambda: again.predict(),
        lambda: again.log_weights(),
        lambda: again.refine(),
    ):
        with pytest.raises(ArgumentError, match=r"needs the model, .*: pass it to bf\.load\(path, model=\.\.\.\)"):
            call()


def test_with_model_everything_works(saved, conjugate):
    post, path = saved
    again = load(path, model=conjugate(), refiner=lambda post, steps, **more: steps)
    np.testing.assert_array_equal(again.log_weights(30), post.log_weights(30))
    np.testing.assert_array_equal(again.draws(30, weighted=True)["mu"], post.draws(30, weighted=True)["mu"])
    np.testing.assert_array_equal(again.predict(num=3)["y"], post.predict(num=3)["y"])
    assert again.refine(steps=3) == 3


@pytest.mark.parametrize(
    "site",
    [
        Site("t", (2,), constraints.positive),
        Site("s", (3,), constraints.positive),
        Site("s", (2,), constraints.softplus_positive),
    ],
    ids=["name", "shape", "support"],
)
def test_another_model_is_refused(saved, conjugate, site):
    with pytest.raises(ArgumentError, match=r"the saved posterior has mu .* Pass the model that was fitted"):
        load(saved[1], model=conjugate(sites=(Site("mu", (), constraints.real), site)))


def test_what_is_no_model_is_refused(saved):
    with pytest.raises(ArgumentError, match=r"load\(model=\.\.\.\): expected a bernflow model, got function"):
        load(saved[1], model=lambda: None)


def test_a_support_that_depends_on_parameters_needs_the_model(make, conjugate, build, tmp_path):
    # The layout then cannot know that s is a scale, so mu comes first: only the file is tested here.
    model = conjugate(sites=(Site("mu", (), constraints.real), Site("s", (2,), None)))
    post = make(model=model)
    path = post.save(tmp_path / "p")
    with pytest.raises(ModelError, match=r"The map from R\^p to the parameters is known only to the model"):
        load(path).log_prob(post.draws(5))
    np.testing.assert_array_equal(load(path, model=model).draws(5)["s"], post.draws(5)["s"])
    np.testing.assert_allclose(post.log_prob(post.draws(5)), load(path, model=model).log_prob(post.draws(5)))


def test_missing_wrong_and_truncated_files(saved, tmp_path):
    with pytest.raises(FileFormatError, match=r"does not exist: expected a file written by post\.save"):
        load(tmp_path / "nowhere")
    path = saved[1]
    whole = path.read_bytes()
    for content in (b"", b"hello", pickle.dumps({"a": 1}), whole[: len(whole) // 2], whole[:-30]):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match="is not a saved posterior, or it is damaged"):
            load(path)


def test_a_flipped_byte_is_found(saved):
    path = saved[1]
    content = bytearray(path.read_bytes())
    content[content.index(b"NUMPY") + 130] ^= 1
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="damaged"):
        load(path)


def test_checksums_are_verified(saved):
    rewrite(saved[1], lambda m: m["sha256"].update({"flow_0000.npy": "0" * 64}))
    with pytest.raises(FileFormatError, match=r"the checksum of flow_0000\.npy is wrong"):
        load(saved[1])


def test_newer_format_is_refused(saved):
    rewrite(saved[1], lambda m: m.update(format_version=99, bernflow_version="9.9"))
    with pytest.raises(FileFormatError, match=r"format version 99, written by bernflow 9\.9.*install a newer bernflow"):
        load(saved[1])


def test_older_format_is_refused(saved):
    rewrite(saved[1], lambda m: m.update(format_version=1, bernflow_version="0.0"))
    with pytest.raises(FileFormatError, match=r"format version 1, written by bernflow 0\.0.*fit and save it again"):
        load(saved[1])


def test_other_formats_are_refused(saved):
    rewrite(saved[1], lambda m: m.update(format="something"))
    with pytest.raises(FileFormatError, match="contains 'something': expected 'bernflow-posterior'"):
        load(saved[1])


@pytest.mark.parametrize("name", ["evil.pkl", "../outside.npy", "/etc/outside.npy", "a\\b.npy", "ä.npy", ".npy"])
def test_odd_names_are_refused(saved, name):
    digest = hashlib.sha256(b"x").hexdigest()
    rewrite(saved[1], lambda m: m["sha256"].update({name: digest}), {name: b"x"})
    with pytest.raises(FileFormatError, match="damaged .it contains a member called '" + re.escape(repr(name)[1:-1])):
        load(saved[1])


def test_unknown_members_are_refused(saved):
    rewrite(saved[1], members={"more.npy": b"x"})
    with pytest.raises(FileFormatError, match=r"its contents differ from its manifest \(\['more.npy'\]\)"):
        load(saved[1])


def test_missing_members_are_refused(saved):
    rewrite(saved[1], members={"flow_0001.npy": None})
    with pytest.raises(FileFormatError, match="its contents differ from its manifest"):
        load(saved[1])


def test_a_name_twice_is_refused(saved):
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(saved[1], "a") as file:
        file.writestr("flow_0000.npy", b"x")
    with pytest.raises(FileFormatError, match="damaged"):
        load(saved[1])


def test_compressed_members_are_refused(saved):
    rewrite(saved[1], compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(FileFormatError, match="it contains compressed members"):
        load(saved[1])


def test_manifest_must_be_there_and_readable(saved):
    rewrite(saved[1], members={"manifest.json": b"{"})
    with pytest.raises(FileFormatError, match="its manifest cannot be read"):
        load(saved[1])
    with zipfile.ZipFile(saved[1], "w") as file:
        file.writestr("other.npy", b"")
    with pytest.raises(FileFormatError, match=r"it has no manifest\.json"):
        load(saved[1])


def test_incomplete_manifest(saved):
    rewrite(saved[1], lambda m: m.pop("sites"))
    with pytest.raises(FileFormatError, match=r"damaged \(KeyError: 'sites'"):
        load(saved[1])


def test_unknown_support_in_a_file(saved):
    rewrite(saved[1], lambda m: m["sites"][0].update(support={"kind": "torus"}))
    with pytest.raises(FileFormatError, match="names a support 'torus' that this bernflow does not know"):
        load(saved[1])


def test_arrays_must_fit_the_recipe(saved):
    rewrite(saved[1], lambda m: m["recipe"].update(dim=4))
    with pytest.raises(FileFormatError, match=r"the arrays of the flow are .*\(3,\).*expected .*\(4,\)"):
        load(saved[1])


@pytest.mark.parametrize("values", [np.array([{"a": 1}], dtype=object), None], ids=["object", "shape"])
def test_array_headers_are_not_trusted(saved, values):
    buffer = io.BytesIO()
    if values is None:
        np.lib.format.write_array_header_1_0(buffer, {"descr": "<f8", "fortran_order": False, "shape": (10**12,)})
    else:
        np.save(buffer, values, allow_pickle=True)
    content = buffer.getvalue()
    digest = hashlib.sha256(content).hexdigest()
    rewrite(saved[1], lambda m: m["sha256"].update({"flow_0000.npy": digest}), {"flow_0000.npy": content})
    with pytest.raises(FileFormatError, match="an array does not have the size of"):
        load(saved[1])


def outcome(path):
    """Return all of a posterior that was read, or None for a readable refusal."""
    try:
        post = load(path)
    except FileFormatError:
        return None
    arrays = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(post.distribution)]
    history = {name: values.tobytes() for name, values in post.history.items()}
    return arrays, history, post.settings, post.diagnostics, repr(post.layout.sites), post.distribution.recipe()


def test_a_damaged_file_is_refused_or_harmless(saved):
    path = saved[1]
    content, whole = path.read_bytes(), outcome(path)
    rng = np.random.default_rng(0)
    # Every kind of byte: bits anywhere, and of the directory at the end, whose fields zip readers trust.
    bits = [*rng.choice(8 * len(content), 400, replace=False), *rng.choice(8 * 600, 400, replace=False) - 8 * 600]
    assert whole is not None
    for bit in bits:
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << (bit % 8)
        path.write_bytes(damaged)
        assert outcome(path) is None
    for length in {*rng.integers(0, len(content), 100), 0, 1, len(content) - 1}:
        path.write_bytes(content[:length])
        assert outcome(path) is None
    for start in rng.integers(0, len(content), 50):  # whole blocks of a disk
        path.write_bytes(content[:start] + bytes(len(content[start : start + 512])) + content[start + 512 :])
        assert outcome(path) in (None, whole)


@pytest.mark.parametrize("kind", ["overlapping", "too large"])
def test_nothing_unpacks_to_more_than_the_file(saved, kind):
    path = saved[1]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("big.npy", bytes(100_000))
        if kind == "overlapping":  # a thousand names of the same bytes
            info = file.getinfo("big.npy")
            for i in range(1000):
                other = zipfile.ZipInfo(f"big{i}.npy")
                other.header_offset, other.CRC = info.header_offset, info.CRC
                other.file_size = other.compress_size = info.file_size
                file.filelist.append(other)
        else:
            info = file.getinfo("big.npy")
            info.file_size = info.compress_size = 2**31
    path.write_bytes(buffer.getvalue())
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match="its members claim to be larger than the file"):
            load(path)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda m: m["recipe"].update(dim=10**12), r"would have 1000000000000 dimensions.*the file has 6 numbers"),
        (lambda m: m["recipe"].update(dim=3, outer="triangular"), "would have 3 dimensions"),
        (lambda m: m["recipe"].update(width=10**6), "width 1000000"),
        (lambda m: m["recipe"].update(order=10**6), "order 1000000"),
        (lambda m: m["recipe"].update(order=-1), "order -1"),
        (lambda m: m.update(recipe={"components": [{"dim": 7}]}), "would have 7 dimensions"),
        (lambda m: m.update(recipe="gaussian"), "damaged .AttributeError"),
        (lambda m: m["diagnostics"]["findings"][0].update(level="<b>"), "the level of a finding is '<b>'"),
        (lambda m: m["diagnostics"]["findings"][0].update(kind="<b>"), "the kind of a finding is '<b>'"),
        (
            lambda m: m["diagnostics"]["findings"][0].update(figures={"share": "all"}),
            "could not convert string to float",
        ),
        (lambda m: m["diagnostics"].update(findings=[]), "no finding"),
        (lambda m: m["diagnostics"].update(khat="low"), "could not convert string to float"),
        (lambda m: m["diagnostics"].update(more=1), "unexpected keyword argument 'more'"),
        (lambda m: m["sites"][0].update(shape=[7]), "its parameters have 9 dimensions and its flow 3"),
        (lambda m: m.update(precision="float16"), "precision='float16' is unknown: expected one of float32, float64"),
        (lambda m: m.update(settings=[1]), "damaged .TypeError"),
        (lambda m: m["history"].update(elbo="../elbo.npy"), "KeyError: '../elbo'"),
    ],
)
def test_what_a_manifest_claims_is_checked(saved, change, says):
    rewrite(saved[1], change)
    with pytest.raises(FileFormatError, match=says):
        load(saved[1])


def test_nested_json_is_refused(saved):
    rewrite(saved[1], members={"manifest.json": b"[" * 200_000})
    with pytest.raises(FileFormatError, match=r"its manifest cannot be read .RecursionError"):
        load(saved[1])


@pytest.mark.parametrize("header", ["(" * 9000, "-" * 9000 + "1", "{'descr': '<f8', 'shape': (1,", "\x00", "[]"])
def test_made_up_array_headers_are_refused(saved, header):
    text = header.encode() + b"\n"
    content = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    digest = hashlib.sha256(content).hexdigest()
    rewrite(saved[1], lambda m: m["sha256"].update({"flow_0000.npy": digest}), {"flow_0000.npy": content})
    with pytest.raises(FileFormatError, match="damaged"):
        load(saved[1])


def test_what_is_no_file_is_refused(tmp_path):
    with pytest.raises(FileFormatError, match=r"is a folder: expected a file written by post.save\(path\)\."):
        load(tmp_path)
    (tmp_path / "posterior.bernflow").touch()
    with pytest.raises(FileFormatError, match=r"is a folder: expected a file, such as .*posterior.bernflow\."):
        load(tmp_path)
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer forever
    with pytest.raises(FileFormatError, match=r"damaged .it is not a file"):
        load(tmp_path / "pipe")


def test_saving_is_all_or_nothing(saved, make, monkeypatch, tmp_path):
    path = saved[1]
    before = path.read_bytes()
    monkeypatch.setattr(archive.os, "fsync", lambda _: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        make().save(path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == [path.name]


def test_saving_refuses(make, tmp_path):
    with pytest.raises(ArgumentError, match=r"the folder .*none.* does not exist: create it first"):
        make().save(tmp_path / "none" / "post")
    with pytest.raises(ArgumentError, match=r"manifest\.settings\.f cannot be saved: function is not JSON"):
        make(settings={"f": lambda: 0, "precision": "float64"}).save(tmp_path / "post")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_real_flows_are_rebuilt_from_their_recipe(make, tmp_path, precision):
    with jax.enable_x64(precision == "float64"):
        recipe = {"kind": "bernstein", "dim": 3, "order": 5, "noise": "normal", "width": 4, "skip": True}
        flow = build_family({**recipe, "outer": "triangular"})
        # Every array away from its start, so that a skeleton alone would not pass.
        flow = jax.tree.map(lambda a: a * 1.01 if eqx.is_inexact_array(a) else a, flow)
    post = make(precision=precision)
    post.distribution = flow
    again = load(post.save(tmp_path / "post"))
    assert again.distribution.recipe() == flow.recipe()
    np.testing.assert_array_equal(again.draws(20)["s"], post.draws(20)["s"])
    np.testing.assert_array_equal(again.log_prob(post.draws(20)), post.log_prob(post.draws(20)))


def test_a_record_is_all_but_the_flow(make, tmp_path, monkeypatch):
    post = make()
    path = post.save(tmp_path / "fit.bernflow")
    # Not built: for some posteriors that needs the model.
    monkeypatch.setattr(archive, "_build", lambda recipe: 1 / 0)
    record = archive.read_record(path)
    assert record.sites == post.layout.sites
    assert record.diagnostics == post.diagnostics
    assert record.settings == post.settings
    np.testing.assert_array_equal(record.history["elbo"], post.history["elbo"])
    path.write_bytes(b"no zip file")
    with pytest.raises(FileFormatError, match="is not a saved posterior, or it is damaged"):
        archive.read_record(path)


REAL = {"kind": "real"}


@pytest.mark.parametrize(
    "support",
    [
        {"kind": "interval", "lower_bound": "a", "upper_bound": 1.0},
        {"kind": "interval", "lower_bound": 1.0, "upper_bound": 0.0},
        {"kind": "interval", "lower_bound": {"float": "nan"}, "upper_bound": 0.0},
        {"kind": "interval", "lower_bound": [0.0] * 100_000, "upper_bound": 1.0},
        {"kind": "interval", "lower_bound": [0.0, 0.0], "upper_bound": [1.0, 1.0]},
        {"kind": "greater_than", "lower_bound": {}},
        {"kind": "greater_than", "lower_bound": None},
        {"kind": "independent", "base": None, "num_dims": 1},
        {"kind": "independent", "base": REAL, "num_dims": -1},
        {"kind": "independent", "base": REAL, "num_dims": 10**9},
        {"kind": "zero_sum", "event_dim": -1},
        {"kind": "zero_sum", "event_dim": 10**12},
        {"kind": "corr_cholesky"},
        {"kind": "simplex"},
        {"kind": ["real"]},
        [1],
        "real",
    ],
    ids=str,
)
def test_made_up_supports_are_refused(saved, support):
    rewrite(saved[1], lambda m: m["sites"][0].update(support=support))
    with pytest.raises(FileFormatError, match=re.escape(str(saved[1]))):
        load(saved[1])


@pytest.mark.parametrize("every", [41, pytest.param(7, marks=pytest.mark.slow)])
def test_a_flipped_byte_never_loads(saved, every):
    """Bytes of a small file: also those of names, dates and sentences, which no format needs."""
    path = saved[1]
    content = path.read_bytes()
    for place in {*range(0, len(content), every), *range(len(content) - 300, len(content))}:
        damaged = bytearray(content)
        damaged[place] ^= 0x20  # the other case of a letter
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError):
            load(path)


def test_what_a_file_says_is_not_obeyed_by_a_terminal(saved):
    def edit(manifest):
        manifest["diagnostics"]["findings"][0]["cause"] = "\x1b]0;title\x07\x1b[2JGood\u202e"
        manifest["bernflow_version"] = "\x1b[31m9"

    rewrite(saved[1], edit)
    shown = repr(load(saved[1]))
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert r"\x1b[2JGood\u202e" in shown
    rewrite(saved[1], lambda m: m.update(format_version=99))
    with pytest.raises(FileFormatError, match=r"written by bernflow \\x1b\[31m9"):
        load(saved[1])
