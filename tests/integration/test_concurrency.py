"""Many callers, other loops, other threads, cancellation, closing: nobody is blocked, nothing is lost."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, TypeVar

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from psycopg_pool import AsyncConnectionPool

from pgcairn import (
    AsyncPostgresSaver,
    BacklogFull,
    ClosedError,
    OutcomeUnknown,
    PgcairnError,
    PostgresSaver,
    RejectedError,
    SchemaError,
    Settings,
    WrongLoopError,
)
from pgcairn.connection import psycopg_driver
from tests.support.proxy import SYNC, FaultProxy, Hold
from tests.support.savers import (
    LARGE_TEXT,
    checkpoint,
    checkpoint_id,
    config,
    get,
    listed,
    metadata,
    place,
    put,
    saver_on,
    values_of,
    version,
)
from tests.support.server import run_sql

T = TypeVar("T")

# Compressed in a worker thread: its bytes are ready some time after the call took its place.
HUGE_TEXT = "".join(random.Random(1).choices("abcdefghijklmnop", k=300_000))


@pytest.fixture(params=["psycopg", "asyncpg"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def saver(dsn: str, schema: str, driver: str) -> AsyncIterator[AsyncPostgresSaver]:
    async with saver_on(dsn, schema, driver=driver, max_size=3) as opened:
        yield opened


async def started(*calls: Awaitable[T]) -> list[asyncio.Future[T]]:
    """Start calls in their order; none of them is awaited before all have taken their place."""
    tasks: list[asyncio.Future[T]] = [asyncio.ensure_future(call) for call in calls]
    turn = asyncio.ensure_future(asyncio.sleep(0))  # scheduled last, so it ends after all have begun
    await turn
    return tasks


async def guarded(*tasks: Awaitable[T]) -> list[T]:
    """``gather`` with a guard against hanging; no passing test comes near it."""
    return await asyncio.wait_for(asyncio.gather(*tasks), 60)


@asynccontextmanager
async def writes_blocked(dsn: str, schema: str) -> AsyncIterator[None]:
    """Keep every writer of the schema waiting at the server; reads go on."""
    async with await psycopg.AsyncConnection.connect(dsn) as other:
        await other.execute(f"LOCK TABLE {schema}.checkpoints, {schema}.writes IN EXCLUSIVE MODE".encode())
        yield


def count_rows(dsn: str, schema: str) -> int:
    [(found,)] = run_sql(dsn, f"SELECT count(*) FROM {schema}.checkpoints")
    return int(found)


# --- many callers -------------------------------------------------------------------------------------


async def test_a_hundred_puts_at_once(saver: AsyncPostgresSaver) -> None:
    await guarded(
        *(
            put(saver, config(f"t{n}"), checkpoint(1, {"n": n, "big": LARGE_TEXT + str(n)}))
            for n in range(100)
        )
    )
    found = await guarded(*(values_of(saver, config(f"t{n}")) for n in range(100)))
    assert found == [{"n": n, "big": LARGE_TEXT + str(n)} for n in range(100)]
    assert saver.stats().batches < 50, "they share transactions"
    assert saver.stats().pool_size <= 3
    assert (saver.stats().backlog_rows, saver.stats().backlog_bytes) == (0, 0)


async def test_reads_and_writes_and_listings_at_once(dsn: str, schema: str, driver: str) -> None:
    async with saver_on(dsn, schema, driver=driver, max_size=1) as saver:

        async def user(number: int) -> list[int]:
            thread = f"t{number}"
            where = config(thread)
            for step in range(1, 6):
                where = await put(saver, where, checkpoint(step, {"n": [step]}, {"n": version(step)}))
                await saver.aput_writes(where, [("n", step)], "task")
                assert await values_of(saver, config(thread)) == {"n": [step]}
            return [each.checkpoint["channel_values"]["n"][0] for each in await listed(saver, config(thread))]

        assert await guarded(*(user(number) for number in range(20))) == [[5, 4, 3, 2, 1]] * 20


async def test_exact_and_latest_reads_of_one_thread_at_once(saver: AsyncPostgresSaver) -> None:
    for number in range(1, 6):
        await put(saver, config(), checkpoint(number))
    wanted = [None, 1, 5, None, 3, 9, 5, 1, None]
    found = await guarded(*(saver.aget_tuple(config(number=number)) for number in wanted))
    ids = [None if each is None else place(each)[2] for each in found]
    assert ids == [None if n == 9 else checkpoint_id(n or 5) for n in wanted]


async def test_a_paused_listing_blocks_nothing(dsn: str, schema: str, driver: str) -> None:
    async with saver_on(dsn, schema, driver=driver, max_size=1, page_rows=2) as saver:
        for number in range(1, 8):
            await put(saver, config(), checkpoint(number))
        listing = saver.alist(config())
        seen = [await anext(listing)]
        # With one session in all: whatever held it would make these wait for ever.
        await asyncio.wait_for(put(saver, config("other"), checkpoint(1)), 60)
        assert len(await asyncio.wait_for(listed(saver, config()), 60)) == 7
        assert place(await asyncio.wait_for(get(saver, config("other")), 60))[0] == "other"
        # What is put while it is paused is newer and not part of it.
        await put(saver, config(), checkpoint(99))
        seen += [each async for each in listing]
        assert [place(each)[2] for each in seen] == [checkpoint_id(n) for n in range(7, 0, -1)]


async def test_an_abandoned_listing_holds_nothing(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema, max_size=1, page_rows=1) as saver:
        for number in range(1, 4):
            await put(saver, config(), checkpoint(number))
        listing = saver.alist(config())
        await anext(listing)
        del listing
        assert len(await asyncio.wait_for(listed(saver, config()), 60)) == 3
        assert (saver.stats().pool_size, saver.stats().pool_idle) == (1, 1)


async def test_two_savers_on_one_database(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema) as one, saver_on(dsn, schema, driver="asyncpg") as two:

        async def both(number: int) -> None:
            where = config(f"t{number}")
            what = checkpoint(1, {"n": [number], "big": LARGE_TEXT})
            await asyncio.gather(put(one, where, what), put(two, where, what))
            stored = config(f"t{number}", "", 1)
            await asyncio.gather(
                one.aput_writes(stored, [("a", 1), ("b", 2)], "task"),
                two.aput_writes(stored, [("b", 1), ("a", 2)], "task"),
                one.aput_writes(stored, [("__error__", 1)], "task"),
                two.aput_writes(stored, [("__error__", 1)], "task"),
            )

        await guarded(*(both(number) for number in range(60)))
        ours, theirs = await listed(one, None), await listed(two, None)
    assert ours == theirs
    assert len(ours) == 60
    for each in ours:
        written = [(channel, value) for _, channel, value in each.pending_writes or ()]
        assert written in (
            [("__error__", 1), ("a", 1), ("b", 2)],
            [("__error__", 1), ("b", 1), ("a", 2)],
        )


# --- order within a thread ----------------------------------------------------------------------------


async def test_writes_before_their_checkpoint(saver: AsyncPostgresSaver) -> None:
    await guarded(
        *await started(
            saver.aput_writes(config(number=1), [("a", HUGE_TEXT)], "task"),
            put(saver, config(), checkpoint(1)),
        )
    )
    assert (await get(saver, config())).pending_writes == [("task", "a", HUGE_TEXT)]


async def test_a_delete_after_a_put_removes_it(saver: AsyncPostgresSaver) -> None:
    big = {"big": HUGE_TEXT}
    for values in ({}, big):
        await guarded(
            *await started(
                put(saver, config(), checkpoint(1, values)),
                saver.aput_writes(config(number=1), [("a", 1)], "task"),
                saver.adelete_thread("thread"),
            )
        )
        assert await saver.aget_tuple(config()) is None
        await put(saver, config(), checkpoint(1))
        assert (await get(saver, config())).pending_writes == []
        await saver.adelete_thread("thread")


async def test_a_put_after_a_delete_stays(saver: AsyncPostgresSaver) -> None:
    await put(saver, config(), checkpoint(1, {"big": LARGE_TEXT}))
    what = checkpoint(2, {"big": LARGE_TEXT, "n": 1})
    await guarded(
        *await started(
            saver.adelete_thread("thread"),
            # Rests on a value that the deletion before it takes away.
            put(saver, config(number=1), what, new_versions={"n": version(1)}),
            saver.aput_writes(config(number=2), [("a", 1)], "task"),
        )
    )
    assert [place(each)[2] for each in await listed(saver, config())] == [checkpoint_id(2)]
    assert await values_of(saver, config()) == {"big": LARGE_TEXT, "n": 1}
    assert (await get(saver, config())).pending_writes == [("task", "a", 1)]


async def store(where: RunnableConfig, what: Checkpoint, saver: Any) -> None:
    await put(saver, where, what)


async def write(where: RunnableConfig, writes: list[tuple[str, Any]], task_id: str, saver: Any) -> None:
    await saver.aput_writes(where, writes, task_id)


async def delete(thread_id: str, saver: Any) -> None:
    await saver.adelete_thread(thread_id)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("pipeline", [True, False])
async def test_any_interleaving_ends_as_if_one_after_the_other(
    dsn: str, schema: str, driver: str, seed: int, pipeline: bool
) -> None:
    source = random.Random(seed)
    oracle = InMemorySaver()
    threads = [f"t{n}" for n in range(6)]
    step = 0
    async with saver_on(
        dsn, schema, driver=driver, pipeline=pipeline, max_batch_rows=7, lanes=2, max_size=3
    ) as saver:
        calls: list[Callable[[Any], Awaitable[Any]]] = []
        latest: dict[str, int] = {}
        for _ in range(150):
            thread_id = source.choice(threads)
            kind = source.choice(["put", "put", "writes", "writes", "special", "again", "delete"])
            known = config(thread_id, "", latest.get(thread_id, 1))
            step += 1
            value = HUGE_TEXT + str(step) if source.random() < 0.04 else [step]
            task = source.choice(["a", "b"])
            if kind == "delete":
                calls.append(partial(delete, thread_id))
            elif kind == "writes":
                calls.append(partial(write, known, [("c", value)] * source.randint(1, 3), task))
            elif kind == "special":
                calls.append(partial(write, known, [("__error__", value)], task))
            else:
                number = latest.get(thread_id, 1) if kind == "again" else step
                latest[thread_id] = number
                # The same parent whenever an id is put again: the oracle would replace it.
                what = checkpoint(number, {"c": value}, {"c": version(step)})
                calls.append(partial(store, config(thread_id), what))
        await guarded(*await started(*(call(saver) for call in calls)))
        for call in calls:
            await call(oracle)
        for thread_id in threads:
            ours, theirs = await listed(saver, config(thread_id)), await listed(oracle, config(thread_id))
            assert [place(each) for each in ours] == [place(each) for each in theirs]
            for mine, yours in zip(ours, theirs, strict=True):
                assert mine.checkpoint == yours.checkpoint
                # The oracle keeps writes in the order in which they came.
                assert sorted(mine.pending_writes or (), key=repr) == sorted(
                    yours.pending_writes or (), key=repr
                )


# --- one bad item -------------------------------------------------------------------------------------


async def test_one_bad_item_among_many(saver: AsyncPostgresSaver, dsn: str, schema: str) -> None:
    run_sql(dsn, f"ALTER TABLE {schema}.checkpoints ADD CHECK (thread_id <> 't77')")
    results = await asyncio.wait_for(
        asyncio.gather(
            *(put(saver, config(f"t{n}"), checkpoint(1, {"n": [n]})) for n in range(200)),
            return_exceptions=True,
        ),
        60,
    )
    failed = {n: result for n, result in enumerate(results) if isinstance(result, BaseException)}
    assert list(failed) == [77]
    error = failed[77]
    assert isinstance(error, RejectedError)
    assert error.thread_id == "t77"
    assert error.sqlstate == "23514"
    assert count_rows(dsn, schema) == 199
    assert saver.stats().items_rejected == 1
    assert saver.stats().checkpoints_written == 199
    assert (saver.stats().backlog_rows, saver.stats().backlog_bytes) == (0, 0)


async def test_bad_items_of_every_kind_fail_alone(saver: AsyncPostgresSaver, dsn: str, schema: str) -> None:
    run_sql(dsn, f"ALTER TABLE {schema}.writes ADD CHECK (task_id <> 'bad')")
    run_sql(dsn, f"ALTER TABLE {schema}.channel_values ADD CHECK (channel <> 'bad')")
    calls: list[Awaitable[Any]] = []
    for n in range(30):
        thread = f"t{n}"
        bad = n % 10 == 3
        calls.append(put(saver, config(thread), checkpoint(1, {"bad" if bad else "good": LARGE_TEXT})))
        calls.append(saver.aput_writes(config(thread, "", 1), [("a", 1)], "bad" if n % 10 == 4 else "good"))
    results = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 60)
    failed = [
        number for number, result in enumerate(results) if result is not None and not isinstance(result, dict)
    ]
    assert failed == [6, 9, 26, 29, 46, 49]
    assert all(isinstance(results[number], RejectedError) for number in failed)
    assert count_rows(dsn, schema) == 27
    assert run_sql(dsn, f"SELECT count(*) FROM {schema}.writes") == [(27,)]
    assert run_sql(dsn, f"SELECT count(*) FROM {schema}.channel_values") == [(27,)], "whole or not at all"


async def test_an_error_that_the_commit_finds_fails_alone(
    saver: AsyncPostgresSaver, dsn: str, schema: str
) -> None:
    run_sql(
        dsn,
        f"""CREATE FUNCTION {schema}.refuse() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN IF NEW.thread_id = 'bad' THEN RAISE 'no'; END IF; RETURN NULL; END $$""",
    )
    run_sql(
        dsn,
        f"""CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON {schema}.checkpoints
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {schema}.refuse()""",
    )
    results = await asyncio.wait_for(
        asyncio.gather(
            *(put(saver, config(thread), checkpoint(1)) for thread in ("a", "b", "bad", "c", "d")),
            return_exceptions=True,
        ),
        60,
    )
    assert [isinstance(result, RejectedError) for result in results] == [False, False, True, False, False]
    assert count_rows(dsn, schema) == 4


# --- cancellation -------------------------------------------------------------------------------------


async def test_hundreds_of_cancelled_callers(dsn: str, schema: str, saver: AsyncPostgresSaver) -> None:
    await put(saver, config("first"), checkpoint(1))
    await asyncio.gather(*(saver.aget_tuple(config("first")) for _ in range(50)))
    size = saver.stats().pool_size
    async with writes_blocked(dsn, schema):
        tasks = await started(
            *(
                put(saver, config(f"t{n}"), checkpoint(1, {"v": HUGE_TEXT if n % 100 == 0 else n}))
                for n in range(400)
            )
        )
        for number, task in enumerate(tasks):
            if number % 4:
                task.cancel()
        results = await asyncio.gather(*(t for n, t in enumerate(tasks) if n % 4), return_exceptions=True)
        assert all(isinstance(result, asyncio.CancelledError) for result in results)
    await guarded(*(task for number, task in enumerate(tasks) if number % 4 == 0))
    for number in range(0, 400, 4):
        assert (await values_of(saver, config(f"t{number}")))["v"] in (number, HUGE_TEXT)
    reads = await started(*(saver.aget_tuple(config(f"t{n}")) for n in range(300)))
    for read in reads:
        read.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
    listings = await started(*(listed(saver, None) for _ in range(20)))
    for listing in listings:
        listing.cancel()
    await asyncio.gather(*listings, return_exceptions=True)
    await put(saver, config("last"), checkpoint(1))
    assert place(await get(saver, config("last")))[0] == "last"
    stats = saver.stats()
    assert (stats.backlog_rows, stats.backlog_bytes, stats.items_rejected) == (0, 0, 0)
    assert size <= stats.pool_size <= 3
    assert stats.sessions_lost == 0


async def test_cancelled_callers_with_a_single_session(dsn: str, schema: str, driver: str) -> None:
    async with (
        FaultProxy(dsn) as proxy,
        saver_on(proxy.dsn, schema, driver=driver, max_size=1, min_size=1) as saver,
    ):
        await put(saver, config(), checkpoint(1))
        await get(saver, config())
        connections = proxy.count.connections
        for call in (
            lambda: saver.aget_tuple(config()),
            lambda: put(saver, config(), checkpoint(2)),
            lambda: listed(saver, config()),
            lambda: saver.adelete_thread("other"),
        ):
            held = proxy.hold(SYNC)
            [task] = await started(call())
            await asyncio.wait_for(held.reached.wait(), 60)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
            held.release()
            assert await asyncio.wait_for(get(saver, config()), 60)
        assert proxy.count.connections == connections, "no session had to be replaced"


# --- closing ------------------------------------------------------------------------------------------


async def test_closing_flushes_what_is_queued(dsn: str, schema: str, driver: str) -> None:
    async with saver_on(dsn, schema, driver=driver) as saver:
        async with writes_blocked(dsn, schema):
            tasks = await started(
                *(put(saver, config(f"t{n}"), checkpoint(1, {"v": [n]})) for n in range(100))
            )
            tasks += await started(put(saver, config("huge"), checkpoint(1, {"v": HUGE_TEXT})))
            [closing] = await started(saver.aclose())
            with pytest.raises(ClosedError):
                await put(saver, config("late"), checkpoint(1))
            assert not closing.done()
        await guarded(closing, *tasks)
    assert count_rows(dsn, schema) == 101


async def test_closing_gives_up_at_its_deadline(
    dsn: str, schema: str, driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with writes_blocked_after_setup(dsn, schema):
        async with AsyncPostgresSaver.from_conn_string(
            dsn, schema=schema, driver=driver, close_timeout_seconds=0.05, lanes=1, max_batch_rows=5
        ) as saver:
            await saver.aget_tuple(config())  # so that the first batch gets as far as the lock
            tasks = await started(*(put(saver, config(f"t{n}"), checkpoint(1)) for n in range(20)))
            await asyncio.wait_for(saver.aclose(), 60)
            results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        assert {type(result) for result in results} == {OutcomeUnknown, ClosedError}
        assert [type(result) for result in results].count(OutcomeUnknown) == 5
        for number, result in enumerate(results):
            assert isinstance(result, OutcomeUnknown | ClosedError)
            assert result.thread_id == f"t{number}"
    assert "5 calls were interrupted and may have been committed, 15 were not sent" in caplog.text
    assert count_rows(dsn, schema) == 0


@asynccontextmanager
async def writes_blocked_after_setup(dsn: str, schema: str) -> AsyncIterator[None]:
    async with saver_on(dsn, schema):
        pass
    async with writes_blocked(dsn, schema):
        yield


async def test_closing_flushes_what_was_queued_before_the_first_session(
    dsn: str, schema: str, driver: str
) -> None:
    async with saver_on(dsn, schema):
        pass
    async with AsyncPostgresSaver.from_conn_string(dsn, schema=schema, driver=driver) as saver:
        tasks = await started(*(put(saver, config(f"t{n}"), checkpoint(1)) for n in range(20)))
        await asyncio.wait_for(saver.aclose(), 60)
        await guarded(*tasks)
    assert count_rows(dsn, schema) == 20


async def test_closing_while_the_first_session_is_stuck(dsn: str, schema: str, driver: str) -> None:
    async with saver_on(dsn, schema):
        pass
    async with FaultProxy(dsn) as proxy:
        async with AsyncPostgresSaver.from_conn_string(
            proxy.dsn, schema=schema, driver=driver, close_timeout_seconds=0.05
        ) as saver:
            stuck = proxy.half_open(b"installed_tables")
            tasks = await started(put(saver, config(), checkpoint(1)), saver.aget_tuple(config()))
            await asyncio.wait_for(stuck.wait(), 60)
            await asyncio.wait_for(saver.aclose(), 60)
            results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
        assert all(isinstance(result, PgcairnError) for result in results), results


async def test_closing_gives_up_on_reads_too(dsn: str, schema: str, driver: str) -> None:
    async with (
        saver_on(dsn, schema, driver=driver, close_timeout_seconds=0.05) as saver,
        await psycopg.AsyncConnection.connect(dsn) as other,
    ):
        await put(saver, config(), checkpoint(1))
        await other.execute(f"LOCK TABLE {schema}.checkpoints IN ACCESS EXCLUSIVE MODE".encode())
        tasks = await started(
            *(saver.aget_tuple(config(f"t{n}")) for n in range(200)),
            listed(saver, None),
            listed(saver, config()),
        )
        await asyncio.wait_for(saver.aclose(), 60)
        results = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
    assert {type(result) for result in results} == {ClosedError}


async def test_closing_twice_and_by_many(dsn: str, schema: str, driver: str) -> None:
    async with saver_on(dsn, schema, driver=driver) as saver:
        await put(saver, config(), checkpoint(1))
        await guarded(*(saver.aclose() for _ in range(5)))
        await saver.aclose()


async def test_calls_after_closing(dsn: str, schema: str, driver: str) -> None:
    async with saver_on(dsn, schema, driver=driver) as saver:
        await put(saver, config(), checkpoint(1))
        await saver.aclose()
        for call in (
            saver.aget_tuple(config()),
            saver.aget(config()),
            put(saver, config(), checkpoint(2)),
            saver.aput_writes(config(number=1), [("a", 1)], "task"),
            saver.adelete_thread("thread"),
            listed(saver, config()),
            saver.setup(),
            saver.open(),
        ):
            with pytest.raises(ClosedError):
                await asyncio.wait_for(call, 60)
        assert saver.stats().checkpoints_written == 1


async def test_a_listing_that_is_under_way_when_the_saver_closes(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema, page_rows=1) as saver:
        for number in range(1, 4):
            await put(saver, config(), checkpoint(number))
        listing = saver.alist(config())
        await anext(listing)
        await saver.aclose()
        with pytest.raises(ClosedError):
            _ = [each async for each in listing]


async def test_closing_a_saver_that_was_never_used(dsn: str, schema: str) -> None:
    async with AsyncConnectionPool(dsn, min_size=1, open=False) as pool:
        saver = AsyncPostgresSaver(pool, settings=Settings(schema=schema))
        await saver.aclose()
        with pytest.raises(ClosedError):
            await saver.aget_tuple(config())
        async with pool.connection() as connection:  # it stays the user's
            await connection.execute("SELECT 1")


async def test_a_place_in_the_gate_is_given_back_by_who_leaves(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema, max_backlog_rows=1) as saver:
        async with writes_blocked(dsn, schema):
            first, left = await started(
                put(saver, config("first"), checkpoint(1)), put(saver, config("left"), checkpoint(1))
            )
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
        await guarded(first)
        assert await saver.aget_tuple(config("left")) is None


async def test_nothing_is_kept_of_sessions_that_are_closed(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema) as saver:
        await put(saver, config(), checkpoint(1))
    gc.collect()
    assert not [connection for connection in psycopg_driver._wires if connection.closed]


# --- other loops and threads --------------------------------------------------------------------------


@contextmanager
def loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    """Another event loop, running in another thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def elsewhere(loop: asyncio.AbstractEventLoop, make: Callable[[], Any]) -> Any:
    """Run a coroutine on the other loop; this one goes on."""

    async def run() -> Any:
        return await make()

    return await asyncio.wait_for(asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), loop)), 60)


