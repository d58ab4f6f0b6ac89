"""A thread is deleted by one process while another one writes to it: no reference is left dangling."""

from __future__ import annotations

import asyncio

import psycopg

from tests.support.savers import LARGE_TEXT, checkpoint, checkpoint_id, config, put, saver_on
from tests.support.server import until_blocked


async def test_a_delete_waits_for_who_refers_to_its_values(dsn: str, schema: str) -> None:
    async with (
        saver_on(dsn, schema) as writer,
        saver_on(dsn, schema) as deleter,
        await psycopg.AsyncConnection.connect(dsn) as third,
    ):
        where = await put(writer, config(), checkpoint(1, {"c": LARGE_TEXT}))
        # A third session has the id of the next checkpoint, uncommitted, so its insert waits: it has locked the
        # value that it refers to by then.
        await third.execute(
            f"INSERT INTO {schema}.checkpoints (thread_id, checkpoint_ns, checkpoint_id, langgraph_v, metadata, body) "
            f"VALUES ('thread', '', '{checkpoint_id(2)}', 4, '{{}}', 'x')".encode()
        )
        putting = asyncio.create_task(put(writer, where, checkpoint(2, {"c": LARGE_TEXT}), new_versions={}))
        await until_blocked(dsn, 1)
        deleting = asyncio.create_task(deleter.adelete_thread("thread"))
        await until_blocked(dsn, 2)
        await third.rollback()
        await asyncio.gather(putting, deleting)
        assert await writer.aget_tuple(config()) is None
