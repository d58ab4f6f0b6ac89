"""What LangGraph and its users may rely on, row by row; where it makes sense beside the official saver."""

from __future__ import annotations

import asyncio
import enum
import math
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver as OfficialSaver
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from pgcairn import AsyncPostgresSaver, InvalidInput, SerializationError, StoredDataError
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

Saver = BaseCheckpointSaver[Any]
Scenario = Callable[[Saver], Awaitable[Any]]

TASKS = "__pregel_tasks"


@pytest.fixture
async def saver(dsn: str, schema: str) -> AsyncIterator[AsyncPostgresSaver]:
    async with saver_on(dsn, schema) as opened:
        yield opened


@pytest.fixture(params=["psycopg", "asyncpg"])
async def either(dsn: str, schema: str, request: pytest.FixtureRequest) -> AsyncIterator[AsyncPostgresSaver]:
    """A saver on either driver, for what depends on statements and not on the codec."""
    async with saver_on(dsn, schema, driver=request.param) as opened:
        yield opened


@asynccontextmanager
async def official_on(dsn: str, schema: str) -> AsyncIterator[OfficialSaver]:
    """The official saver, in a schema of its own."""
    name = f"{schema}_official"
    run_sql(dsn, f"CREATE SCHEMA {name}")
    async with OfficialSaver.from_conn_string(f"{dsn}?options={quote(f'-csearch_path={name}')}") as opened:
        await opened.setup()
        yield opened


@pytest.fixture
async def official(dsn: str, schema: str) -> AsyncIterator[OfficialSaver]:
    async with official_on(dsn, schema) as opened:
        yield opened


# --- 1 and 8: list, before, limit -------------------------------------------------------------------


PLACES = [
    ("t1", ""),
    ("t1", "child"),
    ("t2", ""),
    ("t1", "child:a"),
    ("t1", ""),
    ("t2", "child"),
    ("t1", "child"),
    ("t1", ""),
    ("t3", "child"),
    ("t1", ""),
]


async def fill(saver: Saver) -> None:
    """Checkpoints 1 to 10, over threads and namespaces, each with a write."""
    last: dict[tuple[str, str], int] = {}
    for number, (thread_id, checkpoint_ns) in enumerate(PLACES, 1):
        where = config(thread_id, checkpoint_ns, last.get((thread_id, checkpoint_ns)))
        what = checkpoint(number, {"n": number, "list": [number]}, {"list": version(number)})
        stored = await put(saver, where, what, metadata(source="loop", step=number, odd=number % 2 == 1))
        await saver.aput_writes(stored, [("n", number)], "task")
        last[thread_id, checkpoint_ns] = number


LISTINGS: list[tuple[RunnableConfig | None, dict[str, Any]]] = [
    (None, {}),
    (None, {"limit": 3}),
    (None, {"before": config("t1", "", 5)}),
    (None, {"filter": {"odd": True}, "limit": 2}),
    (config("t1", None), {}),
    (config("t1", ""), {}),
    (config("t1", "child"), {}),
    (config("t1", "child:a"), {}),
    (config("t1", "no such"), {}),
    (config("t1", "", 5), {}),
    (config("t1", None, 5), {}),
    (config("t1", "child", 5), {}),
    (config("t1", None), {"before": config("t1", "child", 7)}),
    (config("t1", None), {"before": config("t2", "", 3)}),
    (config("t1", ""), {"before": config("t1", "child", 7)}),
    (config("t1", ""), {"before": config("t1", "", 1)}),
    (config("t1", "", 5), {"before": config("t1", "", 5)}),
    (config("t1", "", 5), {"before": config("t1", "", 6)}),
    (config("t1", ""), {"limit": 0}),
    (config("t1", ""), {"limit": 1}),
    (config("t1", ""), {"limit": 2, "before": config("t1", "", 10)}),
    (config("t1", ""), {"limit": 1000}),
    (config("t1", ""), {"filter": {"step": 5}}),
    (config("t1", ""), {"filter": {}}),
    (config("t3", ""), {}),
    (config("t3", None), {}),
    (config("nobody", None), {}),
]


async def test_listings_are_those_of_the_official_saver(
    either: AsyncPostgresSaver, official: OfficialSaver
) -> None:
    await fill(either)
    await fill(official)
    for where, arguments in LISTINGS:
        ours = await listed(either, where, **arguments)
        theirs = await listed(official, where, **arguments)
        assert [place(each) for each in ours] == [place(each) for each in theirs], (where, arguments)
        assert ours == theirs, (where, arguments)


async def test_a_listing_is_whole_over_many_pages(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema, page_rows=3) as saver:
        # Ids that several threads and namespaces share: a page may end between them.
        places = [(thread, ns) for thread in ("a", "b") for ns in ("", "x", "y:1")]
        for number in range(1, 8):
            for thread_id, checkpoint_ns in places:
                await put(saver, config(thread_id, checkpoint_ns), checkpoint(number, {"n": [number]}))
        every = [place(each) for each in await listed(saver, None)]
        assert len(every) == len(set(every)) == 7 * 6
        assert [each[2] for each in every] == sorted((each[2] for each in every), reverse=True)
        for_a = [place(each) for each in await listed(saver, config("a", None))]
        assert for_a == [each for each in every if each[0] == "a"]
        for_ns = [place(each) for each in await listed(saver, config("a", "x"))]
        assert for_ns == [each for each in every if each[:2] == ("a", "x")]
        for limit in range(12):
            assert [place(each) for each in await listed(saver, None, limit=limit)] == every[:limit]
            before = await listed(saver, config("a", None), before=config("a", "", 6), limit=limit)
            assert [place(each) for each in before] == [e for e in for_a if e[2] < checkpoint_id(6)][:limit]


