"""The digest of code: what changes it, and what does not."""

import pytest

from benchmarks.study import digest


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that writes the modules of a package `ours`, whose digests are wanted."""
    monkeypatch.setitem(digest.ROOTS, "ours", tmp_path)
    monkeypatch.setattr(digest, "DATA", tmp_path / "data")
    (tmp_path / "data").mkdir()

    def write(**modules):
        for name, text in modules.items():
            (tmp_path / f"{name}.py").write_text(text)
        digest.forget()
        return tmp_path

    write(__init__="from ours.deep import depth\n", deep="def depth():\n    return 3\n", other="x = 1\n")
    yield write
    monkeypatch.undo()
    digest.forget()


FITS = "from ours import depth\n\ndef run():\n    return depth()\n"


def test_a_change_of_what_is_imported_changes_the_digest(package):
    package(fits=FITS)
    before = digest.code_digest("ours.fits")
    assert digest.closure(["ours.fits"]) == {"ours.fits", "ours.deep"}
    package(other="x = 2\n")
    assert digest.code_digest("ours.fits") == before
    package(deep="def depth():\n    return 4\n")
    assert digest.code_digest("ours.fits") != before


@pytest.mark.parametrize(
    "text",
    [
        "# Why.\n" + FITS,
        FITS.replace("def run():", "def run():  # now"),
        FITS.replace("    return", '    """Run, but "#" is no comment here.\n\n    Twice."""\n\n    return'),
        '"""Fits."""\n' + FITS,
    ],
)
def test_comments_and_docstrings_do_not_count(package, text):
    package(fits=FITS)
    before = digest.code_digest("ours.fits")
    package(fits=text)
    assert digest.code_digest("ours.fits") == before


def test_a_hash_in_a_string_counts(package):
    package(fits=FITS + "y = '# one'\n")
    before = digest.code_digest("ours.fits")
    package(fits=FITS + "y = '# two'\n")
    assert digest.code_digest("ours.fits") != before


def test_imports_inside_of_functions_count(package):
    package(fits="def run():\n    from ours import other\n    return other.x\n")
    assert digest.closure(["ours.fits"]) == {"ours.fits", "ours.other"}


def test_data_that_the_code_names_count(package):
    place = package(fits="def run():\n    return read('numbers')\n") / "data"
    before = digest.code_digest("ours.fits")
    (place / "unnamed.json").write_text("1")
    digest.forget()
    assert digest.code_digest("ours.fits") == before
    (place / "numbers.json").write_text("1")
    digest.forget()
    assert digest.code_digest("ours.fits") != before


def test_an_unknown_module_is_an_error():
    with pytest.raises(ModuleNotFoundError, match="There is no module numpy of ours"):
        digest.code_digest("numpy")


def test_fits_depend_on_the_library_and_not_on_what_shows_them():
    needed = digest.closure(["benchmarks.study.fits"])
    assert {"bernflow.flows.paper", "bernflow.fit.api", "benchmarks.targets", "benchmarks.families"} <= needed
    assert not any(name.startswith(("bernflow.plots", "bernflow.cli", "bernflow.report")) for name in needed)