async def test_calls_from_another_loop_are_forwarded(saver: AsyncPostgresSaver) -> None:
    with loop_in_a_thread() as other:
        stored = await elsewhere(other, lambda: put(saver, config(), checkpoint(1, {"v": [1]})))
        await elsewhere(other, lambda: saver.aput_writes(stored, [("a", 1)], "task"))
        found = await elsewhere(other, lambda: get(saver, config()))
        assert found.checkpoint["channel_values"] == {"v": [1]}
        assert await elsewhere(other, lambda: listed(saver, config())) == [found]
        assert await get(saver, config()) == found
        await elsewhere(other, lambda: saver.adelete_thread("thread"))
        assert await saver.aget_tuple(config()) is None
        with pytest.raises(ValueError, match="thread_id is empty"):
            await elsewhere(other, lambda: put(saver, config(""), checkpoint(1)))
        await elsewhere(other, saver.setup)
        await elsewhere(other, saver.open)
        await elsewhere(other, saver.aclose)
    with pytest.raises(ClosedError):
        await saver.aget_tuple(config())


async def test_a_listing_that_another_loop_leaves(saver: AsyncPostgresSaver) -> None:
    for number in range(1, 20):
        await put(saver, config(), checkpoint(number))

    async def first() -> Any:
        listing = saver.alist(config())
        found = await anext(listing)
        await listing.aclose()  # type: ignore[attr-defined]
        return found

    with loop_in_a_thread() as other:
        assert place(await elsewhere(other, first))[2] == checkpoint_id(19)


