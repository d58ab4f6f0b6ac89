"""Fixtures for tests that need tables of their own, but no database of their own.

A new database takes ten times as long as a new schema. Each test still answers for its own sessions.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.support.postflight import LeftBehind, check_sessions
from tests.support.server import Server

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def shared_database(server: Server) -> Iterator[str]:
    """The name of a database that tests share."""
    name = server.create_database()
    yield name
    server.drop_database(name)


@pytest.fixture
def dsn(server: Server, shared_database: str) -> Iterator[str]:
    """The address of the shared database. Sessions left in it fail the test."""
    yield server.dsn(shared_database)
    try:
        check_sessions(server.sessions_left(shared_database))
    except LeftBehind:
        server.terminate_sessions(shared_database)  # the next test is not to blame
        raise


@pytest.fixture
def schema() -> str:
    """A schema name that no other test has."""
    return f"pgcairn_{next(_numbers)}"
