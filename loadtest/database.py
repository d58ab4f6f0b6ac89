"""The server that the service stores in, and the processes that belong to it.

Owns starting, restarting in the hard way, killing sessions, a fresh database for every run, and finding the server's
processes for their CPU.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from pgcairn.connection.embedded import EmbeddedServer

_OTHER_SESSIONS = (
    "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
)
_TERMINATE = f"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE {_OTHER_SESSIONS}"


class Database:
    """A server: one of our own, or one that is there.

    Attributes:
        dsn: Its address.
    """

    def __init__(self, dsn: str, own: EmbeddedServer | None = None) -> None:
        self.dsn = dsn
        self._own = own

    @property
    def is_own(self) -> bool:
        """Whether it may be restarted."""
        return self._own is not None

    def restart(self) -> None:
        """Stop it as a crash does, start it, return when it takes connections.

        Raises:
            RuntimeError: It is not ours, or came back under another address.
        """
        if self._own is None:
            raise RuntimeError("The server of --dsn is not ours to restart.")
        self._own.stop("immediate")
        if self._own.start() != self.dsn:
            raise RuntimeError("The server came back under another address.")

    def postmaster(self) -> psutil.Process | None:
        """The server's first process; ``None`` if it does not run on this machine."""
        with suppress(psycopg.Error, psutil.Error), psycopg.connect(self.dsn) as connection:
            found = psutil.Process(connection.info.backend_pid).parent()
            if found is not None and "postgres" in found.name():
                return found
        return None


def terminate_sessions(dsn: str) -> int:
    """End all other sessions of a database; how many there were."""
    with psycopg.connect(dsn, autocommit=True, application_name="pgcairn loadtest") as connection:
        row = connection.execute(_TERMINATE.encode()).fetchone()
    assert row is not None
    return int(row[0])


@contextmanager
def fresh_database(dsn: str) -> Iterator[str]:
    """The connection string of an empty database, dropped afterwards; the server may be restarted meanwhile.

    The CHECKPOINT at the end writes what one run left in memory before the next one starts.
    """
    name = f"pgcairn_loadtest_{os.getpid()}"
    drop = f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode()
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(drop)
        connection.execute(f"CREATE DATABASE {name}".encode())
    try:
        yield make_conninfo(dsn, dbname=name)
    finally:
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(drop)
            with suppress(psycopg.errors.InsufficientPrivilege):
                connection.execute("CHECKPOINT")


@contextmanager
def running(dsn: str | None) -> Iterator[Database]:
    """The server of a connection string, or a durable one that lives as long as the block."""
    if dsn is not None:
        yield Database(dsn)
        return
    folder = Path(tempfile.mkdtemp(prefix="pgcairn-loadtest-"))
    server = EmbeddedServer(folder / "server")
    try:
        yield Database(server.start(), server)
    finally:
        server.stop("fast")
        shutil.rmtree(folder, ignore_errors=True)