async def test_a_listing_that_is_cancelled_in_another_loop(dsn: str, schema: str) -> None:
    async with FaultProxy(dsn) as proxy, saver_on(proxy.dsn, schema) as saver:
        await put(saver, config(), checkpoint(1))
        held = proxy.hold(b"page_of_namespace")

        async def leave() -> bool:
            task = asyncio.ensure_future(listed(saver, config()))
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(held.reached.wait(), owner))
            task.cancel()
            await asyncio.wait([task])
            return task.cancelled()

        owner = asyncio.get_running_loop()
        with loop_in_a_thread() as other:
            assert await elsewhere(other, leave)
        held.release()
        assert await get(saver, config())


def test_a_sync_saver_after_its_block(dsn: str, schema: str) -> None:
    with PostgresSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
    saver.close()
    with pytest.raises(ClosedError):
        saver.get_tuple(config())


async def test_a_saver_that_was_closed_and_whose_loop_has_gone(dsn: str, schema: str) -> None:
    async def use() -> AsyncPostgresSaver:
        async with saver_on(dsn, schema) as saver:
            return saver

    saver = await asyncio.to_thread(asyncio.run, use())
    await saver.aclose()
    with pytest.raises(ClosedError):
        await saver.aget_tuple(config())


def used_in_a_loop_that_ended(dsn: str, schema: str) -> AsyncPostgresSaver:
    async def use() -> AsyncPostgresSaver:
        async with AsyncConnectionPool(dsn, min_size=1, open=False) as pool:
            saver = AsyncPostgresSaver(pool, settings=Settings(schema=schema))
            await saver.setup()
            await put(saver, config(), checkpoint(1))
            return saver

    return asyncio.run(use())


