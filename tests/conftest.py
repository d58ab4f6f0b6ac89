"""Fixtures for tests that need a server. Tests in ``unit`` use none of them and start nothing."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import AsyncIterator, Iterator, Mapping

import pytest

from tests.support.postflight import check_sessions, check_tasks
from tests.support.proxy import FaultProxy
from tests.support.server import (
    DURABLE,
    FAST,
    ExternalServer,
    NoServerAvailable,
    PostgresServer,
    Programs,
    Server,
    ServerFolder,
    StartServer,
)


@pytest.fixture(scope="session")
def server_folder() -> Iterator[ServerFolder]:
    """The folder below which this session's servers live; initialised when first needed."""
    try:
        folder = ServerFolder(Programs.find())
    except NoServerAvailable as missing:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(missing))
    yield folder
    folder.remove()


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """The server that all tests share. To stop or configure one, take ``start_server``."""
    dsn = os.environ.get("PGCAIRN_TEST_DSN")
    if dsn:
        yield ExternalServer(dsn)
        return
    started = PostgresServer(request.getfixturevalue("server_folder"), FAST)
    started.start()
    yield started
    started.stop("immediate")


@pytest.fixture
def start_server(server_folder: ServerFolder) -> Iterator[StartServer]:
    """A function that starts a server for this test alone.

    ``start_server(durable=False, settings={...})``; with ``durable=True`` it runs with PostgreSQL's
    own settings for fsync and full page writes.
    """
    started: list[PostgresServer] = []

    def start(*, durable: bool = False, settings: Mapping[str, str] | None = None) -> PostgresServer:
        one = PostgresServer(server_folder, (DURABLE if durable else FAST) | dict(settings or {}))
        started.append(one)
        one.start()
        return one

    yield start
    for one in started:
        one.stop("immediate")


@pytest.fixture
def durable_server(start_server: StartServer) -> PostgresServer:
    """A server for this test alone, with durable settings: stop it, kill it, restart it."""
    return start_server(durable=True)


@pytest.fixture
def database(server: Server) -> Iterator[str]:
    """An empty database of its own; the value is its DSN. Sessions left in it fail the test."""
    name = server.create_database()
    yield server.dsn(name)
    try:
        check_sessions(server.sessions_left(name))
    finally:
        server.drop_database(name)


@pytest.fixture
async def proxy(database: str) -> AsyncIterator[FaultProxy]:
    """A proxy in front of ``database``; ``proxy.dsn`` is the DSN that goes through it."""
    async with FaultProxy(database) as running:
        yield running


@pytest.fixture(autouse=True)
def _postflight(request: pytest.FixtureRequest) -> None:
    # Requested first, so it is torn down last, after the test's own fixtures have closed.
    if inspect.iscoroutinefunction(getattr(request, "function", None)):
        request.getfixturevalue("_no_tasks_left")


@pytest.fixture
async def _no_tasks_left() -> AsyncIterator[None]:
    yield
    check_tasks(asyncio.all_tasks())
