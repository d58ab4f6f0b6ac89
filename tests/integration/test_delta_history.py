"""Histories of DeltaChannels on threads made by hand: equal to LangGraph's own walk and to its saver in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, DeltaChannelHistory
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from pgcairn import AsyncPostgresSaver, InvalidInput, PostgresSaver, Settings, StoredDataError
from pgcairn.storage.history import Ancestor
from tests.support.savers import (
    LARGE_TEXT,
    VARIANTS,
    checkpoint,
    checkpoint_id,
    config,
    metadata,
    saver_on,
    version,
)
from tests.support.values import aes_serializer

Histories = Mapping[str, DeltaChannelHistory]
LARGE_LIST = [LARGE_TEXT, LARGE_TEXT]


def counters(**supersteps: int) -> dict[str, list[int]]:
    """Counters as LangGraph leaves them in metadata: every superstep was an update."""
    return {channel: [count, count] for channel, count in supersteps.items()}


class Twins:
    """A saver and LangGraph's own in memory, filled alike."""

    def __init__(self, saver: AsyncPostgresSaver) -> None:
        self.saver = saver
        self.memory = InMemorySaver()
        self.both: tuple[BaseCheckpointSaver[Any], ...] = (self.saver, self.memory)
        self._versions: dict[tuple[str, int], dict[str, str]] = {}

    async def put(
        self,
        number: int,
        parent: int | None,
        values: Mapping[str, Any] | None = None,
        *,
        ns: str = "",
        written: Sequence[str] = ("x", "y"),
        counted: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Put a checkpoint; ``written`` are the channels whose version it raises."""
        before = {} if parent is None else self._versions.get((ns, parent), {})
        raised = {channel: version(number) for channel in (*written, *(values or {}))}
        versions = self._versions[ns, number] = {**before, **raised}
        meta = metadata(source="loop", step=number)
        if counted is not None:
            meta = metadata(source="loop", step=number, counters_since_delta_snapshot=counted)
        for saver in self.both:
            made = checkpoint(number, values, versions)
            await saver.aput(config(checkpoint_ns=ns, number=parent), made, meta, {**raised})

    async def write(
        self, number: int, *writes: tuple[str, Any], task: str = "task", path: str = "", ns: str = ""
    ) -> None:
        for saver in self.both:
            await saver.aput_writes(config(checkpoint_ns=ns, number=number), writes, task, path)

    async def step(self, number: int, parent: int | None, values: Any = None, **more: Any) -> None:
        """A checkpoint and what its tasks write to ``x`` and ``y``."""
        await self.put(number, parent, values, **more)
        await self.write(number, ("x", f"x{number}"), ("y", f"y{number}"), ns=more.get("ns", ""))

    async def history(
        self, where: RunnableConfig, channels: Sequence[str] = ("x",), *, statements: int = 2
    ) -> Histories:
        """The history, once all agree on it and it took no more statements than it may."""
        before = self.saver.stats().statements
        ours = await self.saver.aget_delta_channel_history(config=where, channels=channels)
        assert self.saver.stats().statements - before <= statements
        walked = await BaseCheckpointSaver.aget_delta_channel_history(
            self.saver, config=where, channels=channels
        )
        assert ours == walked
        assert ours == await self.memory.aget_delta_channel_history(config=where, channels=channels)
        assert [*ours] == [*channels]
        return ours

    async def path(self, number: int, channels: Sequence[str] = ("x",)) -> list[Ancestor]:
        """What the first statement gives."""
        engine = self.saver._engine
        return await engine.reader.detached(
            lambda session: engine.history_repository.select_path(
                session, ("thread", "", checkpoint_id(number)), channels, is_start=True, max_bytes=10**6
            )
        )


def values_of(history: DeltaChannelHistory) -> list[Any]:
    return [value for _, _, value in history["writes"]]


@pytest.fixture
async def twins(dsn: str, schema: str) -> AsyncIterator[Twins]:
    async with saver_on(dsn, schema) as saver:
        yield Twins(saver)


# --- where a history begins ---------------------------------------------------------------------------

SEEDS: dict[str, Any] = {
    "a snapshot": _DeltaSnapshot(["a"]),
    "a large snapshot": _DeltaSnapshot(LARGE_LIST),
    "a snapshot of None": _DeltaSnapshot(None),
    "a large plain value": LARGE_LIST,
    "a small plain value": ["a", {"b": 1}],
    "a text": "a",
    "a large text": LARGE_TEXT,
    "a number": 7,
    "zero": 0,
    "False": False,
    "an empty list": [],
    "bytes": b"\x00\x01",
    "None": None,
}


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "not counted"])
@pytest.mark.parametrize("seed", SEEDS.values(), ids=SEEDS)
async def test_every_kind_of_value_is_a_seed(twins: Twins, seed: Any, counted: bool) -> None:
    await twins.step(1, None, {"x": ["too far"]})
    await twins.step(2, 1)
    await twins.step(3, 2, {"x": seed})
    for number in (4, 5, 6):
        await twins.step(number, number - 1, counted=counters(x=number - 3) if counted else None)
    found = (await twins.history(config(number=6)))["x"]
    assert found["seed"] == seed
    assert type(found["seed"]) is type(seed)
    assert values_of(found) == ["x3", "x4", "x5"]


async def test_the_parent_is_the_seed(twins: Twins) -> None:
    await twins.step(1, None, {"x": _DeltaSnapshot(["a"])})
    await twins.step(2, 1, counted=counters(x=1))
    found = (await twins.history(config(number=2)))["x"]
    assert found == {"writes": [("task", "x", "x1")], "seed": _DeltaSnapshot(["a"])}


async def test_a_value_of_the_checkpoint_itself_is_no_seed(twins: Twins) -> None:
    await twins.step(1, None)
    await twins.step(2, 1, {"x": _DeltaSnapshot(["b"])})
    found = (await twins.history(config(number=2)))["x"]
    assert found == {"writes": [("task", "x", "x1")]}


@pytest.mark.parametrize("counted", [True, False], ids=["counted", "not counted"])
async def test_no_seed_up_to_the_root(twins: Twins, counted: bool) -> None:
    for number in range(1, 6):
        await twins.step(number, number - 1 or None, counted=counters(x=number) if counted else None)
    found = (await twins.history(config(number=5)))["x"]
    assert "seed" not in found
    assert values_of(found) == ["x1", "x2", "x3", "x4"]


async def test_a_root_has_no_history(twins: Twins) -> None:
    await twins.step(1, None)
    assert await twins.history(config(number=1), statements=1) == {"x": {"writes": []}}


async def test_the_latest_if_no_checkpoint_is_named(twins: Twins) -> None:
    await twins.step(1, None, {"x": 1})
    await twins.step(2, 1)
    await twins.step(3, 2)
    assert values_of((await twins.history(config()))["x"]) == ["x1", "x2"]


async def test_nothing_there(twins: Twins) -> None:
    nothing: Histories = {"x": {"writes": []}, "y": {"writes": []}}
    assert (
        await twins.history(config("unknown"), ("x", "y"), statements=3) == nothing
    )  # and the schema's check
    await twins.step(1, None)
    assert await twins.history(config(number=9), ("x", "y"), statements=1) == nothing
    assert await twins.history(config(number=1), (), statements=0) == {}


async def test_writes_that_arrived_before_their_checkpoint_are_no_target(twins: Twins) -> None:
    await twins.write(1, ("x", "early"))
    assert await twins.history(config(number=1)) == {"x": {"writes": []}}


async def test_channels_of_their_own_depths(twins: Twins) -> None:
    await twins.step(1, None, {"y": "inline"})
    await twins.step(2, 1, {"z": [LARGE_TEXT]})
    await twins.step(3, 2, {"x": _DeltaSnapshot(["a"])})
    await twins.step(4, 3)
    await twins.step(5, 4)
    found = await twins.history(config(number=5), ("x", "y", "z", "never"))
    assert values_of(found["x"]) == ["x3", "x4"]
    assert values_of(found["y"]) == ["y1", "y2", "y3", "y4"]
    assert (found["z"]["seed"], values_of(found["z"])) == ([LARGE_TEXT], [])
    assert found["never"] == {"writes": []}
    assert (found["x"]["seed"], found["y"]["seed"]) == (_DeltaSnapshot(["a"]), "inline")


async def test_several_seeds_in_one_checkpoint(twins: Twins) -> None:
    await twins.step(1, None, {"x": _DeltaSnapshot(LARGE_LIST), "y": "inline", "z": 1})
    await twins.step(2, 1)
    found = await twins.history(config(number=2), ("x", "y"))
    assert (found["x"]["seed"], found["y"]["seed"]) == (_DeltaSnapshot(LARGE_LIST), "inline")
    assert values_of(found["y"]) == ["y1"]


async def test_a_channel_named_twice(twins: Twins) -> None:
    await twins.step(1, None, {"x": 1})
    await twins.step(2, 1)
    ours = await twins.saver.aget_delta_channel_history(config=config(number=2), channels=["x", "x"])
    assert ours == {"x": {"writes": [("task", "x", "x1")], "seed": 1}}


# --- which ancestors ----------------------------------------------------------------------------------


async def test_forks_stay_apart(twins: Twins) -> None:
    await twins.step(1, None, {"x": _DeltaSnapshot(["root"])})
    await twins.step(2, 1)
    await twins.step(3, 2)  # one branch
    await twins.step(4, 2, {"x": _DeltaSnapshot(["fork"])})  # another
    await twins.step(5, 3)
    await twins.step(6, 4)
    first = (await twins.history(config(number=5)))["x"]
    assert (first["seed"], values_of(first)) == (_DeltaSnapshot(["root"]), ["x1", "x2", "x3"])
    second = (await twins.history(config(number=6)))["x"]
    assert (second["seed"], values_of(second)) == (_DeltaSnapshot(["fork"]), ["x4"])


async def test_an_ancestor_that_is_gone_ends_the_walk(twins: Twins, dsn: str, schema: str) -> None:
    await twins.step(1, None, {"x": _DeltaSnapshot(["a"])})
    for number in (2, 3, 4, 5):
        await twins.step(number, number - 1, counted=counters(x=number - 1))
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(
            f"DELETE FROM {schema}.checkpoints WHERE checkpoint_id = %s".encode(), (checkpoint_id(3),)
        )
    del twins.memory.storage["thread"][""][checkpoint_id(3)]
    found = (await twins.history(config(number=5)))["x"]
    assert "seed" not in found
    assert values_of(found) == ["x4"]


async def test_namespaces_and_threads_stay_apart(twins: Twins) -> None:
    for ns in ("", "inner", "inner:1"):
        await twins.step(1, None, {"x": f"seed of {ns}"}, ns=ns)
        await twins.step(2, 1, ns=ns)
        await twins.write(1, ("x", f"more of {ns}"), task="z", ns=ns)
    for ns in ("", "inner", "inner:1"):
        found = (await twins.history(config(checkpoint_ns=ns, number=2)))["x"]
        assert (found["seed"], values_of(found)) == (f"seed of {ns}", ["x1", f"more of {ns}"])
    assert await twins.history(config("other", number=2)) == {"x": {"writes": []}}
    missing_means_root = config(checkpoint_ns=None, number=2)
    ours = await twins.saver.aget_delta_channel_history(config=missing_means_root, channels=["x"])
    assert ours["x"]["seed"] == "seed of "


async def test_the_walk_goes_through_hidden_checkpoints(twins: Twins, dsn: str, schema: str) -> None:
    await twins.step(1, None, {"x": "too far"})
    await twins.step(2, 1, {"x": _DeltaSnapshot(["a"])})
    for number in (3, 4, 5):
        await twins.step(number, number - 1, counted=counters(x=number - 2))
    expected = await twins.history(config(number=5))
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(
            f"UPDATE {schema}.checkpoints SET hidden = checkpoint_id < %s, "
            "hidden_parent_id = parent_checkpoint_id, parent_checkpoint_id = NULL".encode(),
            (checkpoint_id(5),),
        )
    saver = twins.saver
    assert await saver.aget_delta_channel_history(config=config(number=5), channels=["x"]) == expected
    assert await saver.aget_delta_channel_history(config=config(), channels=["x"]) == expected
    hidden = await saver.aget_delta_channel_history(config=config(number=4), channels=["x"])
    assert hidden == {"x": {"writes": []}}


async def test_a_checkpoint_that_is_its_own_ancestor(twins: Twins, dsn: str, schema: str) -> None:
    await twins.step(1, None)
    await twins.step(2, 1)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(
            f"UPDATE {schema}.checkpoints SET parent_checkpoint_id = %s".encode(), (checkpoint_id(2),)
        )
    with pytest.raises(StoredDataError, match="its own ancestor"):
        await twins.saver.aget_delta_channel_history(config=config(number=1), channels=["x"])


# --- the order of writes ------------------------------------------------------------------------------


async def test_writes_of_one_checkpoint_come_in_the_order_of_their_tasks(twins: Twins) -> None:
    await twins.put(1, None, {"x": _DeltaSnapshot([])})
    await twins.write(1, ("x", "c1"), ("y", "-"), ("x", "c2"), task="a", path="~pull, c")
    await twins.write(1, ("x", "b1"), task="z", path="~pull, b")
    await twins.write(1, ("x", "a2"), task="b2", path="~pull, a")
    await twins.write(1, ("x", "a1"), task="b1", path="~pull, a")
    await twins.write(1, ("x", "Z1"), task="c", path="~pull, Z")  # bytes, not letters, decide
    await twins.write(1, ("x", "é1"), task="c2", path="~pull, é")
    await twins.write(1, *(("x", f"n{n}") for n in range(12)), task="n")  # 10 after 9
    await twins.write(1, ("__interrupt__", "ask"), ("x", "-1 is before"), task="s", path="s")
    await twins.put(2, 1)
    found = (await twins.history(config(number=2)))["x"]
    assert values_of(found) == [
        *(f"n{n}" for n in range(12)),
        "-1 is before",
        *("Z1", "a1", "a2", "b1", "c1", "c2", "é1"),
    ]
    assert {task for task, _, _ in found["writes"]} == {"a", "z", "b2", "b1", "c", "c2", "n", "s"}


async def test_a_write_keeps_its_type(twins: Twins) -> None:
    written = [None, 1.5, b"b", ["l"], {"k": [1]}, LARGE_TEXT, {1, 2}]
    await twins.put(1, None)
    await twins.write(1, *(("x", value) for value in written))
    await twins.put(2, 1)
    assert values_of((await twins.history(config(number=2)))["x"]) == written


# --- how it is read -----------------------------------------------------------------------------------


async def test_bodies_of_ordinary_steps_stay_where_they_are(twins: Twins) -> None:
    await twins.step(1, None, {"x": _DeltaSnapshot(["a"])})
    for number in range(2, 12):
        await twins.step(number, number - 1, {"other": number}, counted=counters(x=number - 1))
    found = await twins.path(11)
    assert [ancestor.checkpoint_id for ancestor in found] == [checkpoint_id(n) for n in range(10, 0, -1)]
    assert [ancestor.body for ancestor in found] == [None] * 10
    assert [ancestor.refs for ancestor in found] == [None] * 9 + [{"x": version(1)}]


async def test_a_channel_without_a_count_needs_the_body(twins: Twins) -> None:
    await twins.step(1, None, {"x": _DeltaSnapshot(["a"]), "y": "inline"})
    await twins.step(2, 1, counted=counters(x=1))
    await twins.step(3, 2, counted={"x": [2, 2], "y": [0, 0]})
    await twins.step(4, 3, counted=counters(x=3, y=1))
    await twins.step(5, 4, counted=counters(x=4, y=2))
    found = await twins.path(5, ("x", "y"))
    assert [ancestor.body is not None for ancestor in found] == [False, True, True, True]
    assert [ancestor.body is not None for ancestor in await twins.path(5)] == [False, False, False, False]
    assert (await twins.history(config(number=5), ("x", "y")))["y"]["seed"] == "inline"


async def test_the_counters_bound_the_walk(twins: Twins) -> None:
    for number in range(1, 6):
        await twins.step(number, number - 1 or None, {"x": f"inline {number}"})
    for number in (6, 7, 8):
        await twins.step(number, number - 1, counted=counters(x=number - 5, y=number))
    found = await twins.path(8)
    assert [ancestor.checkpoint_id for ancestor in found] == [checkpoint_id(n) for n in (7, 6, 5)]
    assert len(await twins.path(8, ("x", "y"))) == 7
    assert (await twins.history(config(number=8)))["x"]["seed"] == "inline 5"


async def test_a_walk_stops_at_the_last_reference(twins: Twins) -> None:
    await twins.step(1, None)
    await twins.step(2, 1, {"y": _DeltaSnapshot(["b"])})
    await twins.step(3, 2, {"x": _DeltaSnapshot(["a"])})
    await twins.step(4, 3)
    assert len(await twins.path(4)) == 1
    assert len(await twins.path(4, ("y", "x"))) == 2


@pytest.mark.parametrize(
    "counted",
    [
        {"x": [1, 1]},  # of somebody who counted wrong
        {"x": [0, 0]},
        {"x": [2, -1]},
        {"x": [1.5, 1.5]},
        {"x": [1, 10**18]},
        {"x": "text"},
        {"x": ["1", "1"]},
        {"x": [None]},
        {"x": {}},
        {"y": [1, 1]},
        {},
        "text",
        [1],
        None,
    ],
    ids=repr,
)
async def test_counters_that_mislead_cost_a_statement_and_no_data(twins: Twins, counted: Any) -> None:
    await twins.step(1, None, {"x": ["too far"]})
    await twins.step(2, 1, {"x": _DeltaSnapshot(["a"])})
    await twins.step(3, 2, counted=counters(x=1))
    await twins.step(4, 3, counted=counters(x=2))
    await twins.step(5, 4, counted=counted)
    found = (await twins.history(config(number=5), statements=3))["x"]
    assert (found["seed"], values_of(found)) == (_DeltaSnapshot(["a"]), ["x2", "x3", "x4"])


async def test_a_long_way_is_walked_in_pieces(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema, page_bytes=1024) as saver:
        twins = Twins(saver)
        await twins.step(1, None, {"x": "seed"})
        for number in range(2, 60):
            await twins.step(number, number - 1)
        found = (await twins.history(config(number=59), statements=40))["x"]
        assert (found["seed"], len(found["writes"])) == ("seed", 58)
        before = saver.stats().statements
        await saver.aget_delta_channel_history(config=config(number=59), channels=["x"])
        assert saver.stats().statements - before > 2
        assert await twins.history(config(number=1), statements=1) == {"x": {"writes": []}}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
async def test_on_every_kind_of_saver(dsn: str, schema: str, variant: Any) -> None:
    async with variant(dsn, Settings(schema=schema)) as saver:
        await saver.setup()
        twins = Twins(saver)
        await twins.step(1, None, {"x": _DeltaSnapshot(LARGE_LIST), "y": "inline"})
        await twins.step(2, 1, {"y": LARGE_LIST})
        await twins.step(3, 2, counted=counters(x=2))
        await twins.step(4, 3, counted=counters(x=3))
        found = await twins.history(
            config(number=4), ("x", "y"), statements=20
        )  # drivers' own are counted too
        assert (found["x"]["seed"], values_of(found["x"])) == (
            _DeltaSnapshot(LARGE_LIST),
            ["x1", "x2", "x3"],
        )
        assert (found["y"]["seed"], values_of(found["y"])) == (LARGE_LIST, ["y2", "y3"])


async def test_what_is_read_is_counted(twins: Twins) -> None:
    await twins.step(1, None, {"x": _DeltaSnapshot(LARGE_LIST)})
    await twins.step(2, 1)
    before = twins.saver.stats()
    await twins.saver.aget_delta_channel_history(config=config(), channels=["x", "y"])
    after = twins.saver.stats()
    assert after.history_reads - before.history_reads == 1
    assert after.reads == before.reads
    assert after.read_bytes > before.read_bytes


async def test_from_other_threads_and_loops(twins: Twins, dsn: str, schema: str) -> None:
    await twins.step(1, None, {"x": 1})
    await twins.step(2, 1)
    saver = twins.saver
    expected = {"x": {"writes": [("task", "x", "x1")], "seed": 1}}

    def in_a_thread() -> Histories:
        return saver.get_delta_channel_history(config=config(), channels=["x"])

    def on_another_loop() -> Histories:
        return asyncio.run(saver.aget_delta_channel_history(config=config(), channels=["x"]))

    def without_a_loop() -> Histories:
        with PostgresSaver.from_conn_string(dsn, schema=schema) as other:
            return other.get_delta_channel_history(config=config(), channels=["x"])

    for call in (in_a_thread, on_another_loop, without_a_loop):
        assert await asyncio.wait_for(asyncio.to_thread(call), 30) == expected
    with pytest.raises(asyncio.InvalidStateError, match="aget_delta_channel_history"):
        saver.get_delta_channel_history(config=config(), channels=["x"])


async def test_a_cancelled_caller_breaks_nothing(twins: Twins) -> None:
    await twins.step(1, None, {"x": 1})
    await twins.step(2, 1)
    call = asyncio.ensure_future(twins.saver.aget_delta_channel_history(config=config(), channels=["x"]))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert values_of((await twins.history(config(), statements=4))["x"]) == ["x1"]  # those of the other, too
    assert twins.saver.stats().sessions_lost == 0


async def test_keys_that_cannot_be(twins: Twins) -> None:
    read = twins.saver.aget_delta_channel_history
    with pytest.raises(InvalidInput, match="thread_id"):
        await read(config={"configurable": {}}, channels=["x"])
    with pytest.raises(InvalidInput, match="NUL"):
        await read(config=config(), channels=["x\x00"])


# --- what is missing or corrupt is said ---------------------------------------------------------------


async def damage(dsn: str, statement: str) -> None:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        cursor = await connection.execute(statement.encode())
        assert cursor.rowcount == 1


async def raised(twins: Twins) -> StoredDataError:
    with pytest.raises(StoredDataError) as caught:
        await twins.saver.aget_delta_channel_history(config=config(number=3), channels=["x"])
    error = caught.value
    assert (error.thread_id, error.checkpoint_ns) == ("thread", "")
    return error


@pytest.fixture
async def three(twins: Twins) -> Twins:
    await twins.step(1, None, {"x": _DeltaSnapshot(LARGE_LIST)})
    await twins.step(2, 1)
    await twins.step(3, 2)
    return twins


async def test_a_missing_value(three: Twins, dsn: str, schema: str) -> None:
    await damage(dsn, f"DELETE FROM {schema}.channel_values")
    error = await raised(three)
    assert "missing" in error.message
    assert (error.channel, error.version, error.checkpoint_id) == ("x", version(1), checkpoint_id(1))


async def test_a_corrupt_value(three: Twins, dsn: str, schema: str) -> None:
    await damage(dsn, f"UPDATE {schema}.channel_values SET frame = substr(frame, 1, 20)")
    error = await raised(three)
    assert (error.channel, error.version, error.checkpoint_id) == ("x", version(1), checkpoint_id(1))


async def test_a_value_that_rests_on_a_missing_one(three: Twins, dsn: str, schema: str) -> None:
    await damage(dsn, f"UPDATE {schema}.channel_values SET chain = ARRAY['{version(0)}']")
    error = await raised(three)
    assert "missing" in error.message
    assert (error.channel, error.version) == ("x", version(0))


async def test_a_value_whose_chain_this_version_cannot_follow(three: Twins, dsn: str, schema: str) -> None:
    await damage(dsn, f"UPDATE {schema}.channel_values SET chain = ARRAY['{version(0)}']")
    await damage(
        dsn,
        f"INSERT INTO {schema}.channel_values (thread_id, checkpoint_ns, channel, version, type, frame) "
        f"SELECT thread_id, checkpoint_ns, channel, '{version(0)}', type, frame FROM {schema}.channel_values",
    )
    error = await raised(three)
    assert (error.channel, error.version) == ("x", version(1))


async def test_a_corrupt_write(three: Twins, dsn: str, schema: str) -> None:
    await damage(
        dsn,
        f"UPDATE {schema}.writes SET frame = '\\x00' WHERE channel = 'x' AND checkpoint_id = '{checkpoint_id(2)}'",
    )
    error = await raised(three)
    assert (error.channel, error.checkpoint_id) == ("x", checkpoint_id(2))


async def test_a_corrupt_body(three: Twins, dsn: str, schema: str) -> None:
    await damage(
        dsn, f"UPDATE {schema}.checkpoints SET body = '\\x00' WHERE checkpoint_id = '{checkpoint_id(2)}'"
    )
    assert (await raised(three)).checkpoint_id == checkpoint_id(2)


async def test_a_body_of_another_checkpoint(three: Twins, dsn: str, schema: str) -> None:
    await damage(
        dsn,
        f"UPDATE {schema}.checkpoints SET body = (SELECT body FROM {schema}.checkpoints "
        f"WHERE checkpoint_id = '{checkpoint_id(3)}') WHERE checkpoint_id = '{checkpoint_id(2)}'",
    )
    assert checkpoint_id(3) in (await raised(three)).message


async def test_values_that_are_not_encrypted_are_refused(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema) as plain, saver_on(dsn, schema, serde=aes_serializer()) as sealed:
        twins = Twins(plain)
        await twins.step(1, None, {"x": 1})
        await twins.step(2, 1)
        with pytest.raises(StoredDataError, match="encrypted"):
            await sealed.aget_delta_channel_history(config=config(), channels=["x"])


async def test_a_thread_that_is_deleted_meanwhile_is_no_error(three: Twins) -> None:
    """Between the two statements: the second look finds nothing, and that is the answer."""
    saver = three.saver
    repository = saver._engine.history_repository
    select_rows = repository.select_rows

    async def delete_first(*arguments: Any) -> Any:
        repository.select_rows = select_rows  # type: ignore[method-assign]
        await saver.adelete_thread("thread")
        return await select_rows(*arguments)

    repository.select_rows = delete_first  # type: ignore[assignment, method-assign]
    found = await saver.aget_delta_channel_history(config=config(number=3), channels=["x"])
    assert found == {"x": {"writes": []}}