def test_a_loop_that_was_closed(dsn: str, schema: str) -> None:
    saver = used_in_a_loop_that_ended(dsn, schema)

    async def use_again() -> list[str]:
        texts = []
        for call in (
            saver.aget_tuple(config()),
            put(saver, config(), checkpoint(2)),
            saver.aput_writes(config(number=1), [("a", 1)], "task"),
            saver.adelete_thread("thread"),
            listed(saver, config()),
            saver.aclose(),
        ):
            with pytest.raises(WrongLoopError) as caught:
                await asyncio.wait_for(call, 60)
            texts.append(str(caught.value))
            assert repr(asyncio.get_running_loop()) in texts[-1]
        return texts

    for text in asyncio.run(use_again()):
        assert "which is closed" in text
        assert text.count("EventLoop") >= 2, "both are named"
    with pytest.raises(WrongLoopError, match="a thread without an event loop"):
        saver.get_tuple(config())


def test_a_loop_that_stops_while_somebody_waits(dsn: str, schema: str) -> None:
    loop = asyncio.new_event_loop()
    stack = AsyncExitStack()

    async def begin(executor: concurrent.futures.Executor) -> tuple[Hold, concurrent.futures.Future[Any]]:
        proxy = await stack.enter_async_context(FaultProxy(dsn))
        saver = await stack.enter_async_context(saver_on(proxy.dsn, schema))
        await saver.aget_tuple(config())
        held = proxy.hold(SYNC)
        waiting: concurrent.futures.Future[Any] = executor.submit(
            saver.put, config(), checkpoint(1), metadata(), {}
        )
        await asyncio.wait_for(held.reached.wait(), 60)
        return held, waiting

    async def end(held: Hold) -> None:
        held.release()
        await stack.aclose()

    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        held, waiting = loop.run_until_complete(begin(executor))
        # The loop stands still now, with the call on its way to the server.
        with pytest.raises(WrongLoopError, match="not running"):
            waiting.result(60)
        loop.run_until_complete(end(held))
        loop.close()


