import json

import numpy as np
import pytest

from bernflow.sealed import read_sealed, sealed_text

VALUE = {"a": 1.5, "b": np.arange(3), "c": {"d": float("inf"), "e": None, "ü": "text"}}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "note.json"
    path.write_text(sealed_text(VALUE), encoding="utf-8")
    return path


def test_what_was_sealed_is_read(path):
    assert read_sealed(path) == {"a": 1.5, "b": [0, 1, 2], "c": {"d": "inf", "e": None, "ü": "text"}}


def test_other_spaces_are_no_damage(path):
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")
    assert read_sealed(path)["a"] == 1.5


@pytest.mark.parametrize("content", ["", "[1]", "{}", "3", "[" * 100_000, '{"a": 1}'])
def test_what_is_not_sealed_is_refused(path, content):
    path.write_text(content)
    with pytest.raises(ValueError, match=r"note\.json is not JSON with a checksum"):
        read_sealed(path)


def test_changes_are_found(path):
    path.write_text(path.read_text(encoding="utf-8").replace("1.5", "1.6"), encoding="utf-8")
    with pytest.raises(ValueError, match=r"the checksum of note\.json is wrong"):
        read_sealed(path)
