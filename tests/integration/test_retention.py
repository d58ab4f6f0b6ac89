"""Pruning and deleting runs: what stays, what goes, what is only hidden, and that runs go on as if nothing had gone."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Annotated, Any
from urllib.parse import quote

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple, DeltaChannelHistory
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver as OfficialSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from pgcairn import AsyncPostgresSaver, InvalidInput, OutcomeUnknown, UnavailableError, WrongType
from pgcairn.connection.pool import Query, Session
from pgcairn.operations import retention
from pgcairn.storage.thread_repository import ThreadRepository
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
    version,
)
from tests.support.server import run_sql

Saver = BaseCheckpointSaver[Any]

PID = Query("pid", "SELECT pg_backend_pid()", ())


@pytest.fixture
async def saver(dsn: str, schema: str) -> AsyncIterator[AsyncPostgresSaver]:
    async with saver_on(dsn, schema) as opened:
        yield opened


@pytest.fixture(params=["psycopg", "asyncpg"])
async def either(dsn: str, schema: str, request: pytest.FixtureRequest) -> AsyncIterator[AsyncPostgresSaver]:
    # Without edits: what is stored of a value does not depend on what was stored before.
    async with saver_on(dsn, schema, driver=request.param, base_cache_bytes=0) as opened:
        yield opened


@pytest.fixture
async def official(dsn: str, schema: str) -> AsyncIterator[OfficialSaver]:
    name = f"{schema}_official"
    run_sql(dsn, f"CREATE SCHEMA {name}")
    async with OfficialSaver.from_conn_string(f"{dsn}?options={quote(f'-csearch_path={name}')}") as opened:
        await opened.setup()
        yield opened


def rows(dsn: str, schema: str, table: str, columns: str, thread_id: str = "thread") -> list[Any]:
    return run_sql(
        dsn, f"SELECT {columns} FROM {schema}.{table} WHERE thread_id = %s ORDER BY {columns}", thread_id
    )


async def chain(
    saver: Saver, numbers: Sequence[int], checkpoint_ns: str = "", **more: Mapping[int, Any]
) -> None:
    """Checkpoints, each the child of the one before, with a large value, a small one and a write each."""
    parent: int | None = None
    for number in numbers:
        meta = metadata(source="loop", step=number, **more.get("meta", {}).get(number, {}))
        what = checkpoint(
            number,
            {"big": f"{number} {LARGE_TEXT}", "n": number},
            {"big": version(number), "n": version(number)},
            v=more.get("v", {}).get(number, 4),
        )
        where = await put(saver, config("thread", checkpoint_ns, parent), what, meta)
        await saver.aput_writes(where, [("n", number), ("big", [number])], "task")
        parent = number


def seen(found: CheckpointTuple) -> tuple[Any, ...]:
    parent = found.parent_config
    return (
        place(found),
        None if parent is None else parent["configurable"]["checkpoint_id"],
        found.checkpoint["channel_values"],
        found.pending_writes,
    )


async def all_seen(saver: Saver) -> list[tuple[Any, ...]]:
    return sorted([seen(each) for each in await listed(saver, config("thread", None))], key=repr)


# --- what stays -------------------------------------------------------------------------------------


async def test_the_newest_stay_with_their_writes_and_values(
    either: AsyncPostgresSaver, dsn: str, schema: str
) -> None:
    await chain(either, range(1, 8))
    await chain(either, range(10, 13), "stateful")
    await either.aput_writes(config("thread", "", 99), [("early", 1)], "task")
    before = await all_seen(either)

    await either.aprune(["thread"], keep_last=3)

    kept = [
        *(("", checkpoint_id(n)) for n in (5, 6, 7)),
        *(("stateful", checkpoint_id(n)) for n in (10, 11, 12)),
    ]
    expected = [each for each in before if each[0][1:] in kept]
    expected = [(each[0], None, *each[2:]) if each[1] == checkpoint_id(4) else each for each in expected]
    assert await all_seen(either) == expected
    assert rows(dsn, schema, "checkpoints", "checkpoint_ns, checkpoint_id, hidden") == [
        (*each, False) for each in kept
    ]
    assert rows(dsn, schema, "channel_values", "version") == [(version(n),) for n in (5, 6, 7, 10, 11, 12)]
    stored = {each for (each,) in rows(dsn, schema, "writes", "checkpoint_id")}
    assert stored == {each[1] for each in kept} | {checkpoint_id(99)}, "writes that came early stay"
    stats = either.stats()
    assert (stats.checkpoints_pruned, stats.writes_pruned, stats.values_pruned) == (4, 8, 4)
    assert stats.checkpoints_hidden == 0

    await either.aprune(["thread"])
    assert [place(each)[1:] for each in await listed(either, config("thread", None))] == [
        ("stateful", checkpoint_id(12)),
        ("", checkpoint_id(7)),
    ]


CALLS: dict[str, tuple[str, ...]] = {
    "of a root checkpoint that goes": ("call:1", checkpoint_id(1)),
    "of the root checkpoint that stays": ("call:2", checkpoint_id(3)),
    "of one that is not saved": ("call:3", checkpoint_id(77)),
    "nested": ("call:1|inner:4", checkpoint_id(2)),
    "without a root": ("call:5",),
}


async def call_scenario(saver: Saver) -> list[Any]:
    await chain(saver, range(1, 4))
    for number, (checkpoint_ns, *root) in enumerate(CALLS.values(), 1):
        numbers = [10 * number, 10 * number + 1]
        meta: dict[int, Any] = {
            each: {"parents": {"": root[0], **({} if number != 4 else {"call:1": "x"})}} if root else {}
            for each in numbers
        }
        await chain(saver, numbers, checkpoint_ns, meta=meta)
    await chain(saver, [60, 61], "stateful", meta={61: {"parents": {"": checkpoint_id(1)}}})
    await saver.aprune(["thread"])
    return await all_seen(saver)


async def test_subgraph_calls_go_with_their_root_checkpoints_as_with_the_official_saver(
    saver: AsyncPostgresSaver, official: OfficialSaver
) -> None:
    found = await call_scenario(saver)
    assert found == await call_scenario(official)
    assert [each[0][1] for each in found] == ["", "call:2", "call:3", "call:5", "stateful"]


async def sends_scenario(saver: Saver) -> dict[str, Any]:
    await chain(saver, range(1, 5), v=dict.fromkeys(range(1, 5), 3))
    await saver.aput_writes(config("thread", "", 3), [("__pregel_tasks", "send me")], "task 2")
    await saver.aput_writes(config("thread", "", 2), [("__pregel_tasks", "not me")], "task 2")
    await saver.aprune(["thread"])
    found = (await listed(saver, config("thread")))[0]  # the official saver keeps the parent in sight
    assert found == await get(saver, config("thread"))
    return found.checkpoint["channel_values"]


async def test_sends_of_old_formats_survive_as_with_the_official_saver(
    saver: AsyncPostgresSaver, official: OfficialSaver, dsn: str, schema: str
) -> None:
    found = await sends_scenario(saver)
    assert found["__pregel_tasks"] == ["send me"]
    assert found == await sends_scenario(official)
    assert (await get(saver, config("thread"))).parent_config is None
    columns = "checkpoint_id, hidden, parent_checkpoint_id, hidden_parent_id"
    assert rows(dsn, schema, "checkpoints", columns) == [
        (checkpoint_id(3), True, None, None),
        (checkpoint_id(4), False, None, checkpoint_id(3)),
    ]
    await put(saver, config("thread", "", 4), checkpoint(5, {"n": 5}))
    await saver.aprune(["thread"])
    assert rows(dsn, schema, "checkpoints", columns) == [(checkpoint_id(5), False, None, None)]


async def test_bases_of_values_stay_as_long_as_they_are_needed(
    saver: AsyncPostgresSaver, dsn: str, schema: str
) -> None:
    await chain(saver, range(1, 7))
    run_sql(
        dsn,
        f"UPDATE {schema}.channel_values SET chain = CASE version WHEN %s THEN ARRAY[%s, %s] WHEN %s THEN ARRAY[%s] END",
        *(version(6), version(4), version(1), version(5), version(2)),
    )
    await saver.aprune(["thread"])
    assert rows(dsn, schema, "channel_values", "version") == [(version(n),) for n in (1, 4, 6)]


async def test_values_that_nothing_refers_to_any_more_are_found_later(
    saver: AsyncPostgresSaver, dsn: str, schema: str
) -> None:
    await chain(saver, [1])
    run_sql(
        dsn,
        f"INSERT INTO {schema}.channel_values (thread_id, checkpoint_ns, channel, version, type, frame) "
        "VALUES ('thread', '', 'big', 'left', 't', 'f'), ('other', '', 'big', 'left', 't', 'f')",
    )
    await saver.aprune(["thread"])
    assert rows(dsn, schema, "channel_values", "version") == [(version(1),)]
    assert rows(dsn, schema, "channel_values", "version", "other") == [("left",)]


async def test_delete_is_the_deletion_of_threads(saver: AsyncPostgresSaver, dsn: str, schema: str) -> None:
    await chain(saver, range(1, 4))
    await put(saver, config("other"), checkpoint(1, {"n": 1}))
    await saver.aprune(["thread", "nobody", "thread"], strategy="delete")
    for table in ("checkpoints", "channel_values", "writes"):
        assert rows(dsn, schema, table, "checkpoint_ns") == []
    assert await saver.aget_tuple(config("other")) is not None


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        (["a"], {"strategy": "oldest"}, "'keep_latest' or 'delete'"),
        (["a"], {"keep_last": 0}, "keep_last=0"),
        (["a"], {"keep_last": True}, "keep_last=True"),
        (["a"], {"keep_last": 2, "strategy": "delete"}, "keep_last=2"),
        ([""], {}, "thread_id is empty"),
        (["a\x00"], {}, "NUL"),
    ],
)
async def test_wrong_arguments_are_refused(
    saver: AsyncPostgresSaver, arguments: list[str], keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        await saver.aprune(arguments, **keywords)


async def test_a_text_is_no_list(saver: AsyncPostgresSaver) -> None:
    for call in (saver.aprune("thread"), saver.adelete_for_runs("run")):
        with pytest.raises(WrongType, match="pass a list"):
            await call
    assert issubclass(WrongType, TypeError)


# --- DeltaChannels: by hand -----------------------------------------------------------------------


def counting(updates: int, supersteps: int) -> dict[str, Any]:
    return {"counters_since_delta_snapshot": {"d": [updates, supersteps]}}


LINKS = "checkpoint_id, hidden, parent_checkpoint_id, hidden_parent_id"


def ids(dsn: str, schema: str, *, hidden: bool) -> list[int]:
    return [
        int(each[-12:])
        for each, is_hidden in rows(dsn, schema, "checkpoints", "checkpoint_id, hidden")
        if is_hidden == hidden
    ]


async def test_what_a_delta_channel_is_rebuilt_from_is_hidden_and_swept_later(
    either: AsyncPostgresSaver, dsn: str, schema: str
) -> None:
    # The snapshot is in 3; 9 is three supersteps after another channel's snapshot in 6, and six after that in 3.
    meta = {n: counting(1, n - 3) for n in range(4, 9)}
    meta[9] = {"counters_since_delta_snapshot": {"d": [2, 6], "e": [0, 3]}}
    await chain(either, range(1, 10), meta=meta)
    await either.aprune(["thread"], keep_last=2)
    assert ids(dsn, schema, hidden=False) == [8, 9]
    assert ids(dsn, schema, hidden=True) == [3, 4, 5, 6, 7]
    assert rows(dsn, schema, "channel_values", "version") == [(version(n),) for n in range(3, 10)]
    assert len(rows(dsn, schema, "writes", "checkpoint_id")) == 2 * 7
    links = rows(dsn, schema, "checkpoints", LINKS)
    assert links[0] == (checkpoint_id(3), True, None, None)
    assert links[4] == (checkpoint_id(7), True, None, checkpoint_id(6))
    assert links[5] == (checkpoint_id(8), False, None, checkpoint_id(7))
    assert links[6] == (checkpoint_id(9), False, checkpoint_id(8), None)
    assert either.stats().checkpoints_hidden == 5

    # No reader sees them.
    assert [place(each)[2] for each in await listed(either, None)] == [checkpoint_id(9), checkpoint_id(8)]
    assert (
        len(await listed(either, config("thread"))) == len(await listed(either, config("thread", None))) == 2
    )
    assert await either.aget_tuple(config("thread", "", 7)) is None
    many = [either.aget_tuple(config("thread", "", n)) for n in (3, 7, 8)]
    assert [each is None for each in await asyncio.gather(*many)] == [True, True, False]
    assert (await get(either, config("thread", "", 8))).parent_config is None

    await either.aprune(["thread"], keep_last=2)
    assert ids(dsn, schema, hidden=True) == [3, 4, 5, 6, 7], "still needed"
    await put(either, config("thread", "", 9), checkpoint(10, {"n": 1}), metadata(**counting(0, 0)))
    await put(either, config("thread", "", 10), checkpoint(11, {"n": 1}), metadata(**counting(1, 1)))
    await either.aprune(["thread"])
    assert rows(dsn, schema, "checkpoints", LINKS) == [
        (checkpoint_id(10), True, None, None),
        (checkpoint_id(11), False, None, checkpoint_id(10)),
    ]
    assert rows(dsn, schema, "channel_values", "version") == []


async def test_no_reader_sees_a_hidden_checkpoint_wherever_it_stands(
    either: AsyncPostgresSaver, dsn: str, schema: str
) -> None:
    await chain(either, range(1, 6))
    hide = f"UPDATE {schema}.checkpoints SET hidden = true WHERE checkpoint_id IN (%s, %s)"
    run_sql(dsn, hide, checkpoint_id(3), checkpoint_id(5))
    assert (await get(either, config())).checkpoint["id"] == checkpoint_id(4)
    several = [config(), config("thread", "", 5), config("thread", "", 3), config("thread", "", 2)]
    found = await asyncio.gather(*(either.aget_tuple(where) for where in several))
    assert [each and each.checkpoint["id"] for each in found] == [
        checkpoint_id(4),
        None,
        None,
        checkpoint_id(2),
    ]
    for where in (None, config(), config("thread", None)):
        assert [int(place(each)[2][-12:]) for each in await listed(either, where)] == [4, 2, 1]
    assert (
        await listed(either, config("thread", "", 5)) == await listed(either, config("thread", None, 3)) == []
    )


@pytest.mark.parametrize(
    "counters", [{"d": [1, 100]}, {"d": "rubbish"}, {"d": [1, "x"]}, "rubbish", {"d": [1, 10**18]}]
)
async def test_a_need_that_reaches_beyond_the_root_or_is_not_understood_keeps_all(
    saver: AsyncPostgresSaver, dsn: str, schema: str, counters: Any
) -> None:
    await chain(saver, range(1, 5), meta={4: {"counters_since_delta_snapshot": counters}})
    await saver.aprune(["thread"])
    assert ids(dsn, schema, hidden=True) == [1, 2, 3]


async def test_a_need_follows_parents_and_not_ids(saver: AsyncPostgresSaver, dsn: str, schema: str) -> None:
    await chain(saver, range(1, 5))
    await put(saver, config("thread", "", 2), checkpoint(9, {"n": 1}), metadata(**counting(1, 2)))
    await saver.aprune(["thread"])
    assert ids(dsn, schema, hidden=True) == [1, 2]


async def test_a_put_brings_a_hidden_checkpoint_back(
    saver: AsyncPostgresSaver, dsn: str, schema: str
) -> None:
    await chain(saver, range(1, 4), meta={3: counting(1, 2)})
    before = await get(saver, config("thread", "", 2))
    await saver.aprune(["thread"])
    for what in (before.checkpoint, {**before.checkpoint, "ts": "later"}):
        await put(saver, config("thread", "", 1), what, before.metadata, {})  # type: ignore[arg-type]
        found = await get(saver, config("thread", "", 2))
        assert found.checkpoint == what
        assert found.parent_config is None
        await saver.aprune(["thread"], keep_last=2)
        child = await get(saver, config("thread", "", 3))
        assert child.parent_config is not None, "its parent can be seen again"
        await saver.aprune(["thread"])
        assert ids(dsn, schema, hidden=True) == [1, 2]


async def test_a_replacement_whose_value_was_pruned_meanwhile_brings_it_again(
    saver: AsyncPostgresSaver, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await chain(saver, [1])
    repository = saver._engine.repository
    replace = repository.replace_checkpoint
    calls = 0

    async def pruned_in_between(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:  # the batch has brought the value, and nothing refers to it yet
            run_sql(dsn, f"DELETE FROM {schema}.channel_values WHERE version = %s", version(2))
        return await replace(*arguments)

    monkeypatch.setattr(repository, "replace_checkpoint", pruned_in_between)
    await put(saver, config("thread"), checkpoint(1, {"big": LARGE_TEXT}, {"big": version(2)}))
    assert calls == 2
    assert (await get(saver, config("thread"))).checkpoint["channel_values"] == {"big": LARGE_TEXT}


# --- runs -------------------------------------------------------------------------------------------


async def test_the_checkpoints_of_runs_go_in_all_threads(
    either: AsyncPostgresSaver, dsn: str, schema: str
) -> None:
    await chain(either, range(1, 6), meta={2: {"run_id": "r"}, 3: {"run_id": "s"}, 5: {"run_id": "r"}})
    for thread_id, run_id in (("other", "r"), ("third", "t")):
        await put(either, config(thread_id), checkpoint(1, {"n": 1}), metadata(run_id=run_id))
    await either.adelete_for_runs(["r", "s", "nobody"])
    assert ids(dsn, schema, hidden=False) == [1, 4]
    assert [seen(each)[1] for each in await listed(either, config("thread"))] == [None, None]
    assert rows(dsn, schema, "channel_values", "version") == [(version(n),) for n in (1, 4)]
    assert len(rows(dsn, schema, "writes", "checkpoint_id")) == 4
    assert await either.aget_tuple(config("other")) is None
    assert await either.aget_tuple(config("third")) is not None


async def test_a_run_that_a_delta_channel_needs_is_hidden_until_nothing_needs_it(
    saver: AsyncPostgresSaver, dsn: str, schema: str
) -> None:
    runs = {1: "a", 2: "a", 3: "b", 4: "b", 5: "c"}
    meta = {n: {"run_id": runs[n], **(counting(1, n - 2) if n > 2 else {})} for n in runs}
    await chain(saver, range(1, 6), meta=meta)
    await saver.adelete_for_runs(["a", "b"])
    assert ids(dsn, schema, hidden=False) == [5]
    assert ids(dsn, schema, hidden=True) == [2, 3, 4]
    assert rows(dsn, schema, "checkpoints", LINKS)[-1] == (checkpoint_id(5), False, None, checkpoint_id(4))
    await saver.adelete_for_runs(["c"])
    for table in ("checkpoints", "channel_values", "writes"):
        assert rows(dsn, schema, table, "checkpoint_ns") == [], "what was hidden for its sake goes with it"


# --- bounded transactions, crashes ------------------------------------------------------------------


@pytest.mark.parametrize("rows_per_transaction", [1, 2])
async def test_a_prune_that_breaks_off_loses_nothing_and_the_next_one_finishes(
    dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch, rows_per_transaction: int
) -> None:
    monkeypatch.setattr(retention, "_ROWS_PER_TRANSACTION", rows_per_transaction)
    meta = {n: counting(1, 3) for n in (9, 10)}
    async with saver_on(dsn, schema, retry_deadline_seconds=0, base_cache_bytes=0) as saver:
        await chain(saver, range(1, 11), meta=meta)
        await chain(
            saver, [20, 21, 22], "call:1", meta={n: {"parents": {"": checkpoint_id(2)}} for n in (20, 21, 22)}
        )
        kept = await get(saver, config("thread"))
        ended = False
        for survive in range(20):
            left = [survive]

            def dying(original: Any, left: list[int] = left) -> Any:
                async def dies(self: Any, session: Session, *arguments: Any, **keywords: Any) -> Any:
                    left[0] -= 1
                    if left[0] < 0:  # the backend is killed between two transactions
                        [(pid,)] = await session.fetch(PID, ())
                        run_sql(dsn, "SELECT pg_terminate_backend(%s, 5000)", pid)
                    return await original(self, session, *arguments, **keywords)

                return dies

            with monkeypatch.context() as patched:
                for name in ("remove_checkpoints", "delete_values"):
                    patched.setattr(ThreadRepository, name, dying(getattr(ThreadRepository, name)))
                try:
                    await saver.aprune(["thread"])
                    ended = True
                except (OutcomeUnknown, UnavailableError):
                    pass
            found = await get(saver, config("thread"))
            assert found.checkpoint == kept.checkpoint
            assert found.pending_writes == kept.pending_writes
            listing = await listed(saver, config("thread", None))  # all that is seen can be read
            visible = {place(each)[2] for each in listing}
            for each in listing:
                parent = each.parent_config
                assert parent is None or parent["configurable"]["checkpoint_id"] in visible, "no link dangles"
            if ended:
                break
        assert ended
        assert survive >= 1
        assert ids(dsn, schema, hidden=False) == [10]
        assert ids(dsn, schema, hidden=True) == [7, 8, 9]
        assert rows(dsn, schema, "channel_values", "version") == [(version(n),) for n in range(7, 11)]


async def test_transactions_are_bounded(either: AsyncPostgresSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_ROWS_PER_TRANSACTION", 3)
    monkeypatch.setattr(retention, "_MOST_AT_ONCE", 3)
    sizes = []
    for name in ("remove_checkpoints", "delete_values"):
        original = getattr(ThreadRepository, name)

        async def noted(
            self: Any, session: Any, thread_id: str, places: Any, *_: Any, _o: Any = original, **k: Any
        ) -> Any:
            sizes.append(len(places))
            return await _o(self, session, thread_id, places, **k)

        monkeypatch.setattr(ThreadRepository, name, noted)
    await chain(either, range(1, 12))
    await either.aprune(["thread"])
    assert sizes == [3, 3, 3, 1] * 2


async def test_an_error_names_its_thread(saver: AsyncPostgresSaver, dsn: str, schema: str) -> None:
    await chain(saver, range(1, 4))
    run_sql(
        dsn,
        f"CREATE FUNCTION {schema}.no() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no''; END'",
    )
    run_sql(
        dsn,
        f"CREATE TRIGGER no BEFORE DELETE ON {schema}.checkpoints FOR EACH ROW EXECUTE FUNCTION {schema}.no()",
    )
    with pytest.raises(Exception, match="no") as caught:
        await saver.aprune(["a", "thread", "b"])
    assert caught.value.thread_id == "thread"  # type: ignore[attr-defined]
    assert len(await listed(saver, config("thread"))) == 3


# --- order ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pool", [{}, {"max_size": 1}, {"max_size": 1, "pipeline": False}, {"lanes": 1}])
async def test_a_prune_takes_effect_in_its_turn(dsn: str, schema: str, pool: dict[str, Any]) -> None:
    async with saver_on(dsn, schema, **pool) as saver:
        for round_ in range(5):
            thread = f"t{round_}"
            calls = [
                *(put(saver, config(thread), checkpoint(n, {"n": n})) for n in (1, 2, 3)),
                saver.aprune([thread]),
                *(put(saver, config(thread), checkpoint(n, {"n": n})) for n in (4, 5)),
                saver.acopy_thread(thread, f"{thread}c"),
                put(saver, config(thread), checkpoint(6, {"n": 6})),
                put(saver, config(f"{thread}c"), checkpoint(7, {"n": 7})),
                put(saver, config("elsewhere"), checkpoint(round_, {"n": 1})),
            ]
            await asyncio.wait_for(asyncio.gather(*calls), 60)
            found = [int(place(each)[2][-12:]) for each in await listed(saver, config(thread))]
            assert found == [6, 5, 4, 3]
            found = [int(place(each)[2][-12:]) for each in await listed(saver, config(f"{thread}c"))]
            assert found == [7, 5, 4, 3]


async def test_runs_that_are_queued_are_deleted_too(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema) as saver, await psycopg.AsyncConnection.connect(dsn) as other:
        await other.execute(f"LOCK TABLE {schema}.checkpoints IN EXCLUSIVE MODE".encode())
        calls = [
            asyncio.ensure_future(each)
            for each in (
                *(
                    put(saver, config(f"t{n}"), checkpoint(n, {"n": n}), metadata(run_id="r"))
                    for n in range(20)
                ),
                saver.adelete_for_runs(["r"]),
            )
        ]
        for _ in range(10):
            await saver.aget_tuple(config("nobody"))
        assert not any(each.done() for each in calls), "it does not look before they are there"
        await other.rollback()
        await asyncio.gather(*calls)
        assert await listed(saver, None) == []


async def test_a_thread_that_is_being_pruned_holds_up_no_other_thread(dsn: str, schema: str) -> None:
    async with (
        saver_on(dsn, schema, lanes=1) as saver,
        await psycopg.AsyncConnection.connect(dsn) as other,
    ):
        await chain(saver, range(1, 4))
        await other.execute(
            f"SELECT FROM {schema}.checkpoints WHERE thread_id = 'thread' FOR UPDATE".encode()
        )
        pruning = asyncio.create_task(saver.aprune(["thread"]))
        blocked = asyncio.create_task(_started_after(put(saver, config(), checkpoint(9, {"n": 9}))))
        await put(saver, config("another"), checkpoint(1, {"n": 1}))
        await put(saver, config("another"), checkpoint(2, {"n": 1}))
        assert not pruning.done()
        assert not blocked.done()
        await other.rollback()
        await asyncio.wait_for(asyncio.gather(pruning, blocked), 60)
        assert [place(each)[2] for each in await listed(saver, config())] == [
            checkpoint_id(9),
            checkpoint_id(3),
        ]


async def _started_after(call: Any) -> Any:
    return await call


async def test_a_close_finishes_a_prune(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema) as saver:
        await chain(saver, range(1, 6))
        pruning = asyncio.create_task(saver.aprune(["thread"]))
        await asyncio.sleep(0)
        await saver.aclose()
        await pruning
    assert ids(dsn, schema, hidden=False) == [5]


async def test_a_close_that_runs_out_of_time_ends_a_prune(dsn: str, schema: str) -> None:
    async with (
        saver_on(dsn, schema, close_timeout_seconds=0.5) as saver,
        await psycopg.AsyncConnection.connect(dsn) as other,
    ):
        await chain(saver, range(1, 4))
        await other.execute(
            f"SELECT FROM {schema}.checkpoints WHERE thread_id = 'thread' FOR UPDATE".encode()
        )
        calls = [
            asyncio.create_task(saver.aprune(["thread"])),
            asyncio.create_task(put(saver, config(), checkpoint(9, {"n": 9}))),
        ]
        await asyncio.sleep(0)
        await saver.aclose()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(each).__name__ for each in ended] == ["OutcomeUnknown", "ClosedError"]
        assert saver.stats().backlog_rows == 0
        await other.rollback()


async def test_a_cancelled_prune_leaves_the_saver_in_order(saver: AsyncPostgresSaver) -> None:
    await chain(saver, range(1, 6))
    for _ in range(3):
        pruning = asyncio.create_task(saver.aprune(["thread"]))
        await asyncio.sleep(0)
        pruning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pruning
    await put(saver, config("thread", "", 5), checkpoint(6, {"n": 6}))
    assert (await get(saver, config())).checkpoint["id"] == checkpoint_id(6)
    assert saver.stats().backlog_rows == 0


async def test_inside_a_transaction_of_the_callers(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema) as saver:
        await chain(saver, range(1, 6))
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        theirs = AsyncPostgresSaver(connection, settings=saver._engine.settings)
        async with connection.transaction(force_rollback=True):
            await connection.execute("SELECT 1")
            await theirs.aprune(["thread"])
            await theirs.acopy_thread("thread", "copy")
            assert len(await listed(theirs, config())) == len(await listed(theirs, config("copy"))) == 1
        assert len(await listed(theirs, config())) == 5
        await theirs.aclose()


def test_the_sync_twins(dsn: str, schema: str) -> None:
    from pgcairn import PostgresSaver

    with PostgresSaver.from_conn_string(dsn, schema=schema) as saver:
        saver.setup()
        for number in (1, 2):
            what = checkpoint(number, {"n": number})
            saver.put(config(), what, metadata(run_id=str(number)), what["channel_versions"])
        saver.copy_thread("thread", "copy")
        saver.delete_for_runs(["2"])
        saver.put(config("copy"), what, metadata(), what["channel_versions"])
        saver.prune(["copy"])
        assert [place(each)[::2] for each in saver.list(None)] == [
            ("copy", checkpoint_id(2)),
            ("thread", checkpoint_id(1)),
        ]


# --- graphs -----------------------------------------------------------------------------------------


class Work(TypedDict):
    log: Annotated[list[str], operator.add]


def interrupted_graph(saver: Saver, runs: list[str]) -> Any:
    """Two parallel tools, of which one is finished when the other waits for a human; a stateful subgraph and a call."""

    def plan(_: Work) -> dict[str, Any]:
        return {"log": ["plan"]}

    def tool(state: dict[str, Any]) -> dict[str, Any]:
        runs.append(state["name"])
        if state["name"] == "ask":
            return {"log": [f"ask {interrupt('?')}"]}
        return {"log": [state["name"]]}

    def inner(checkpointer: Any) -> Any:
        return (
            StateGraph(Work)
            .add_node("one", lambda _: {"log": ["one"]})
            .add_node("two", lambda _: {"log": ["two"]})
            .add_edge(START, "one")
            .add_edge("one", "two")
            .compile(checkpointer=checkpointer)
        )

    builder = StateGraph(Work)
    builder.add_node("plan", plan)  # type: ignore[arg-type]
    builder.add_node("tool", tool)  # type: ignore[type-var]
    builder.add_node("call", inner(None))
    builder.add_node("stateful", inner(True))
    builder.add_edge(START, "call")
    builder.add_edge("call", "stateful")
    builder.add_edge("stateful", "plan")
    builder.add_conditional_edges(
        "plan", lambda _: [Send("tool", {"name": "quick"}), Send("tool", {"name": "ask"})]
    )
    builder.add_edge("tool", END)
    return builder.compile(checkpointer=saver)


async def test_an_interrupted_run_resumes_as_if_nothing_had_been_pruned(saver: AsyncPostgresSaver) -> None:
    ended = {}
    for thread_id in ("pruned", "whole"):
        runs: list[str] = []
        graph = interrupted_graph(saver, runs)
        where: RunnableConfig = {"configurable": {"thread_id": thread_id}}
        for answer in ("yes", "no"):
            await graph.ainvoke({"log": ["in"]}, where)
            if thread_id == "pruned":
                await saver.aprune([thread_id])
            state = await graph.aget_state(where)
            assert [each.value for task in state.tasks for each in task.interrupts] == ["?"]
            await graph.ainvoke(Command(resume=answer), where)
            if thread_id == "pruned":
                await saver.aprune([thread_id])
        state = await graph.aget_state(where)
        assert runs == ["quick", "ask", "ask"] * 2, "a finished tool is not run again"
        ended[thread_id] = (state.values, state.next, state.metadata["step"])
    assert ended["pruned"] == ended["whole"]
    names = {ns for _, ns, _ in [place(each) for each in await listed(saver, config("pruned", None))]}
    assert "stateful" in names, "a stateful subgraph keeps its state"


class _HistoryBySql:
    """The ancestors of a checkpoint as they are stored, hidden ones too."""

    def __init__(self, dsn: str, schema: str) -> None:
        self.dsn, self.schema = dsn, schema

    def parents(self, thread_id: str, current: str) -> list[str]:
        found: list[str] = []
        while True:
            [(parent,)] = run_sql(
                self.dsn,
                f"SELECT coalesce(hidden_parent_id, parent_checkpoint_id) FROM {self.schema}.checkpoints "
                "WHERE thread_id = %s AND checkpoint_ns = '' AND checkpoint_id = %s",
                *(thread_id, current),
            )
            if parent is None:
                return found
            found.append(parent)
            current = parent


def concatenated(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(each for write in writes for each in write)]


class Growing(TypedDict):
    log: Annotated[list[str], DeltaChannel(concatenated, snapshot_frequency=4)]


def delta_graph(saver: Saver) -> Any:
    builder = StateGraph(Growing)
    builder.add_node("a", lambda state: {"log": [f"a{len(state['log'])}"]})
    builder.add_node("b", lambda state: {"log": [f"b{len(state['log'])}"]})
    builder.add_edge(START, "a")
    builder.add_edge("a", "b")
    return builder.compile(checkpointer=saver)


async def test_a_delta_channel_is_the_same_after_prunes_in_the_middle(
    saver: AsyncPostgresSaver, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = _HistoryBySql(dsn, schema)
    whole = f"{schema}_whole"

    async def history(
        self: Any, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """What a saver has to answer, from a thread of which every ancestor is made visible for the time."""
        thread_id = config["configurable"]["thread_id"]
        target = await self.aget_tuple(config)
        assert target is not None
        writes: dict[str, list[Any]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        for each in stored.parents(thread_id, target.checkpoint["id"]):
            hidden = run_sql(
                dsn,
                f"UPDATE {schema}.checkpoints SET hidden = false WHERE thread_id = %s AND checkpoint_id = %s "
                "AND hidden RETURNING 1",
                *(thread_id, each),
            )
            found = await get(self, {"configurable": {"thread_id": thread_id, "checkpoint_id": each}})
            if hidden:
                run_sql(
                    dsn,
                    f"UPDATE {schema}.checkpoints SET hidden = true WHERE thread_id = %s AND checkpoint_id = %s",
                    *(thread_id, each),
                )
            for channel in set(channels) - set(seeds):
                writes[channel][:0] = [w for w in found.pending_writes or () if w[1] == channel]
                if channel in found.checkpoint["channel_values"]:
                    seeds[channel] = found.checkpoint["channel_values"][channel]
        return {
            channel: {"writes": writes[channel], **({"seed": seeds[channel]} if channel in seeds else {})}  # type: ignore[typeddict-item]
            for channel in channels
        }

    if AsyncPostgresSaver.aget_delta_channel_history is BaseCheckpointSaver.aget_delta_channel_history:
        monkeypatch.setattr(AsyncPostgresSaver, "aget_delta_channel_history", history)
    mine, theirs = delta_graph(saver), delta_graph(InMemorySaver())
    where: RunnableConfig = {"configurable": {"thread_id": whole}}
    hidden = 0
    for turn in range(8):
        for graph in (mine, theirs):
            await graph.ainvoke({"log": [f"in {turn}"]}, where)
        await saver.aprune([whole], keep_last=1 + turn % 2)
        hidden = max(hidden, saver.stats().checkpoints_hidden)
        found, expected = await mine.aget_state(where), await theirs.aget_state(where)
        assert found.values == expected.values
    assert hidden > 0
    assert len(rows(dsn, schema, "checkpoints", "checkpoint_id", whole)) < 12, "hidden ones are swept"


# --- beside writers, other prunes, copies -------------------------------------------------------------


async def test_writers_prunes_and_copies_beside_each_other(dsn: str, schema: str) -> None:
    """Two savers are two processes to the server. Whatever is acknowledged can be read, and errors reach nobody."""
    async with saver_on(dsn, schema, inline_max_bytes=100) as one, saver_on(dsn, schema) as two:
        threads = [f"t{n}" for n in range(3)]
        last: dict[str, int] = {}

        async def write(saver: AsyncPostgresSaver, thread: str) -> None:
            for number in range(1, 41):
                values = {"big": f"{number // 3} {LARGE_TEXT}", "other": LARGE_TEXT, "n": number}
                versions = {"big": version(1 + number // 3), "other": version(1), "n": version(number)}
                new = {
                    name: versions[name]
                    for name in versions
                    if name == "n" or number == 1 or (name == "big" and number % 3 == 0)
                }
                where = config(thread, "", number - 1) if number > 1 else config(thread)
                stored = await put(
                    saver,
                    where,
                    checkpoint(number, values, versions),
                    metadata(**counting(1, number % 5)),
                    new,
                )
                await saver.aput_writes(stored, [("n", number)], "task")
                last[thread] = number

        async def prune(saver: AsyncPostgresSaver, keep_last: int) -> None:
            while writing:
                await saver.aprune(threads, keep_last=keep_last)

        async def copy(saver: AsyncPostgresSaver) -> None:
            for number in range(100):
                if not writing:
                    return
                is_there = threads[number % 3] in last
                try:
                    await saver.acopy_thread(threads[number % 3], f"copy {number}")
                except InvalidInput:
                    assert not is_there, "there is something to copy once something was written"
                    continue
                await saver.aprune([f"copy {number}"], keep_last=2)

        async def write_all() -> None:
            try:
                await asyncio.gather(*(write((one, two, one)[n], thread) for n, thread in enumerate(threads)))
            finally:
                writing.clear()

        writing = [True]
        await asyncio.wait_for(asyncio.gather(write_all(), prune(one, 1), prune(two, 3), copy(two)), 110)
        for thread in threads:
            found = await get(two, config(thread))
            assert found.checkpoint["id"] == checkpoint_id(40)
            assert found.checkpoint["channel_values"]["big"].startswith("13 ")
        listing = await listed(one, None)  # raises StoredDataError if a value has gone
        assert {place(each)[0] for each in listing} >= set(threads)
        # Each visible checkpoint has the ancestors that it counts on.
        for thread_id, ns, each, needed in run_sql(
            dsn,
            f"SELECT thread_id, checkpoint_ns, checkpoint_id, (metadata #>> '{{counters_since_delta_snapshot,d,1}}')::int "
            f"FROM {schema}.checkpoints WHERE NOT hidden",
        ):
            number = int(each[-12:])
            assert len(_HistoryBySql(dsn, schema).parents(thread_id, each)) >= min(needed, number - 1), (
                thread_id,
                ns,
            )


async def test_what_is_committed_after_a_prune_has_begun_stays(
    saver: AsyncPostgresSaver, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch from an old checkpoint, an older id, a value that is brought again: all between choosing and removing."""
    await chain(saver, range(2, 8), meta={n: counting(1, 1) for n in range(2, 8)})
    choose = ThreadRepository.select_needed
    async with saver_on(dsn, schema) as other:
        stored = await get(other, config("thread", "", 4))

        async def meanwhile(self: Any, session: Any, thread_id: str, places: Any, above_id: str) -> Any:
            found = await choose(self, session, thread_id, places, above_id)
            if places:
                what = checkpoint(
                    8, dict(stored.checkpoint["channel_values"]), stored.checkpoint["channel_versions"]
                )
                await put(other, config("thread", "", 4), what, metadata(**counting(1, 1)), {})
                await put(other, config("thread"), checkpoint(1, {"n": 1}))
            return found

        monkeypatch.setattr(ThreadRepository, "select_needed", meanwhile)
        await saver.aprune(["thread"])
        monkeypatch.undo()
    assert ids(dsn, schema, hidden=False) == [1, 7, 8]
    assert ids(dsn, schema, hidden=True) == [4, 6]
    assert (await get(saver, config("thread", "", 8))).checkpoint["channel_values"] == stored.checkpoint[
        "channel_values"
    ]
    assert all(each.parent_config is None for each in await listed(saver, config("thread")))


# --- what others do at the same moment ----------------------------------------------------------------


async def test_what_was_committed_after_the_choice_is_not_deleted_with_the_range(
    saver: AsyncPostgresSaver, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await chain(saver, [1, 2, 4, 5, 6])
    original = ThreadRepository.remove_ranges
    answers = []

    async with saver_on(dsn, schema) as other:

        async def late(self: Any, *arguments: Any, **keywords: Any) -> Any:
            await put(other, config("thread", "", 2), checkpoint(3, {"late": LARGE_TEXT}))
            await other.aput_writes(config("thread", "", 0), [("early", 1)], "task")
            answers.append(await original(self, *arguments, **keywords))
            return answers[-1]

        monkeypatch.setattr(ThreadRepository, "remove_ranges", late)
        await saver.aprune(["thread"])
    assert answers == [None]
    assert ids(dsn, schema, hidden=False) == [3, 6]
    assert (await get(saver, config("thread", "", 3))).checkpoint["channel_values"] == {"late": LARGE_TEXT}
    assert rows(dsn, schema, "writes", "checkpoint_id") == [(checkpoint_id(0),)] + [(checkpoint_id(6),)] * 2