async def test_sync_twins_from_another_thread(saver: AsyncPostgresSaver) -> None:
    def use() -> list[Any]:
        stored = saver.put(config(), checkpoint(1, {"v": [1]}), metadata(step=1), {"v": version(1)})
        saver.put_writes(stored, [("a", 1)], "task")
        found = saver.get_tuple(config())
        seen = [found, *saver.list(config()), *saver.list(None, filter={"step": 1}, limit=1)]
        assert saver.get(config()) == (found.checkpoint if found else None)
        saver.delete_thread("thread")
        seen.append(saver.get_tuple(config()))
        return seen

    found, again, filtered, none = await asyncio.wait_for(asyncio.to_thread(use), 60)
    assert found.checkpoint["channel_values"] == {"v": [1]}
    assert found.pending_writes == [("task", "a", 1)]
    assert found == again == filtered
    assert none is None


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("aget_tuple", lambda s: s.get_tuple(config())),
        ("aput", lambda s: s.put(config(), checkpoint(1), metadata(), {})),
        ("aput_writes", lambda s: s.put_writes(config(number=1), [("a", 1)], "task")),
        ("adelete_thread", lambda s: s.delete_thread("t")),
        ("alist", lambda s: list(s.list(config()))),
    ],
)
async def test_sync_twins_on_the_loops_own_thread(
    dsn: str, schema: str, name: str, call: Callable[[AsyncPostgresSaver], object]
) -> None:
    async with saver_on(dsn, schema) as saver:
        with pytest.raises(asyncio.InvalidStateError, match=rf"saver\.{name}\("):
            call(saver)
        assert await saver.aget_tuple(config()) is None