async def test_a_negative_limit_is_refused_at_once(saver: AsyncPostgresSaver) -> None:
    with pytest.raises(ValueError, match="limit=-1"):
        saver.alist(config(), limit=-1)


async def test_before_a_config_without_a_checkpoint_is_no_bound(either: AsyncPostgresSaver) -> None:
    # As in LangGraph's own saver in memory; the official one compares with NULL and finds nothing.
    await put(either, config(), checkpoint(1))
    assert len(await listed(either, config(), before=config())) == 1


# --- 2 to 4: writes -----------------------------------------------------------------------------------


async def pending(saver: Saver, calls: list[tuple[Any, ...]], *, at_once: bool = False) -> list[Any]:
    """What is pending after these calls of ``aput_writes`` and a put."""
    # With ``at_once`` they all start before the first of them is sent.
    tasks: list[asyncio.Task[None]] = []
    thread_id = str(uuid.uuid4())
    for writes, *rest in calls:
        call = saver.aput_writes(config(thread_id, number=1), writes, *(rest or ["task"]))
        tasks.append(asyncio.create_task(call))
        if not at_once:
            await tasks[-1]
    await asyncio.gather(*tasks)
    await put(saver, config(thread_id), checkpoint(1))
    return list((await get(saver, config(thread_id))).pending_writes or ())


WRITES: dict[str, list[tuple[Any, ...]]] = {
    "ordinary: the first stays, more are added": [
        ([("a", 1), ("b", 2)],),
        ([("a", 10), ("b", 20), ("c", 30)],),
    ],
    "ordinary: another channel at the same index": [([("a", 1)],), ([("b", 2)],)],
    "ordinary: one channel twice in a call": [([("a", 1), ("a", 2)],)],
    "special: the last wins": [([(ERROR, "one")],), ([(ERROR, "two")],)],
    "special: several at once": [([(RESUME, [1]), (INTERRUPT, "i")],), ([(RESUME, [2]), (INTERRUPT, "j")],)],
    "special: twice in one call": [([(RESUME, [1])],), ([(RESUME, [2]), (ERROR, "e")],)],
    "mixed: not all are special, so the first stays": [([(ERROR, "one")],), ([(ERROR, "two"), ("a", 1)],)],
    "mixed, then special": [([(ERROR, "one"), ("a", 1)],), ([(ERROR, "two")],)],
    "special, then the same from another task": [([(ERROR, "one")], "t1"), ([(ERROR, "two")], "t2")],
    "tasks are in the order of their paths": [
        ([("a", 1)], "t1", "~2"),
        ([("a", 2)], "t2", "~1"),
        ([("a", 3)], "t3"),
    ],
    "then of their ids, then of their indexes": [
        ([("a", 1), (INTERRUPT, "i"), ("b", 2)], "t2", "p"),
        ([("a", 3), (ERROR, "e")], "t1", "p"),
    ],
    "the first path stays": [
        ([(ERROR, "one")], "t1", "z"),
        ([("a", 1)], "t2", "m"),
        ([(ERROR, "two")], "t1", "a"),
    ],
    "the first path stays for ordinary ones": [
        ([("a", 1)], "t1", "z"),
        ([("b", 1)], "t2", "m"),
        ([("a", 2)], "t1", "a"),
    ],
    "no writes": [([],)],
    "values of all kinds": [([("a", None), ("b", LARGE_TEXT), ("c", b"\x00"), ("d", [1, {"x": (1, 2)}])],)],
}


@pytest.mark.parametrize("name", WRITES)
async def test_writes_are_those_of_the_official_saver(
    saver: AsyncPostgresSaver, official: OfficialSaver, name: str
) -> None:
    assert await pending(saver, WRITES[name]) == await pending(official, WRITES[name])


async def test_writes_of_one_batch_follow_the_same_rules(dsn: str, schema: str) -> None:
    # Here the batch resolves what otherwise the table does.
    async with saver_on(dsn, schema, lanes=1) as saver:
        for name, calls in WRITES.items():
            before = saver.stats().batches
            together = await pending(saver, calls, at_once=True)
            assert saver.stats().batches <= before + 2, "the calls did not share a batch"
            assert together == await pending(saver, calls), name


async def test_a_repeated_call_changes_nothing(either: AsyncPostgresSaver) -> None:
    for _ in range(2):
        await either.aput_writes(config(number=1), [("a", 1), ("b", 2)], "task")
    await put(either, config(), checkpoint(1))
    assert (await get(either, config())).pending_writes == [("task", "a", 1), ("task", "b", 2)]


async def test_empty_writes_are_no_rows(saver: AsyncPostgresSaver, dsn: str, schema: str) -> None:
    await saver.aput_writes(config(number=1), [], "task")
    assert run_sql(dsn, f"SELECT count(*) FROM {schema}.writes") == [(0,)]


