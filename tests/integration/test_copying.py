"""Copying threads: everything goes along, nothing is overwritten, and the copy leads its own life."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest
from langgraph.checkpoint.base import CheckpointTuple

from pgcairn import AsyncPostgresSaver, InvalidInput, OutcomeUnknown
from pgcairn.connection.pool import Session
from pgcairn.storage.thread_repository import Copied, ThreadRepository
from tests.support.savers import (
    LARGE_TEXT,
    checkpoint,
    checkpoint_id,
    config,
    get,
    listed,
    metadata,
    put,
    saver_on,
    version,
)
from tests.support.server import run_sql, until_blocked


@pytest.fixture(params=["psycopg", "asyncpg"])
async def saver(dsn: str, schema: str, request: pytest.FixtureRequest) -> AsyncIterator[AsyncPostgresSaver]:
    async with saver_on(dsn, schema, driver=request.param) as opened:
        yield opened


async def fill(saver: AsyncPostgresSaver, thread_id: str = "thread") -> None:
    for ns in ("", "child:1"):
        for number in range(1, 4):
            where = config(thread_id, ns, number - 1 if number > 1 else None)
            what = checkpoint(
                number, {"big": f"{number} {LARGE_TEXT}", "n": number}, {"big": version(number)}
            )
            stored = await put(saver, where, what, metadata(step=number, run_id=f"run {number}"))
            await saver.aput_writes(stored, [("n", number), ("big", LARGE_TEXT)], "task", "path")
    await saver.aput_writes(config(thread_id, "", 99), [("early", 1)], "task")


def plain(found: CheckpointTuple) -> tuple[Any, ...]:
    """Everything but the thread."""
    places = [
        None if each is None else {k: v for k, v in each["configurable"].items() if k != "thread_id"}
        for each in (found.config, found.parent_config)
    ]
    return (*places, found.checkpoint, found.metadata, found.pending_writes)


def stored(dsn: str, schema: str, thread_id: str) -> list[list[Any]]:
    """All rows of a thread, all columns but the thread."""
    return [
        run_sql(
            dsn,
            f"SELECT to_jsonb(x) - 'thread_id' FROM {schema}.{table} AS x WHERE thread_id = %s ORDER BY 1",
            thread_id,
        )
        for table in ("checkpoints", "channel_values", "writes")
    ]


async def test_a_copy_has_everything_and_the_source_is_as_it_was(
    saver: AsyncPostgresSaver, dsn: str, schema: str
) -> None:
    await fill(saver)
    run_sql(dsn, f"UPDATE {schema}.checkpoints SET hidden = true WHERE checkpoint_id = %s", checkpoint_id(1))
    run_sql(dsn, f"UPDATE {schema}.checkpoints SET hidden_parent_id = 'x', created_at = '2020-01-01'")
    run_sql(dsn, f"UPDATE {schema}.channel_values SET chain = ARRAY['a', 'b'] WHERE version = %s", version(1))
    before = stored(dsn, schema, "thread")

    await saver.acopy_thread("thread", "copy")

    assert stored(dsn, schema, "thread") == before
    assert stored(dsn, schema, "copy") == before
    assert [len(each) for each in before] == [6, 6, 13]
    source, copy = await listed(saver, config("thread", None)), await listed(saver, config("copy", None))
    assert [plain(each) for each in copy] == [plain(each) for each in source]
    assert len(copy) == 4
    assert saver.stats().threads_copied == 1


async def test_a_copy_leads_its_own_life(saver: AsyncPostgresSaver) -> None:
    await fill(saver)
    await saver.acopy_thread("thread", "copy")
    await put(saver, config("copy", "", 3), checkpoint(4, {"n": 4}))
    await saver.adelete_thread("thread")
    assert (await get(saver, config("copy", "", 3))).checkpoint["channel_values"]["big"].startswith("3 ")
    assert (await get(saver, config("copy"))).checkpoint["id"] == checkpoint_id(4)
    assert await saver.aget_tuple(config("thread")) is None


@pytest.mark.parametrize("what", ["checkpoint", "write", "value"])
async def test_a_thread_that_exists_is_not_copied_to(
    saver: AsyncPostgresSaver, dsn: str, schema: str, what: str
) -> None:
    await fill(saver)
    if what == "checkpoint":
        await put(saver, config("there"), checkpoint(50, {"n": 1}))
    elif what == "write":
        await saver.aput_writes(config("there", "", 50), [("n", 1)], "task")
    else:
        run_sql(
            dsn,
            f"INSERT INTO {schema}.channel_values (thread_id, checkpoint_ns, channel, version, type, frame) "
            "VALUES ('there', '', 'c', 'v', 't', 'f')",
        )
    before = stored(dsn, schema, "there")
    with pytest.raises(InvalidInput, match="exists already"):
        await saver.acopy_thread("thread", "there")
    assert stored(dsn, schema, "there") == before


async def test_what_cannot_be_copied_is_refused(saver: AsyncPostgresSaver) -> None:
    with pytest.raises(InvalidInput, match="'nobody' has nothing to copy"):
        await saver.acopy_thread("nobody", "copy")
    with pytest.raises(InvalidInput, match="to itself"):
        await saver.acopy_thread("thread", "thread")
    with pytest.raises(InvalidInput, match="empty"):
        await saver.acopy_thread("thread", "")
    assert await listed(saver, None) == []


async def test_of_copies_to_one_target_one_is_made(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema) as one, saver_on(dsn, schema) as two:
        for thread_id in ("a", "b"):
            await put(one, config(thread_id), checkpoint(ord(thread_id), {"n": thread_id}))
        for number in range(10):
            ended = await asyncio.gather(
                one.acopy_thread("a", f"copy {number}"),
                two.acopy_thread("b", f"copy {number}"),
                return_exceptions=True,
            )
            assert sorted(type(each).__name__ for each in ended) == ["InvalidInput", "NoneType"]
            assert len(await listed(one, config(f"copy {number}"))) == 1, "two threads are not mixed"


async def test_a_target_that_is_written_to_at_the_same_moment_exists(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema) as saver, await psycopg.AsyncConnection.connect(dsn) as other:
        await fill(saver)
        await other.execute(
            f"INSERT INTO {schema}.checkpoints (thread_id, checkpoint_ns, checkpoint_id, langgraph_v, metadata, body) "
            f"VALUES ('copy', '', '{checkpoint_id(1)}', 4, '{{}}', 'x')".encode()
        )
        copying = asyncio.create_task(saver.acopy_thread("thread", "copy"))
        await until_blocked(dsn, 1)
        await other.commit()
        with pytest.raises(InvalidInput, match="exists already"):
            await copying
        assert len(stored(dsn, schema, "copy")[0]) == 1


async def test_copies_in_both_directions_do_not_wait_for_each_other(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema, max_backlog_rows=2) as saver:
        for thread_id in ("a", "b"):
            await put(saver, config(thread_id), checkpoint(1, {"n": 1}))
        calls = [saver.acopy_thread(*pair) for _ in range(5) for pair in (("a", "b"), ("b", "a"))]
        ended = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
        assert all(isinstance(each, InvalidInput) for each in ended)
        assert saver.stats().backlog_rows == 0
        await put(saver, config("a"), checkpoint(2, {"n": 1}))


async def test_a_copy_whose_answer_was_lost_says_so(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with saver_on(dsn, schema) as saver:
        await fill(saver)
        original = ThreadRepository.copy_thread
        lost: list[int] = []

        async def loses_the_first(
            self: ThreadRepository, session: Session, source: str, target: str
        ) -> Copied:
            copied = await original(self, session, source, target)
            if not lost:
                lost.append(1)
                raise OutcomeUnknown("cut")
            return copied

        monkeypatch.setattr(ThreadRepository, "copy_thread", loses_the_first)
        with pytest.raises(OutcomeUnknown, match="may be the copy of 'thread'"):
            await saver.acopy_thread("thread", "copy")


@pytest.mark.parametrize("which", [0, 1])
async def test_a_cancelled_copy_holds_nothing_up(saver: AsyncPostgresSaver, which: int) -> None:
    await fill(saver)
    for number in range(5):
        copying = asyncio.create_task(saver.acopy_thread("thread", f"copy {number}"))
        for _ in range(number):
            await asyncio.sleep(0)
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
        where = config(["thread", f"copy {number}"][which])
        await asyncio.wait_for(put(saver, where, checkpoint(9, {"n": 9})), 60)
    await saver.aclose()
    assert saver.stats().backlog_rows == 0
