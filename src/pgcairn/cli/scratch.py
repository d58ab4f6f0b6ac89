"""A schema for trials on the user's own database: made, used, dropped. And what the server says of its limits."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psycopg
from psycopg import AsyncRawCursor

from pgcairn.errors import UnavailableError
from pgcairn.storage.statements import statements_for


@dataclass(frozen=True)
class ServerLimits:
    """What a server says of itself.

    Attributes:
        version: PostgreSQL's version.
        max_connections: Most sessions.
        reserved: Those of them that only superusers get.
        sessions: Sessions of all clients right now, this one included.
        commit_waits_for_disk: Whether an acknowledged commit survives a crash (``synchronous_commit``, ``fsync``).
    """

    version: str
    max_connections: int
    reserved: int
    sessions: int
    commit_waits_for_disk: bool

    def pools_that_fit(self, max_size: int) -> int:
        """How many pools of this size fit beside the sessions that are there now."""
        return max(0, (self.max_connections - self.reserved - self.sessions + 1) // max_size)


async def server_limits(dsn: str) -> ServerLimits:
    """Ask the server.

    Raises:
        UnavailableError: It cannot be reached.
    """
    try:
        async with await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, cursor_factory=AsyncRawCursor
        ) as connection:
            statement = statements_for("pgcairn").server_limits.text
            row = await (await connection.execute(statement.encode())).fetchone()
    except psycopg.OperationalError as error:
        raise UnavailableError(f"The server cannot be used: {str(error).strip()}") from error
    assert row is not None
    version, max_connections, reserved, sessions, synchronous_commit, fsync = row
    return ServerLimits(
        version=version,
        max_connections=max_connections,
        reserved=reserved,
        sessions=sessions,
        commit_waits_for_disk=synchronous_commit != "off" and fsync == "on",
    )


@asynccontextmanager
async def scratch_schema(dsn: str) -> AsyncIterator[str]:
    """A name for a schema that does not exist yet; it is dropped at the end, with everything in it."""
    name = f"pgcairn_trial_{secrets.token_hex(4)}"
    statements = statements_for(name)
    try:
        yield name
    finally:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await connection.execute(statements.script("drop_schema").encode())