async def test_writes_wait_for_their_checkpoint(either: AsyncPostgresSaver) -> None:
    await either.aput_writes(config(number=1), [("a", 1)], "task")
    assert await either.aget_tuple(config()) is None
    assert await listed(either, config()) == []
    await put(either, config(), checkpoint(1))
    assert (await get(either, config())).pending_writes == [("task", "a", 1)]
    assert (await listed(either, config()))[0].pending_writes == [("task", "a", 1)]


async def test_writes_belong_to_one_checkpoint_namespace_and_thread(saver: AsyncPostgresSaver) -> None:
    for where in (config(), config("other"), config(checkpoint_ns="ns")):
        await put(saver, where, checkpoint(1))
        await put(saver, where, checkpoint(2))
    await saver.aput_writes(config(number=1), [("a", 1)], "task")
    found = {place(each): each.pending_writes for each in await listed(saver, None)}
    assert {key for key, writes in found.items() if writes} == {("thread", "", checkpoint_id(1))}


async def test_task_ids_need_not_be_uuids(saver: AsyncPostgresSaver) -> None:
    for task_id in ("", "one", "ünïcode", "x" * 300):
        await saver.aput_writes(config(number=1), [("a", task_id)], task_id)
    await put(saver, config(), checkpoint(1))
    writes = (await get(saver, config())).pending_writes or []
    assert {task_id for task_id, _, _ in writes} == {"", "one", "ünïcode", "x" * 300}


async def test_writes_without_a_checkpoint_id_are_refused(saver: AsyncPostgresSaver) -> None:
    with pytest.raises(InvalidInput, match="checkpoint_id"):
        await saver.aput_writes(config(), [("a", 1)], "task")


# --- 5: the same id again -----------------------------------------------------------------------------


async def put_again(saver: Saver) -> list[Any]:
    """Put an id twice, in many ways; returns what is read after each."""
    seen: list[Any] = []

    async def step(
        where: RunnableConfig, values: dict[str, Any], versions: dict[str, Any], meta: int
    ) -> None:
        await put(saver, where, checkpoint(2, values, versions), metadata(source="loop", step=meta))
        seen.append(await get(saver, config(number=2)))
        seen.append(await listed(saver, config()))

    one, two = version(1), version(2)
    await put(saver, config(), checkpoint(1, {"first": [0]}))
    await step(config(number=1), {"list": [1], "n": 1, "text": "a"}, {}, 1)
    # The same versions: non-primitive values are known already and stay, however small they are.
    await step(config(number=1), {"list": [2], "n": 2, "text": "b"}, {}, 2)
    # Another parent is ignored.
    await step(config(number=7), {"list": [2], "n": 2, "text": "b"}, {}, 3)
    await step(config(), {"list": [2], "n": 2, "text": "b"}, {}, 4)
    # A new version: a new value. A channel that is gone. One that is new.
    await step(config(number=1), {"list": [3], "dict": {"x": 1}}, {"list": two}, 5)
    # Back to the first version: its value is still there.
    await step(config(number=1), {"list": [4], "dict": {"x": 2}}, {"list": one}, 6)
    # Larger than what fits inside the checkpoint.
    await step(config(number=1), {"list": [LARGE_TEXT]}, {"list": version(3)}, 7)
    await step(config(number=1), {"list": [LARGE_TEXT, "other"]}, {"list": version(3)}, 8)
    await step(config(number=1), {"list": ["small"]}, {"list": version(3)}, 9)
    return seen


async def test_an_id_that_is_put_again(either: AsyncPostgresSaver, official: OfficialSaver) -> None:
    for number, (ours, theirs) in enumerate(
        zip(await put_again(either), await put_again(official), strict=True)
    ):
        if number in (10, 11):
            # Back to a version that the row itself no longer shows: the official saver still has the first
            # value in its table of blobs; inside a replaced row there is nothing to go back to.
            continue
        assert ours == theirs, f"step {number // 2}"


async def test_an_id_that_is_put_again_keeps_its_writes(either: AsyncPostgresSaver) -> None:
    await put(either, config(), checkpoint(1, {"a": 1}))
    await either.aput_writes(config(number=1), [("a", 1)], "task")
    await put(either, config(), checkpoint(1, {"a": 2}, {"a": version(2)}))
    found = await get(either, config())
    assert found.checkpoint["channel_values"] == {"a": 2}
    assert found.pending_writes == [("task", "a", 1)]
    assert either.stats().checkpoints_replaced == 1


async def test_an_id_that_is_put_again_unchanged(either: AsyncPostgresSaver) -> None:
    for _ in range(3):
        await put(either, config(), checkpoint(1, {"a": [1], "b": LARGE_TEXT}))
    assert await values_of(either, config()) == {"a": [1], "b": LARGE_TEXT}


# --- 6 and 7: metadata --------------------------------------------------------------------------------


METADATA: list[dict[str, Any]] = [
    {"k": 2},
    {"k": 2.0},
    {"k": "2"},
    {"k": 2.5},
    {"k": None},
    {},
    {"k": True},
    {"k": [1, 2, 3]},
    {"k": []},
    {"k": [1, [2, 3]]},
    {"k": {"a": 1, "b": {"c": [1, 2]}}},
    {"k": {}},
    {"k": "text"},
    {"k": ""},
    {"k": "ünï 🐎"},
    {"other": 2, "k": 2},
    {"k": [{"a": 1, "b": 2}, {"a": 2}]},
]

