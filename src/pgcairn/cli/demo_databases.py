"""Databases for the demo: made on the server, measured, dropped again.

The two statements here take a name that cannot be a parameter; the others are in ``sql/queries/demo.sql``.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgcairn.errors import UnavailableError, UsageError
from pgcairn.storage.statements import statements_for

# How long the server gets to notice that a process is gone. It notices at once, after the statement it is at.
_NOTICE_SECONDS = 30.0


@asynccontextmanager
async def new_database(dsn: str, purpose: str, *, keep: bool) -> AsyncIterator[str]:
    """A new, empty database on the server; the value is its connection string.

    Raises:
        UnavailableError: The server cannot be reached.
        UsageError: The role may not create databases.
    """
    name = f"pgcairn_demo_{purpose}_{secrets.token_hex(3)}"
    identifier = sql.Identifier(name)
    await _run(dsn, sql.SQL("CREATE DATABASE {}").format(identifier))
    try:
        yield make_conninfo(dsn, dbname=name)
    finally:
        if not keep:
            # FORCE (PostgreSQL 13): a killed worker's sessions may not have noticed yet.
            await _run(dsn, sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(identifier))


async def table_bytes(dsn: str, schema: str) -> int:
    """What the tables of a schema take on disk, with their indexes and out-of-line values."""
    return await _number(dsn, statements_for(schema).schema_bytes.text, schema)


async def wait_until_gone(dsn: str, application_name: str) -> None:
    """Return when the database has no session of this name any more.

    The sessions of a killed process finish, and may commit, the statement that they are at. Who reads the
    database before that may find less than what will be there.

    Raises:
        UnavailableError: Sessions are still there after half a minute.
    """
    deadline = time.monotonic() + _NOTICE_SECONDS
    text = statements_for("pgcairn").count_sessions.text
    while await _number(dsn, text, application_name):
        if time.monotonic() > deadline:
            raise UnavailableError(f"The server still has sessions of {application_name!r}, which has ended.")
        await asyncio.sleep(0.01)


def database_name(dsn: str) -> str:
    """The database that a connection string names."""
    return str(conninfo_to_dict(dsn)["dbname"])


async def _number(dsn: str, text: str, argument: str) -> int:
    async with await psycopg.AsyncConnection.connect(
        dsn, autocommit=True, cursor_factory=psycopg.AsyncRawCursor
    ) as connection:
        row = await (await connection.execute(text.encode(), [argument])).fetchone()
    assert row is not None
    return int(row[0])


async def _run(dsn: str, statement: sql.Composed) -> None:
    try:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege as error:
        raise UsageError(
            f"The demo makes databases of its own, and the role may not: {error}.",
            hint="Leave out --dsn to use an embedded server.",
        ) from error
    except psycopg.OperationalError as error:
        raise UnavailableError(f"The server cannot be used: {error}.") from error
