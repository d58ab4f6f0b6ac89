"""Installs and upgrades the schema.

Owns the order of migrations, their digests, and the lock under which one process at a time applies them.
Issues no DDL when the schema is current, so that a role with only DML rights can call it. Works inside a
transaction that the caller has open: everything is then committed, or not, with that transaction.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
import time
from dataclasses import dataclass
from functools import lru_cache

from pgcairn.connection.pool import Session
from pgcairn.errors import DatabaseError, SchemaError, UnavailableError
from pgcairn.storage.statements import Statements, sql_directory

_FILE = re.compile(r"(?P<version>\d{4})_(?P<phase>pre|post)_(?P<slug>\w+)\.sql")
# Any constant will do as long as it never changes; the schema's name is mixed in.
_LOCK_SALT = b"pgcairn setup "
_EXISTS_ALREADY = frozenset(("42P06", "42P07", "23505"))  # schema, table, key: PostgreSQL manual, appendix A
_LOCK_PAUSE_SECONDS = 0.05  # guess: a migration takes about this long


@dataclass(frozen=True, slots=True)
class Migration:
    """One file of ``sql/migrations``; a published one is never edited, which the digest makes sure of."""

    version: int
    phase: str
    name: str
    text: str
    digest: str


@dataclass(frozen=True, slots=True)
class SchemaState:
    """What was found in the database."""

    schema_exists: bool
    version: int
    """Highest applied migration; 0 when there is none."""


@lru_cache(maxsize=1)
def migrations() -> tuple[Migration, ...]:
    """All migrations, oldest first."""
    found = []
    for file in sql_directory().joinpath("migrations").iterdir():
        match = _FILE.fullmatch(file.name)
        if match is None:
            raise ValueError(f"sql/migrations/{file.name}: expected NNNN_pre|post_name.sql.")
        text = file.read_text(encoding="utf-8").replace("\r\n", "\n")
        digest = hashlib.sha256(text.encode()).hexdigest()
        found.append(
            Migration(int(match["version"]), match["phase"], file.name.removesuffix(".sql"), text, digest)
        )
    found.sort(key=lambda migration: migration.version)
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError("sql/migrations: versions must count up from 0001 without gaps.")
    return tuple(found)


async def read_state(session: Session, statements: Statements) -> SchemaState:
    """Find out what is installed.

    Raises:
        SchemaError: The schema holds the official saver's tables, or others of the same names, or migrations that this version does not
            know and cannot work with, or one that was edited after it was applied.
    """
    schema = statements.schema
    [(schema_exists, ours, official, foreign, encoding)] = await session.fetch(
        statements.installed_tables, (schema,)
    )
    if encoding != "UTF8":
        raise SchemaError(
            f"The database's encoding is {encoding}; pgcairn needs UTF8.",
            hint="CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0.",
        )
    if not ours:
        if official:
            raise SchemaError(
                f"Schema {schema!r} holds the tables of langgraph-checkpoint-postgres.",
                hint="Give pgcairn a schema of its own (Settings.schema).",
            )
        if foreign:
            raise SchemaError(
                f"Schema {schema!r} holds tables named like pgcairn's (checkpoints, channel_values, writes), but not its version.",
                hint="Give pgcairn a schema of its own (Settings.schema).",
            )
        return SchemaState(bool(schema_exists), 0)
    known = {migration.version: migration for migration in migrations()}
    version = 0
    for version, name, digest in await session.fetch(statements.applied_migrations, ()):
        if version not in known:
            if "_post_" in name:
                raise SchemaError(
                    f"Schema {schema!r} was upgraded by a newer pgcairn (migration {name}) that this one cannot work with.",
                    hint="Upgrade this program's pgcairn.",
                )
        elif known[version].digest != digest:
            raise SchemaError(
                f"Migration {name} in schema {schema!r} differs from the one this pgcairn ships.",
                hint="The database was set up by a modified build. Compare the digests in schema_version.",
            )
    return SchemaState(True, version)


async def require_current(session: Session, statements: Statements) -> None:
    """Refuse to work on a missing or older schema.

    Raises:
        SchemaError: Naming the command that mends it.
    """
    problem = shortfall(await read_state(session, statements), statements)
    if problem is not None:
        raise problem


def shortfall(state: SchemaState, statements: Statements) -> SchemaError | None:
    """What ``setup`` would have to do first, as an error that names the command; ``None`` if nothing."""
    wanted = migrations()[-1].version
    if state.version == 0:
        return SchemaError(f"There is no pgcairn schema {statements.schema!r} in this database.")
    if state.version < wanted:
        return SchemaError(
            f"Schema {statements.schema!r} is at version {state.version}; this pgcairn needs {wanted}."
        )
    return None


async def migrate(
    session: Session, statements: Statements, *, metadata_index: bool, deadline_seconds: float
) -> list[str]:
    """Bring the schema to the version of this package; do nothing if it is there already.

    Many processes may call this at the same moment: one works, the others wait for it.

    Args:
        session: A session; if it is inside a transaction, that transaction stays open.
        statements: The statements of the schema.
        metadata_index: Also create the optional index on metadata.
        deadline_seconds: How long to wait for another process that holds the lock.

    Returns:
        The names of the migrations that were applied.

    Raises:
        SchemaError: See ``read_state``.
        UnavailableError: The lock could not be had in time.
        DatabaseError: The role lacks the right to create what is missing.
    """
    wanted = migrations()[-1].version
    give_up_at = time.monotonic() + deadline_seconds
    while True:
        if (await read_state(session, statements)).version >= wanted and not metadata_index:
            return []
        try:
            return await _migrate_once(session, statements, metadata_index, give_up_at)
        except DatabaseError as error:
            # Under REPEATABLE READ and above, what another process did while this one waited for the lock is
            # not seen, and is done again. A new transaction sees it.
            if error.sqlstate not in _EXISTS_ALREADY or time.monotonic() > give_up_at:
                raise
        if (await read_state(session, statements)).version < wanted:
            raise DatabaseError(
                f"Schema {statements.schema!r} holds objects of pgcairn but not its version.",
                hint="If the call is inside a transaction of yours, repeat it in a new one.",
            )


async def _migrate_once(
    session: Session, statements: Statements, metadata_index: bool, give_up_at: float
) -> list[str]:
    async with session.transaction():
        # Tried and waited for on this side: a blocking lock would hold a place in the server's queue, and
        # CREATE INDEX CONCURRENTLY elsewhere would deadlock with it.
        while not (await session.fetch(statements.try_setup_lock, (_lock_key(statements.schema),)))[0][0]:
            if time.monotonic() > give_up_at:
                raise UnavailableError(
                    f"Another process has been changing schema {statements.schema!r} for long."
                )
            await asyncio.sleep(random.uniform(0.5, 1.5) * _LOCK_PAUSE_SECONDS)  # noqa: S311 - jitter
        state = await read_state(session, statements)
        applied = []
        if not state.schema_exists:
            await session.script(statements.script("create_schema"))
        if state.version == 0:
            await session.script(statements.script("create_version_table"))
        for migration in migrations():
            if migration.version > state.version:
                await session.script(statements.qualify(migration.text))
                await session.execute(
                    statements.record_migration,
                    (migration.version, migration.name, migration.digest),
                )
                applied.append(migration.name)
        if metadata_index:
            await session.script(statements.script("create_metadata_index"))
    return applied


def all_ddl(statements: Statements) -> str:
    """Everything ``setup`` would run on an empty database, for people who run DDL by hand."""
    parts = [
        statements.script("create_schema") + ";",
        statements.script("create_version_table") + ";",
    ]
    for migration in migrations():
        parts.append(f"-- migration {migration.name}\n{statements.qualify(migration.text).strip()}")
        parts.append(
            statements.qualify("INSERT INTO /* schema */schema_version (version, name, digest) ")
            + f"VALUES ({migration.version}, '{migration.name}', '{migration.digest}');"
        )
    return "\n\n".join(parts) + "\n"


def _lock_key(schema: str) -> int:
    digest = hashlib.sha256(_LOCK_SALT + schema.encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)