FILTERS: list[dict[str, Any]] = [
    {},
    {"k": 2},
    {"k": 2.0},
    {"k": "2"},
    {"k": 2.5},
    {"k": None},
    {"k": True},
    {"k": 1},
    {"k": [1]},
    {"k": [3, 1]},
    {"k": [1, 1, 1]},
    {"k": [4]},
    {"k": []},
    {"k": [[3]]},
    {"k": {}},
    {"k": {"a": 1}},
    {"k": {"b": {}}},
    {"k": {"b": {"c": [2]}}},
    {"k": {"b": {"c": 2}}},
    {"k": {"a": None}},
    {"k": [{"a": 1}]},
    {"k": [{"b": 2}, {"a": 2}]},
    {"k": "text"},
    {"k": ""},
    {"k": "tex"},
    {"k": "ünï 🐎"},
    {"k": 2, "other": 2},
    {"other": 2},
    {"no such": None},
]


async def filtered(saver: Saver) -> list[list[int]]:
    for number, fields in enumerate(METADATA, 1):
        await put(saver, config(), checkpoint(number), metadata(number=number, **fields))
    return [
        [each.metadata["number"] for each in await listed(saver, config(), filter=found)]  # type: ignore[typeddict-item]
        for found in FILTERS
    ]


async def test_filters_find_what_the_official_saver_finds(
    either: AsyncPostgresSaver, official: OfficialSaver
) -> None:
    ours, theirs = await filtered(either), await filtered(official)
    for found, mine, yours in zip(FILTERS, ours, theirs, strict=True):
        assert mine == yours, found
    assert ours[0] == list(range(len(METADATA), 0, -1))


async def store_metadata(saver: Saver) -> list[Any]:
    """Metadata of the call, of the config, and of the configurables, and how they override each other."""
    found = []
    where = config(
        checkpoint_ns="",
        user="u",
        number_of=3,
        flag=True,
        ratio=1.5,
        nothing=None,
        a_list=[1],
        a_dict={"x": 1},
        __pregel_secret="s",
        step="from the configurable",
        langgraph_x="x",
    )
    where["metadata"] = {"run_name": "r", "step": "from the config", "deep": {"x": [1]}, "user": "m"}
    stored = await put(saver, where, checkpoint(1), metadata(source="loop", step=7, parents={"": "p"}))
    found.append((await get(saver, stored)).metadata)
    with_id = config(number=1, user="u")
    stored = await put(saver, with_id, checkpoint(2), metadata(source="loop", step=8))
    found.append((await get(saver, stored)).metadata)
    return found


async def test_metadata_is_put_together_as_by_the_official_saver(
    either: AsyncPostgresSaver, official: OfficialSaver
) -> None:
    assert await store_metadata(either) == await store_metadata(official)


async def test_metadata_comes_back_as_it_was(either: AsyncPostgresSaver) -> None:
    class Colour(str, enum.Enum):
        RED = "red"

    fields: dict[str, Any] = {
        "nul": "a\x00b",
        "nested": {"deep": [{"a\x00": "\x00"}]},
        "nan": math.nan,
        "inf": -math.inf,
        "minus": -0.0,
        "sixteen": 1e16,
        "bytes": b"\x00\x01",
        "tuple": [1, 2],
        "ints": {1: "a"},
        "when": uuid.UUID(int=5),
        "backslash": "\\u0000",
    }
    await put(either, config(), checkpoint(1), metadata(**fields))
    found: dict[str, Any] = dict((await get(either, config())).metadata)
    assert math.isnan(found.pop("nan"))
    assert math.copysign(1, found["minus"]) == -1
    assert type(found["sixteen"]) is float
    # LangGraph itself takes NULs out of what it hands over at the first level.
    expected = dict(fields)
    del expected["nan"]
    expected["nul"] = found["nul"]
    assert found["nul"] in ("a\x00b", "ab")
    assert found == expected


@pytest.mark.parametrize(
    "found", [{"nested": {"deep": "a\x00b"}}, {"n": math.nan}, {"n": "\ud800"}], ids=repr
)
async def test_filters_may_hold_anything_too(either: AsyncPostgresSaver, found: dict[str, Any]) -> None:
    await put(either, config(), checkpoint(1), metadata(**found))
    await put(either, config(), checkpoint(2), metadata(other=1))
    assert [place(each)[2] for each in await listed(either, config(), filter=found)] == [checkpoint_id(1)]


# --- 9 and 10: parents, deleted threads ---------------------------------------------------------------


async def test_parents(either: AsyncPostgresSaver) -> None:
    first = await put(either, config(), checkpoint(1))
    second = await put(either, first, checkpoint(2))
    fork = await put(either, first, checkpoint(3))
    assert (await get(either, first)).parent_config is None
    assert (await get(either, second)).parent_config == first
    assert (await get(either, fork)).parent_config == first
    assert [each.parent_config for each in await listed(either, config())] == [first, first, None]


