"""The PostgreSQL server that is measured against: a durable one of our own, or the one of ``--dsn``.

Owns starting and stopping, a fresh database for every measurement, and what is to be known about the server
(version, settings, how many commits a second one session gets). Never measures a saver.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgcairn.connection import embedded

# What decides how fast a durable server is. Recorded, not changed.
_SETTINGS = (
    "checkpoint_timeout",
    "commit_delay",
    "fsync",
    "full_page_writes",
    "jit",
    "max_connections",
    "max_wal_size",
    "shared_buffers",
    "synchronous_commit",
    "wal_buffers",
    "wal_compression",
    "wal_sync_method",
    "work_mem",
)
_COMMIT_SECONDS = 1.0
_TABLES_SQL = """
SELECT format('%I.%I', n.nspname, c.relname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'r' AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
"""


@contextmanager
def running(dsn: str | None) -> Iterator[str]:
    """Yield a connection string: the given one, or that of a server that lives as long as the block.

    The server of our own is pgcairn's embedded one (the wheel's PostgreSQL, or the newest installed on the system)
    with a new data directory below the temporary folder; nothing but its place is chosen here.
    """
    if dsn is not None:
        yield dsn
        return
    # Named by the PostgreSQL user where the embedded server changes to one, so its parents must be open.
    folder = Path(tempfile.mkdtemp(prefix="pgcairn-bench-"))
    try:
        with embedded.acquire(folder / "server") as lease:
            yield lease.dsn
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@asynccontextmanager
async def fresh_database(dsn: str) -> AsyncIterator[str]:
    """Yield the connection string of an empty database, dropped afterwards.

    The CHECKPOINT at the end writes what one contender left in memory before the next one starts.
    """
    name = f"pgcairn_bench_{os.getpid()}"
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        drop = f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode()
        await connection.execute(drop)
        await connection.execute(f"CREATE DATABASE {name}".encode())
        try:
            yield make_conninfo(dsn, dbname=name)
        finally:
            await connection.execute(drop)
            with suppress(psycopg.errors.InsufficientPrivilege):
                await connection.execute("CHECKPOINT")


async def disk_bytes(dsn: str, *, vacuumed: bool = True) -> int:
    """Size of all tables of a database, with their indexes and what is stored out of line.

    Args:
        vacuumed: Make a VACUUM FULL first, so that only what is stored counts; else what the tables have become counts.
    """
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        tables = [row[0] for row in await (await connection.execute(_TABLES_SQL)).fetchall()]
        size = 0
        for table in tables:
            if vacuumed:
                await connection.execute(f"VACUUM FULL {table}".encode())
            cursor = await connection.execute("SELECT pg_total_relation_size(%s::regclass)", (table,))
            row = await cursor.fetchone()
            assert row is not None
            size += int(row[0])
        return size


async def wal_position(dsn: str, *, after_checkpoint: bool = False) -> int:
    """How many bytes of WAL the server has written so far.

    Args:
        after_checkpoint: Make a CHECKPOINT first. The first change of a page after one writes the whole page, so
            contenders are alike only if each begins after one.
    """
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        if after_checkpoint:
            await connection.execute("CHECKPOINT")
        cursor = await connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
        row = await cursor.fetchone()
        assert row is not None
        return int(row[0])


def describe(dsn: str) -> dict[str, Any]:
    """Version, settings and commit rate of a server."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        version = connection.execute("SHOW server_version").fetchone()
        settings = dict(
            connection.execute(
                "SELECT name, current_setting(name) FROM pg_settings WHERE name = ANY(%s) ORDER BY name",
                (list(_SETTINGS),),
            ).fetchall()
        )
        commits = _commits_per_second(connection)
    assert version is not None
    return {
        "version": version[0],
        "settings": settings,
        "is_durable": settings["fsync"] == "on" and settings["synchronous_commit"] == "on",
        "commits_per_second": round(commits),
    }


def _commits_per_second(connection: psycopg.Connection[Any]) -> float:
    """What one session gets when every row is a transaction: the price of a flush and a round trip."""
    table = f"pgcairn_bench_commits_{os.getpid()}"
    connection.execute(f"CREATE TABLE {table} (n int)".encode())
    insert = f"INSERT INTO {table} VALUES (1)".encode()
    try:
        connection.execute(insert)
        count, started = 0, time.perf_counter()
        while time.perf_counter() < started + _COMMIT_SECONDS:
            connection.execute(insert)
            count += 1
        return count / (time.perf_counter() - started)
    finally:
        connection.execute(f"DROP TABLE {table}".encode())


def tcp_or_socket(dsn: str) -> str:
    """The address of a server as ``bench.delay_proxy --target`` takes it."""
    given = conninfo_to_dict(dsn)
    with psycopg.connect(dsn) as connection:
        host, port = connection.info.host, connection.info.port
    if host.startswith("/"):
        return f"{host}/.s.PGSQL.{port}"
    return f"{given.get('hostaddr') or host or '127.0.0.1'}:{port}"
