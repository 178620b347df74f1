import pytest

from benchmarks.posteriordb.reference import find_folder
from bernflow.errors import ArgumentError


@pytest.fixture(scope="session")
def folder():
    try:
        return find_folder()
    except ArgumentError as error:
        pytest.skip(str(error))