@pytest.mark.parametrize("thread_id", ["unknown", "deleted"])
async def test_threads_that_are_not_there(either: AsyncPostgresSaver, thread_id: str) -> None:
    await put(either, config("deleted"), checkpoint(1, {"a": [1], "b": LARGE_TEXT}))
    await put(either, config("deleted", "ns"), checkpoint(1))
    await either.aput_writes(config("deleted", "", 1), [("a", 1)], "task")
    await either.adelete_thread("deleted")
    assert await either.aget_tuple(config(thread_id)) is None
    assert await either.aget_tuple(config(thread_id, "", 1)) is None
    assert await either.aget(config(thread_id)) is None
    assert await listed(either, config(thread_id, None)) == []
    await either.adelete_thread(thread_id)
    await either.adelete_thread(thread_id)
    await put(either, config(thread_id), checkpoint(2, {"a": 2}))
    assert len(await listed(either, config(thread_id, None))) == 1
    assert (await get(either, config(thread_id))).pending_writes == []


async def test_deleting_leaves_other_threads_alone(saver: AsyncPostgresSaver, dsn: str, schema: str) -> None:
    for thread_id in ("a", "ab", "A"):
        await put(saver, config(thread_id), checkpoint(1, {"x": LARGE_TEXT}))
        await saver.aput_writes(config(thread_id, "", 1), [("a", 1)], "task")
    await saver.adelete_thread("a")
    for name in ("checkpoints", "channel_values", "writes"):
        rows = run_sql(dsn, f"SELECT thread_id FROM {schema}.{name} ORDER BY thread_id")
        assert rows == [("A",), ("ab",)], name


# --- 11: thread ids -----------------------------------------------------------------------------------


@pytest.mark.parametrize("thread_id", [7, 0, uuid.UUID(int=9), "7", "ünï 🐎", " ", "x" * 2000], ids=repr)
async def test_thread_ids_are_text_on_every_path(saver: AsyncPostgresSaver, thread_id: Any) -> None:
    text = str(thread_id)
    stored = await put(saver, config(thread_id, None), checkpoint(1, {"a": 1}))
    assert stored["configurable"] == {
        "thread_id": text,
        "checkpoint_ns": "",
        "checkpoint_id": checkpoint_id(1),
    }
    await saver.aput_writes(config(thread_id, None, 1), [("a", 1)], "task")
    for where in (config(thread_id), config(text), config(thread_id, None)):
        found = await get(saver, where)
        assert found.config == stored
        assert found.pending_writes == [("task", "a", 1)]
        assert len(await listed(saver, where)) == 1
    await saver.adelete_thread(thread_id)
    assert await saver.aget_tuple(config(text)) is None


@pytest.mark.parametrize(
    ("thread_id", "message"),
    [
        ("", "thread_id is empty"),
        (None, "thread_id is missing"),
        ("a\x00b", "NUL"),
        ("\ud800", "not valid Unicode"),
        ("x" * 2601, "limit 2600"),
        ("ü" * 1301, "limit 2600"),
    ],
    ids=lambda value: repr(value)[:20],
)
async def test_thread_ids_that_cannot_be(saver: AsyncPostgresSaver, thread_id: Any, message: str) -> None:
    before = saver.stats().statements
    with pytest.raises(ValueError, match=message):
        await put(saver, config(thread_id), checkpoint(1))
    with pytest.raises(ValueError, match=message):
        await saver.aput_writes(config(thread_id, "", 1), [("a", 1)], "task")
    with pytest.raises(ValueError, match=message):
        await saver.aget_tuple(config(thread_id))
    with pytest.raises(ValueError, match=message):
        saver.alist(config(thread_id))
    with pytest.raises(ValueError, match=message):
        await saver.adelete_thread(thread_id)
    assert saver.stats().statements == before, "refused before anything was sent"


@pytest.mark.parametrize("size", [2560, 2600])
async def test_the_longest_keys_fit_their_indexes(saver: AsyncPostgresSaver, size: int) -> None:
    # Random, which defeats the compression of index entries.
    room = size - len(checkpoint_id(1))
    thread_id = "".join(random.Random(1).choices("".join(map(chr, range(33, 127))), k=room))
    with_writes = thread_id[: -len("task")]
    await put(saver, config(thread_id), checkpoint(1))
    await saver.aput_writes(config(with_writes, "", 1), [("a", 1)], "task")
    long_channel = thread_id[:2000]
    rest = size - 2000 - len("t") - len(version(1))
    await put(saver, config("t"), checkpoint(1, {"c" * rest + long_channel: LARGE_TEXT}))
    with pytest.raises(ValueError, match="too long"):
        await put(saver, config(thread_id + "x" * 41), checkpoint(1))


@pytest.mark.parametrize("where", ["checkpoint_ns", "task_id", "channel", "checkpoint_id", "task_path"])
async def test_other_keys_that_cannot_be(saver: AsyncPostgresSaver, where: str) -> None:
    keys = {
        "checkpoint_ns": "",
        "task_id": "t",
        "channel": "c",
        "checkpoint_id": checkpoint_id(1),
        "task_path": "",
    }
    keys[where] = "a\x00b"
    target = config("t", keys["checkpoint_ns"], checkpoint_id=keys["checkpoint_id"])
    with pytest.raises(ValueError, match=f"{where}.*NUL"):
        await saver.aput_writes(target, [(keys["channel"], 1)], keys["task_id"], keys["task_path"])