async def test_sync_twins_within_another_loop(saver: AsyncPostgresSaver) -> None:
    # It blocks that other loop, as the caller asked for, and is answered by this one.
    async def call() -> Any:
        return saver.get_tuple(config("t"))

    with loop_in_a_thread() as other:
        assert await elsewhere(other, call) is None


def test_a_saver_made_without_a_loop(dsn: str, schema: str) -> None:
    pool = AsyncConnectionPool(dsn, min_size=1, open=False)
    saver = AsyncPostgresSaver(pool, settings=Settings(schema=schema))
    with pytest.raises(WrongLoopError, match="no event loop yet"):
        saver.get_tuple(config())

    async def use() -> None:
        async with pool:
            await saver.setup()
            await put(saver, config(), checkpoint(1))
            await saver.aclose()

    asyncio.run(use())


def test_the_sync_saver_from_many_threads(dsn: str, schema: str, driver: str) -> None:
    with PostgresSaver.from_conn_string(dsn, schema=schema, driver=driver, max_size=2) as saver:
        saver.setup()
        barrier = threading.Barrier(16)

        def use(number: int) -> list[Any]:
            thread = f"t{number}"
            barrier.wait(60)
            where = config(thread)
            for step in range(1, 6):
                where = saver.put(
                    where,
                    checkpoint(step, {"n": [step]}, {"n": version(step)}),
                    metadata(),
                    {"n": version(step)},
                )
                saver.put_writes(where, [("n", step)], "task")
            return [each.checkpoint["channel_values"]["n"] for each in saver.list(config(thread))]

        with concurrent.futures.ThreadPoolExecutor(16) as executor:
            found = list(executor.map(use, range(16), timeout=60))
        assert found == [[[5], [4], [3], [2], [1]]] * 16
        assert saver.stats().batches < 16 * 10, "threads share transactions"
        saver.close()
        with pytest.raises(ClosedError):
            saver.get_tuple(config("t1"))
    assert not [thread for thread in threading.enumerate() if thread.name == "pgcairn-loop"]


