"""Fixtures for the tests of the API."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress

import pytest

from localcloud.api.database import Database
from tests.localcloud.api.compute_caller import Compute
from tests.localcloud.api.local_api import LocalApi
from tests.localcloud.api.machines_in_memory import MachinesInMemory


class _RollBackError(Exception):
    pass


@pytest.fixture(scope="module")
def rolled_back(tmp_path_factory) -> Iterator[Callable[[], AbstractContextManager[Database]]]:
    """Return a context manager that yields an empty database and rolls all changes back.

    Property tests share the database, because a new file for each example would be slow.
    """
    database = Database(tmp_path_factory.mktemp("state") / "state.sqlite")

    @contextmanager
    def context() -> Iterator[Database]:
        with suppress(_RollBackError), database.transaction():
            yield database
            raise _RollBackError

    yield context
    database.close()


@pytest.fixture
def full(tmp_path) -> Iterator[LocalApi]:
    """A cloud that has addresses for only one v4-16; the node ``other`` uses them."""
    api = LocalApi(tmp_path / "full", MachinesInMemory("10.77.0.0/30"))
    api.ready("other", networkConfig={"enableExternalIps": True})
    yield api
    api.halt()


@pytest.fixture
def compute(local_api: LocalApi) -> Compute:
    return Compute(local_api)


@pytest.fixture
def shared_compute(shared_api: LocalApi) -> Compute:
    return Compute(shared_api)