async def test_configs_without_configurables(saver: AsyncPostgresSaver) -> None:
    with pytest.raises(ValueError, match="configurable"):
        await saver.aget_tuple({})
    with pytest.raises(ValueError, match="thread_id is missing"):
        await saver.aget_tuple({"configurable": {}})


# --- 12: channels and their versions ------------------------------------------------------------------


CHANGES: list[Any] = [
    LARGE_TEXT,
    "small",
    None,
    [LARGE_TEXT],
    [1],
    None,
    {"big": LARGE_TEXT},
    7,
    LARGE_TEXT * 2,
    b"bytes",
]


async def test_a_channel_may_change_its_place(either: AsyncPostgresSaver) -> None:
    where = config()
    for number, value in enumerate(CHANGES, 1):
        where = await put(either, where, checkpoint(number, {"c": value}, {"c": version(number)}))
        assert await values_of(either, config()) == {"c": value}
    for number, value in enumerate(CHANGES, 1):
        found = await values_of(either, config(number=number))
        assert found == {"c": value}
        assert type(found["c"]) is type(value)
    assert [each.checkpoint["channel_values"]["c"] for each in await listed(either, config())] == list(
        reversed(CHANGES)
    )


async def test_a_channel_may_lose_its_value(either: AsyncPostgresSaver) -> None:
    states: list[dict[str, Any]] = [{"c": LARGE_TEXT, "d": 1}, {"d": 1}, {"c": [1]}, {}]
    for number, values in enumerate(states, 1):
        await put(either, config(), checkpoint(number, values, {"c": version(number), "d": version(1)}))
        assert await values_of(either, config()) == values


async def test_an_unchanged_large_value_is_stored_once(
    either: AsyncPostgresSaver, dsn: str, schema: str
) -> None:
    where = await put(either, config(), checkpoint(1, {"c": LARGE_TEXT, "n": 1}))
    for number in range(2, 6):
        what = checkpoint(number, {"c": LARGE_TEXT, "n": number}, {"n": version(number)})
        where = await put(either, where, what, new_versions={"n": version(number)})
        assert await values_of(either, config()) == {"c": LARGE_TEXT, "n": number}
    assert run_sql(dsn, f"SELECT channel, version FROM {schema}.channel_values") == [("c", version(1))]
    assert either.stats().values_written == 1


async def test_an_unchanged_large_value_of_another_process(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema) as first:
        await put(first, config(), checkpoint(1, {"c": LARGE_TEXT}))
    async with saver_on(dsn, schema) as second:
        # Nothing was read: the second does not know what is stored.
        await put(second, config(number=1), checkpoint(2, {"c": LARGE_TEXT}), new_versions={})
        assert await values_of(second, config()) == {"c": LARGE_TEXT}
    assert run_sql(dsn, f"SELECT count(*) FROM {schema}.channel_values") == [(1,)]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_an_unchanged_large_value_that_another_process_deleted(
    dsn: str, schema: str, driver: str
) -> None:
    async with saver_on(dsn, schema, driver=driver) as mine, saver_on(dsn, schema) as other:
        where = await put(mine, config(), checkpoint(1, {"c": LARGE_TEXT, "d": LARGE_TEXT + "d", "n": 1}))
        await other.adelete_thread("thread")
        what = checkpoint(2, {"c": LARGE_TEXT, "d": LARGE_TEXT + "d", "n": 2}, {"n": version(2)})
        stored = await put(mine, where, what, new_versions={"n": version(2)})
        assert mine.stats().items_reencoded == 1
        expected = {"c": LARGE_TEXT, "d": LARGE_TEXT + "d", "n": 2}
        assert await values_of(other, config()) == expected
        assert await values_of(mine, stored) == expected
        # From now on it rests on the new row.
        what = checkpoint(3, {**expected, "n": 3}, {"n": version(3)})
        await put(mine, stored, what, new_versions={"n": version(3)})
        assert mine.stats().items_reencoded == 1
        assert await values_of(other, config()) == {**expected, "n": 3}


async def test_a_value_missing_from_the_tables_is_an_error_that_names_it(
    either: AsyncPostgresSaver, dsn: str, schema: str
) -> None:
    await put(either, config(), checkpoint(1, {"c": LARGE_TEXT, "n": 1}))
    run_sql(dsn, f"DELETE FROM {schema}.channel_values")
    with pytest.raises(StoredDataError, match="missing") as caught:
        await either.aget_tuple(config())
    error = caught.value
    assert (error.thread_id, error.checkpoint_ns, error.channel) == ("thread", "", "c")
    assert (error.checkpoint_id, error.version) == (checkpoint_id(1), version(1))


@pytest.mark.parametrize(
    ("table", "column"), [("channel_values", "frame"), ("checkpoints", "body"), ("writes", "frame")]
)
@pytest.mark.parametrize(
    "damage",
    [
        "set_byte({c}, length({c}) / 2, get_byte({c}, length({c}) / 2) # 255)",
        "substr({c}, 1, length({c}) - 1)",
        "''::bytea",
    ],
)
async def test_corrupt_bytes_are_an_error_that_names_them(
    saver: AsyncPostgresSaver, dsn: str, schema: str, table: str, column: str, damage: str
) -> None:
    await put(saver, config(), checkpoint(1, {"c": LARGE_TEXT, "d": ["x" * 400]}))
    await saver.aput_writes(config(number=1), [("w", "y" * 400)], "task")
    run_sql(dsn, f"UPDATE {schema}.{table} SET {column} = {damage.format(c=column)}")
    for read in (saver.aget_tuple(config()), listed(saver, config())):
        with pytest.raises(StoredDataError) as caught:
            await read
        assert (caught.value.thread_id, caught.value.checkpoint_id) == ("thread", checkpoint_id(1))