def test_the_sync_saver_in_async_code(dsn: str, schema: str) -> None:
    with PostgresSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()

        async def use() -> Any:
            await put(saver, config(), checkpoint(1, {"v": 1}))
            return await values_of(saver, config())

        assert asyncio.run(use()) == {"v": 1}


def test_the_sync_saver_says_what_is_wrong(dsn: str, schema: str) -> None:
    with (
        PostgresSaver.from_conn_string(dsn, schema=schema) as saver,
        pytest.raises(SchemaError, match="pgcairn setup"),
    ):
        saver.get_tuple(config())
    assert not [thread for thread in threading.enumerate() if thread.name == "pgcairn-loop"]


# --- the bound on what waits --------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [0, 0.02])
async def test_a_full_backlog_refuses(dsn: str, schema: str, seconds: float) -> None:
    async with saver_on(dsn, schema, max_backlog_rows=3, backlog_timeout_seconds=seconds) as saver:
        async with writes_blocked(dsn, schema):
            queued = await started(*(put(saver, config(f"t{n}"), checkpoint(1)) for n in range(3)))
            assert saver.stats().backlog_rows == 3
            with pytest.raises(BacklogFull, match="3 rows") as caught:
                await put(saver, config("too many"), checkpoint(1))
            assert caught.value.thread_id == "too many"
            assert caught.value.retryable
            with pytest.raises(BacklogFull):
                await saver.aput_writes(config(number=1), [("a", 1)], "task")
            assert await saver.aget_tuple(config()) is None, "reads go on"
            assert (saver.stats().backlog_waits, saver.stats().backlog_refusals) == (2, 2)
        await guarded(*queued)
        await put(saver, config("too many"), checkpoint(1))
        assert saver.stats().backlog_rows == 0
    assert count_rows(dsn, schema) == 4


