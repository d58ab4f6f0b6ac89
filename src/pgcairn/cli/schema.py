"""``pgcairn setup`` and ``pgcairn sql``: the schema, created for you or printed for a DBA."""

from __future__ import annotations

import argparse
import asyncio
import os
from typing import Any

from pgcairn.errors import InvalidInput
from pgcairn.saver import AsyncPostgresSaver
from pgcairn.settings import Settings
from pgcairn.storage.migrations import all_ddl
from pgcairn.storage.statements import statements_for


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the commands."""
    setup = subparsers.add_parser("setup", help="create or upgrade the schema in a database")
    add_dsn(setup)
    setup.add_argument(
        "--metadata-index",
        action="store_true",
        help="also create the index that serves metadata filters over many threads (writes wait while it is built)",
    )
    setup.set_defaults(run=_setup)
    sql = subparsers.add_parser("sql", help="print all DDL, for people who run it by hand")
    sql.add_argument("--schema", default="pgcairn", help="name of the schema (default: pgcairn)")
    sql.set_defaults(run=_sql)


def add_dsn(parser: argparse.ArgumentParser) -> None:
    """Add the options by which a command finds its database."""
    parser.add_argument(
        "--dsn",
        default=os.environ.get("PGCAIRN_DSN"),
        help="connection string, or embedded:///path (default: the environment variable PGCAIRN_DSN)",
    )
    parser.add_argument("--schema", default="pgcairn", help="name of the schema (default: pgcairn)")


def dsn_of(arguments: argparse.Namespace) -> str:
    """The connection string that was given.

    Raises:
        InvalidInput: There is none.
    """
    if not arguments.dsn:
        raise InvalidInput("No database was named.", hint="Use --dsn, or set PGCAIRN_DSN.")
    return str(arguments.dsn)


def _setup(arguments: argparse.Namespace) -> int:
    async def run() -> None:
        async with AsyncPostgresSaver.from_conn_string(
            dsn_of(arguments), schema=arguments.schema, min_size=0
        ) as saver:
            await saver.setup(metadata_index=arguments.metadata_index)

    asyncio.run(run())
    print(f"Schema {arguments.schema!r} is up to date.")
    return 0


def _sql(arguments: argparse.Namespace) -> int:
    schema = Settings(schema=arguments.schema).schema
    print(all_ddl(statements_for(schema)), end="")
    return 0