async def test_a_value_that_cannot_be_carried_is_named(saver: AsyncPostgresSaver) -> None:
    with pytest.raises(SerializationError) as caught:
        await put(saver, config(), checkpoint(1, {"messages": [{"content": [1, 2**70]}]}))
    assert caught.value.path == "$.channel_values.messages[0].content[1]"
    assert await saver.aget_tuple(config()) is None


class Level(enum.IntEnum):
    HIGH = 3


class Colour(str, enum.Enum):
    RED = "red"


LOSSLESS: dict[str, Any] = {
    "nul": "a\x00b\x00",
    "infinity": [math.inf, -math.inf],
    "float": 1e16,
    "minus zero": -0.0,
    "int": 2**63 - 1,
    "negative": -(2**63),
    "bool": True,
    "none": None,
    "bytes": b"\x00\xff",
    "bytearray": bytearray(b"\x00\xff"),
    "tuple": (1, (2, "x")),
    "set": {1, 2},
    "frozenset": frozenset({1}),
    "uuid": uuid.UUID(int=3),
    "list": [1, 2.0, "3", None, True],
    "dict": {"a": {"b": [1]}, "": ""},
    "empty": "",
    "empty list": [],
    "large nul": "\x00" * 5000,
    "large floats": [1e16, -0.0] * 500,
}


async def test_values_come_back_of_the_same_type(either: AsyncPostgresSaver) -> None:
    await put(either, config(), checkpoint(1, LOSSLESS))
    for found in (
        await values_of(either, config()),
        (await listed(either, config()))[0].checkpoint["channel_values"],
    ):
        assert found.keys() == LOSSLESS.keys()
        for name, value in LOSSLESS.items():
            # The serializer makes lists of tuples; what it does by itself is what must come back.
            alone = either.serde.loads_typed(either.serde.dumps_typed(value))
            assert found[name] == alone, name
            assert type(found[name]) is type(alone), name
            assert repr(found[name]) == repr(alone), name


async def test_nan_comes_back(saver: AsyncPostgresSaver) -> None:
    await put(saver, config(), checkpoint(1, {"plain": math.nan, "inside": [math.nan]}))
    found = await values_of(saver, config())
    assert math.isnan(found["plain"])
    assert math.isnan(found["inside"][0])


async def test_a_plain_looking_value_is_no_less_typed_than_in_the_serializer(
    saver: AsyncPostgresSaver,
) -> None:
    class Name(str):
        __slots__ = ()

    values = {"level": Level.HIGH, "colour": Colour.RED, "name": Name("x")}
    await put(saver, config(), checkpoint(1, values))
    found = await values_of(saver, config())
    for name, value in values.items():
        alone = saver.serde.loads_typed(saver.serde.dumps_typed(value))
        assert found[name] == alone, name
        assert type(found[name]) is type(alone), name


# --- 13: namespaces -----------------------------------------------------------------------------------


async def test_namespaces_are_apart(either: AsyncPostgresSaver) -> None:
    for number, checkpoint_ns in enumerate(["", "sub", "sub:1", "sub|inner:2"], 1):
        await put(
            either,
            config("t", checkpoint_ns),
            checkpoint(number, {"ns": checkpoint_ns, "big": checkpoint_ns + LARGE_TEXT}),
        )
    for number, checkpoint_ns in enumerate(["", "sub", "sub:1", "sub|inner:2"], 1):
        found = await get(either, config("t", checkpoint_ns))
        assert place(found) == ("t", checkpoint_ns, checkpoint_id(number))
        assert found.checkpoint["channel_values"] == {"ns": checkpoint_ns, "big": checkpoint_ns + LARGE_TEXT}
    assert place(await get(either, config("t", None))) == ("t", "", checkpoint_id(1))


# --- 14: formats below 4 ------------------------------------------------------------------------------


async def old_format(saver: Saver) -> list[Any]:
    """Checkpoints of format 3 in one thread and namespace, with Sends among their parents' writes."""
    first = await put(saver, config(), checkpoint(1, {"a": [1]}, v=3))
    await saver.aput_writes(first, [(TASKS, "send b"), ("a", 1), (TASKS, "send c")], "t2", "p2")
    await saver.aput_writes(first, [(TASKS, "send a")], "t1", "p1")
    second = await put(saver, first, checkpoint(2, {"a": [2]}, {"a": version(2)}, v=3))
    third = await put(saver, second, checkpoint(3, {"a": [3]}, {"a": version(3)}, v=3))
    await saver.aput_writes(second, [(TASKS, "for four")], "t1")
    # A newer format keeps them elsewhere.
    await put(saver, second, checkpoint(4, {"a": [4]}, {"a": version(4)}, v=4))
    return [await get(saver, each) for each in (first, second, third, config(number=4))] + [
        await listed(saver, config())
    ]