async def test_a_full_backlog_waits(dsn: str, schema: str, driver: str) -> None:
    async with saver_on(dsn, schema, driver=driver, max_backlog_rows=4) as saver:
        async with writes_blocked(dsn, schema):
            calls = [put(saver, config(f"t{n % 10}"), checkpoint(1 + n)) for n in range(40)]
            queued = await started(*calls)
            assert saver.stats().backlog_rows == 4
            assert saver.stats().backlog_waits == 36
            for task in queued[10:20]:
                task.cancel()
            await asyncio.gather(*queued[10:20], return_exceptions=True)
        await guarded(*queued[:10], *queued[20:])
        stats = saver.stats()
        assert (stats.backlog_rows, stats.backlog_bytes, stats.backlog_refusals) == (0, 0, 0)
        assert len(await listed(saver, None)) >= 30


async def test_a_full_backlog_is_bounded_in_bytes(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema, max_backlog_bytes=1024, backlog_timeout_seconds=0) as saver:
        async with writes_blocked(dsn, schema):
            # A single item may exceed the bound; nothing else fits beside it.
            queued = await started(put(saver, config("large"), checkpoint(1, {"v": LARGE_TEXT})))
            with pytest.raises(BacklogFull, match="1024 bytes"):
                await put(saver, config("small"), checkpoint(1))
        await guarded(*queued)


async def test_order_holds_at_the_gate(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema, max_backlog_rows=1) as saver:
        calls: list[Awaitable[Any]] = []
        for n in range(1, 8):
            calls += [put(saver, config(), checkpoint(n)), saver.adelete_thread("thread")]
        calls.append(put(saver, config(), checkpoint(9)))
        await guarded(*await started(*calls))
        assert [place(each)[2] for each in await listed(saver, config())] == [checkpoint_id(9)]


# --- schema and clones --------------------------------------------------------------------------------


async def test_a_missing_schema_names_the_command(dsn: str, schema: str, driver: str) -> None:
    async with AsyncPostgresSaver.from_conn_string(dsn, schema=schema, driver=driver) as saver:
        for call in (
            saver.aget_tuple(config()),
            put(saver, config(), checkpoint(1)),
            saver.aput_writes(config(number=1), [("a", 1)], "task"),
            saver.adelete_thread("thread"),
            listed(saver, config()),
        ):
            with pytest.raises(SchemaError, match=schema) as caught:
                await asyncio.wait_for(call, 60)
            assert "pgcairn setup" in str(caught.value)
        await saver.setup()
        await put(saver, config(), checkpoint(1))


async def test_a_schema_that_goes_away(dsn: str, schema: str, driver: str) -> None:
    async with saver_on(dsn, schema, driver=driver) as saver:
        await put(saver, config(), checkpoint(1))
        run_sql(dsn, f"DROP SCHEMA {schema} CASCADE")
        with pytest.raises(SchemaError, match="pgcairn setup"):
            await put(saver, config(), checkpoint(2))
        with pytest.raises(SchemaError, match="pgcairn setup"):
            await saver.aget_tuple(config())
        await saver.setup()
        await put(saver, config(), checkpoint(3))
        assert place(await get(saver, config()))[2] == checkpoint_id(3)


async def test_many_set_the_schema_up_at_once(dsn: str, schema: str) -> None:
    async def one(driver: str) -> None:
        async with saver_on(dsn, schema, driver=driver, min_size=1):
            pass

    await guarded(*(one("psycopg" if n % 2 else "asyncpg") for n in range(10)))
    assert run_sql(dsn, f"SELECT count(*) = max(version) FROM {schema}.schema_version") == [(True,)]


async def test_clones_share_the_pool(saver: AsyncPostgresSaver) -> None:
    clone = saver.with_allowlist([("tests.nowhere", "Thing")])
    assert type(clone) is AsyncPostgresSaver
    await saver.aget_tuple(config())
    opened = saver.stats().sessions_opened
    await guarded(
        *await started(
            put(clone, config(), checkpoint(1, {"big": LARGE_TEXT})),
            saver.adelete_thread("thread"),
            put(clone, config(), checkpoint(2, {"big": LARGE_TEXT})),
        )
    )
    assert [place(each)[2] for each in await listed(saver, config())] == [checkpoint_id(2)], (
        "one order for both"
    )
    assert clone.stats() == saver.stats()
    assert saver.stats().sessions_opened <= max(opened, 3)
    await clone.aclose()
    with pytest.raises(ClosedError):
        await saver.aget_tuple(config())
