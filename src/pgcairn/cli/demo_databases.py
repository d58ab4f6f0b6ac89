"""Databases for the demo: made on the server, measured, dropped again.

The few statements here are about databases as such, not about pgcairn's tables, hence not in ``sql/``.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgcairn.errors import UnavailableError, UsageError

_TABLE_BYTES = """
    SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE n.nspname = %s AND c.relkind = 'r'
"""


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
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        row = await (await connection.execute(_TABLE_BYTES, [schema])).fetchone()
    assert row is not None
    return int(row[0])


def database_name(dsn: str) -> str:
    """The database that a connection string names."""
    return str(conninfo_to_dict(dsn)["dbname"])


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