async def test_sends_of_old_formats_are_found(either: AsyncPostgresSaver, official: OfficialSaver) -> None:
    ours, theirs = await old_format(either), await old_format(official)
    assert ours == theirs
    assert ours[1].checkpoint["channel_values"][TASKS] == ["send a", "send b", "send c"]
    assert ours[1].checkpoint["channel_versions"][TASKS] == version(2)


async def test_sends_of_old_formats_stay_in_their_thread_and_namespace(either: AsyncPostgresSaver) -> None:
    # The same ids everywhere. (The official saver mixes up threads in a listing over all of them.)
    places = [(thread, ns) for thread in ("t1", "t2") for ns in ("", "sub")]
    for thread_id, checkpoint_ns in places:
        first = await put(either, config(thread_id, checkpoint_ns), checkpoint(1, v=3))
        await either.aput_writes(first, [(TASKS, [thread_id, checkpoint_ns])], "task")
        await put(either, first, checkpoint(2, v=3))
    found = {
        place(each)[:2]: each for each in await listed(either, None) if place(each)[2] == checkpoint_id(2)
    }
    for key in places:
        assert found[key].checkpoint["channel_values"] == {TASKS: [list(key)]}
        read = await get(either, config(*key))
        assert read.checkpoint["channel_values"] == {TASKS: [list(key)]}


# --- 15: versions -------------------------------------------------------------------------------------


def test_versions_go_on_from_any_form(dsn: str) -> None:
    saver = AsyncPostgresSaver.__new__(AsyncPostgresSaver)
    official = OfficialSaver.__new__(OfficialSaver)
    for current in (None, 1, 41, version(1), version(41, 7), "41", "00041.5"):
        ours = saver.get_next_version(current, None)  # type: ignore[arg-type]
        theirs = official.get_next_version(current, None)  # type: ignore[arg-type]
        assert ours.split(".")[0] == theirs.split(".")[0]
        assert len(ours.split(".")[0]) == 32
    first = saver.get_next_version(version(1), None)
    assert first != saver.get_next_version(version(1), None), "siblings must not collide"
    assert version(9) < saver.get_next_version(version(9), None) < version(11)


async def test_int_versions_are_accepted(either: AsyncPostgresSaver) -> None:
    await put(either, config(), checkpoint(1, {"a": [1], "b": LARGE_TEXT}, {"a": 1, "b": 1}))
    what = checkpoint(2, {"a": [2], "b": LARGE_TEXT}, {"a": 2, "b": 1})
    await put(either, config(number=1), what, new_versions={"a": 2})
    found = await get(either, config())
    assert found.checkpoint["channel_values"] == {"a": [2], "b": LARGE_TEXT}
    assert found.checkpoint["channel_versions"] == {"a": 2, "b": 1}
    assert await values_of(either, config(number=1)) == {"a": [1], "b": LARGE_TEXT}


async def test_forks_with_one_version_number_do_not_collide(either: AsyncPostgresSaver) -> None:
    root = await put(either, config(), checkpoint(1, {"c": LARGE_TEXT}))
    left = await put(either, root, checkpoint(2, {"c": LARGE_TEXT + "left"}, {"c": version(2, 1)}))
    right = await put(either, root, checkpoint(3, {"c": LARGE_TEXT + "right"}, {"c": version(2, 2)}))
    assert await values_of(either, left) == {"c": LARGE_TEXT + "left"}
    assert await values_of(either, right) == {"c": LARGE_TEXT + "right"}
    assert await values_of(either, root) == {"c": LARGE_TEXT}


# --- 17: durability="exit" ----------------------------------------------------------------------------


async def exit_like(saver: Saver) -> list[Any]:
    """What a graph does that is only saved at its end: a stub, writes onto it, the real checkpoint."""
    stub = await put(saver, config(), checkpoint(1), metadata(source="input", step=-1))
    await saver.aput_writes(stub, [("a", 1)], "not a uuid")
    real = await put(saver, stub, checkpoint(2, {"a": [1]}), metadata(source="loop", step=3))
    return [await get(saver, stub), await get(saver, real), await listed(saver, config())]


async def test_empty_checkpoints_are_kept(either: AsyncPostgresSaver, official: OfficialSaver) -> None:
    assert await exit_like(either) == await exit_like(official)


# --- the rest of the interface ------------------------------------------------------------------------


async def test_everything_of_a_checkpoint_comes_back(either: AsyncPostgresSaver) -> None:
    what = checkpoint(1, {"a": [1]})
    what["versions_seen"] = {"node": {"a": version(1)}, "__input__": {}}
    what["updated_channels"] = ["a"]
    what["something_new"] = {"of": "a later LangGraph"}  # type: ignore[typeddict-unknown-key]
    stored = await put(either, config(), what)
    found = await get(either, stored)
    assert found.checkpoint == what
    assert await either.aget(config()) == what


async def test_a_value_changed_after_the_call_started_is_not_torn(either: AsyncPostgresSaver) -> None:
    values: dict[str, Any] = {"small": [1], "large": [LARGE_TEXT], "huge": [LARGE_TEXT * 100]}
    task = asyncio.create_task(put(either, config(), checkpoint(1, values)))
    await asyncio.wait([task], timeout=0)  # it has started, and waits for the server
    for value in values.values():
        value.append("changed")
    await task
    assert await values_of(either, config()) == {
        "small": [1],
        "large": [LARGE_TEXT],
        "huge": [LARGE_TEXT * 100],
    }
