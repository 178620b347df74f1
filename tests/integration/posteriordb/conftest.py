import pytest

from bernflow.errors import ArgumentError
from bernflow.experiments.posteriordb.reference import find_folder


@pytest.fixture(scope="session")
def folder():
    try:
        return find_folder()
    except ArgumentError as error:
        pytest.skip(str(error))
