"""A prune meets a writer that is about to refer to a value that nothing else needs: it waits, and the value stays."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from tests.support.savers import (
    LARGE_TEXT,
    checkpoint,
    checkpoint_id,
    config,
    get,
    put,
    saver_on,
    values_of,
    version,
)
from tests.support.server import run_sql, until_blocked


@pytest.mark.parametrize("level", ["read committed", "repeatable read"])
async def test_a_prune_waits_for_who_refers_to_a_value_and_keeps_it(database: str, level: str) -> None:
    dsn, schema = database, "pgcairn"
    run_sql(
        dsn,
        f"ALTER ROLE CURRENT_USER IN DATABASE {dsn.rsplit('/', 1)[1]} SET default_transaction_isolation = '{level}'",
    )
    async with (
        saver_on(dsn, schema) as writer,
        saver_on(dsn, schema) as pruner,
        await psycopg.AsyncConnection.connect(dsn) as third,
    ):
        await put(pruner, config(), checkpoint(1, {"c": LARGE_TEXT}))
        await put(pruner, config("thread", "", 1), checkpoint(2, {"n": 1}, {"c": version(2)}))
        where = (await get(writer, config("thread", "", 1))).config
        # A third session has the id of the branch's checkpoint, uncommitted, so its insert waits: it has locked the
        # value that it refers to by then.
        await third.execute(
            f"INSERT INTO {schema}.checkpoints (thread_id, checkpoint_ns, checkpoint_id, langgraph_v, metadata, body) "
            f"VALUES ('thread', '', '{checkpoint_id(3)}', 4, '{{}}', 'x')".encode()
        )
        putting = asyncio.create_task(put(writer, where, checkpoint(3, {"c": LARGE_TEXT}), new_versions={}))
        await until_blocked(dsn, 1)
        pruning = asyncio.create_task(pruner.aprune(["thread"]))
        await until_blocked(dsn, 2)
        await third.rollback()
        await asyncio.gather(putting, pruning)
        assert await values_of(writer, config()) == {"c": LARGE_TEXT}
        assert await values_of(writer, config("thread", "", 2)) == {"n": 1}
        assert await writer.aget_tuple(config("thread", "", 1)) is None
