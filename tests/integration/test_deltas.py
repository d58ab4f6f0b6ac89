"""Values that are stored as edits of earlier ones: they come back equal, and what they rest on is what is stored."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from typing import Any

import psycopg
import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint

from pgcairn import AsyncPostgresSaver, StoredDataError
from pgcairn.codec.compression import Framer
from tests.support.savers import (
    checkpoint,
    checkpoint_id,
    config,
    dangling,
    get,
    listed,
    put,
    saver_on,
    values_of,
    version,
)
from tests.support.server import run_sql
from tests.support.values import aes_serializer

EDIT = 3


@pytest.fixture(params=["psycopg", "asyncpg"])
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# What the drivers cannot make a difference to.
ONE_DRIVER = pytest.mark.parametrize("driver", ["psycopg"], indirect=True)


@pytest.fixture
async def saver(dsn: str, schema: str, driver: str) -> AsyncIterator[AsyncPostgresSaver]:
    async with saver_on(dsn, schema, driver=driver, max_size=3) as opened:
        yield opened


@pytest.fixture
async def other(dsn: str, schema: str, saver: AsyncPostgresSaver) -> AsyncIterator[AsyncPostgresSaver]:
    """Another process's saver, as it were: nothing in memory is shared."""
    async with saver_on(dsn, schema) as opened:
        yield opened


# --- values -----------------------------------------------------------------------------------------


@functools.cache
def text(seed: object, words: int = 15) -> str:
    """Text in which nothing repeats for long, the same for the same seed."""
    return " ".join(f"{word:x}" for word in random.Random(repr(seed)).choices(range(16**5), k=words))


def message(number: int, branch: int = 0) -> dict[str, Any]:
    return {"id": f"{number}.{branch}", "content": text((number, branch))}


def conversation(length: int) -> list[dict[str, Any]]:
    """Messages that are there from the beginning, and one for each step; no step of a test is half of it."""
    return [message(number) for number in range(75 + length)]


async def put_all(
    saver: AsyncPostgresSaver,
    values: Iterable[Any],
    *,
    first: int = 1,
    where: RunnableConfig | None = None,
    channel: str = "c",
) -> RunnableConfig:
    """Put one checkpoint for each value; the number of the checkpoint is that of the version."""
    where = where or config()
    for number, value in enumerate(values, first):
        where = await put(saver, where, checkpoint(number, {channel: value}, {channel: version(number)}))
    return where


async def check_all(
    saver: AsyncPostgresSaver, expected: Mapping[int, Any], *, thread_id: str = "thread", channel: str = "c"
) -> None:
    """Every checkpoint reads back equal, by its id and in a listing."""
    for number, value in expected.items():
        assert await values_of(saver, config(thread_id, "", number)) == {channel: value}, number
    found = {
        each.checkpoint["id"]: each.checkpoint["channel_values"]
        for each in await listed(saver, config(thread_id))
    }
    assert found == {checkpoint_id(number): {channel: value} for number, value in expected.items()}


# --- rows -------------------------------------------------------------------------------------------


def chains(dsn: str, schema: str, channel: str = "c", thread_id: str = "thread") -> dict[str, list[str]]:
    """Version → chain of every stored value; an empty one for a frame that stands alone."""
    rows = run_sql(
        dsn,
        f"SELECT version, chain, get_byte(frame, 0) FROM {schema}.channel_values "
        "WHERE thread_id = %s AND channel = %s ORDER BY version",
        thread_id,
        channel,
    )
    for name, chain, kind in rows:
        if kind != 2:  # not sealed
            assert (chain is not None) == (kind == EDIT), name
        assert chain is None or chain, "no empty chains"
    return {name: chain or [] for name, chain, _ in rows}


def skip_chain(number: int, first: int = 1) -> list[str]:
    """What the version of this number must rest on if ``first`` began the epoch."""
    place, chain = number - first, []
    while place:
        place &= place - 1
        chain.append(version(first + place))
    return chain


def skip_chains(numbers: Sequence[int]) -> dict[str, list[str]]:
    return {version(number): skip_chain(number, numbers[0]) for number in numbers}


async def statements_of(saver: AsyncPostgresSaver, call: Awaitable[Any]) -> int:
    before = saver.stats().statements
    await call
    return saver.stats().statements - before


# --- a value that grows -----------------------------------------------------------------------------


async def test_a_conversation_of_seventy_versions(
    dsn: str, schema: str, saver: AsyncPostgresSaver, other: AsyncPostgresSaver
) -> None:
    expected = {number: conversation(number) for number in range(1, 71)}
    await put_all(saver, expected.values())
    assert chains(dsn, schema) == skip_chains(list(expected))
    assert saver.stats().edits_written == 69
    assert saver.stats().values_written == 70
    [(whole, edits)] = run_sql(
        dsn,
        f"SELECT sum(octet_length(frame)) FILTER (WHERE chain IS NULL), sum(octet_length(frame)) "
        f"FILTER (WHERE chain IS NOT NULL) FROM {schema}.channel_values",
    )
    # 69 edits hold 160 messages of 130 bytes; a version alone would take 4 KB.
    assert edits < 69 * 500
    assert whole < 8000
    await check_all(saver, expected)
    await check_all(other, expected)
    assert dangling(dsn, schema) == []


@ONE_DRIVER
async def test_a_dict_of_files(dsn: str, schema: str, saver: AsyncPostgresSaver) -> None:
    files = {f"{number}.py": text(number, 100) for number in range(30)}
    expected = {}
    for number in range(1, 20):
        name = f"{(number * 7) % 31}.py"
        old = files.get(name, "")
        files = {**files, name: f"{old[:150]}# changed in step {number}\n{old[150:]}"}
        if number % 5 == 0:
            files = {each: files[each] for each in list(files)[1:]}
        expected[number] = files
    await put_all(saver, expected.values())
    assert chains(dsn, schema) == skip_chains(list(expected))
    await check_all(saver, expected)


async def test_a_value_that_does_all_a_value_can_do(
    dsn: str, schema: str, saver: AsyncPostgresSaver, other: AsyncPostgresSaver
) -> None:
    long = conversation(40)
    steps: list[Any] = [
        long,
        long[20:],  # dropped at the beginning
        long[20:25] + long[30:],  # in the middle
        [*long[20:25], message(1000), *long[31:]],  # replaced
        [message(1001)],  # below the inline limit
        [message(1001), *long],
        None,
        long,
        [],
        text("other", 1000),  # of another type
        text("other", 1000) + " and more",
        text("unrelated", 1000),
        text("unrelated", 500),
        text("unrelated", 230),
        text("unrelated", 230).encode(),  # of another type, with the same bytes inside
        {"inside": text("unrelated", 230)},
        conversation(41),
        conversation(42),
    ]
    expected = dict(enumerate(steps, 1))
    where = config()
    for number, value in expected.items():
        where = await put(saver, where, checkpoint(number, {"c": value}, {"c": version(number)}))
        assert await values_of(other, config()) == {"c": value}
    await check_all(saver, expected)
    await check_all(other, expected)
    found = chains(dsn, schema)
    assert [int(name.split(".")[0]) for name in found] == [
        number for number, value in expected.items() if len(repr(value)) > 1000
    ]
    assert found[version(2)] == [version(1)]
    assert found[version(12)] == [], "unrelated"
    assert saver.stats().edits_written == sum(1 for chain in found.values() if chain) >= 8
    assert dangling(dsn, schema) == []


@ONE_DRIVER
async def test_several_channels_at_once(dsn: str, schema: str, saver: AsyncPostgresSaver) -> None:
    where = config()
    expected = {}
    versions: dict[str, str] = {}
    for number in range(1, 25):
        changed = [
            name for name, every in (("a", 1), ("b", 2), ("c", 5)) if number % every == 0 or number == 1
        ]
        versions.update({name: version(number) for name in changed})
        state = {
            "a": conversation(number),
            "b": {"log": conversation(number - number % 2)},
            "c": conversation(number - number % 5),
            "small": number,
        }
        if number == 1:
            state["b"], state["c"] = {"log": conversation(0)}, conversation(0)
        new = {name: versions[name] for name in changed} | {"small": version(number)}
        where = await put(
            saver, where, checkpoint(number, state, {**versions, "small": version(number)}), new_versions=new
        )
        expected[number] = state
    assert {name: len(chains(dsn, schema, name)) for name in "abc"} == {"a": 24, "b": 13, "c": 5}
    for number, state in expected.items():
        assert await values_of(saver, config(number=number)) == state
    assert saver.stats().edits_written == 23 + 12 + 4
    assert saver.stats().items_reencoded == 0
    assert dangling(dsn, schema) == []


@ONE_DRIVER
async def test_namespaces_and_threads_are_apart(dsn: str, schema: str, saver: AsyncPostgresSaver) -> None:
    places = [(thread_id, namespace) for thread_id in ("t", "u") for namespace in ("", "sub:1")]
    for number in range(1, 6):
        for seed, place in enumerate(places):
            value = conversation(number) + [message(seed, 7)] * 10
            await put(saver, config(*place), checkpoint(number, {"c": value}, {"c": version(number)}))
    for seed, place in enumerate(places):
        for number in range(1, 6):
            value = conversation(number) + [message(seed, 7)] * 10
            assert await values_of(saver, config(*place, number)) == {"c": value}
    assert saver.stats().edits_written == 4 * 4
    assert dangling(dsn, schema) == []


async def test_an_encrypted_saver(dsn: str, schema: str, driver: str) -> None:
    expected = {number: conversation(number) for number in range(1, 20)}
    async with saver_on(dsn, schema, driver=driver, serde=aes_serializer()) as saver:
        await put_all(saver, expected.values())
        assert chains(dsn, schema) == skip_chains(list(expected))
    rows = run_sql(dsn, f"SELECT get_byte(frame, 0), type, frame FROM {schema}.channel_values")
    assert {kind for kind, _, _ in rows} == {2}
    assert {type_name for _, type_name, _ in rows} == {"msgpack+aes"}
    secrets = [each["content"][:20].encode() for each in conversation(19)]
    assert not any(secret in bytes(frame) for _, _, frame in rows for secret in secrets)
    async with saver_on(dsn, schema, driver=driver, serde=aes_serializer()) as saver:
        await check_all(saver, expected)
    async with saver_on(dsn, schema, driver=driver) as saver:
        with pytest.raises(StoredDataError, match="encrypted"):
            await saver.aget_tuple(config())


@ONE_DRIVER
async def test_large_values_go_through_worker_threads(dsn: str, schema: str, driver: str) -> None:
    expected = {number: conversation(number) for number in range(1, 25)}
    async with saver_on(dsn, schema, driver=driver, compress_in_thread_min_bytes=0) as saver:
        await put_all(saver, list(expected.values())[:12])
        where = config(number=12)
        # All at once: each takes its place before the one before it is committed.
        await asyncio.gather(
            *(
                put(saver, where, checkpoint(number, {"c": expected[number]}, {"c": version(number)}))
                for number in range(13, 24)
            )
        )
        await put_all(saver, [expected[24]], first=24)
        found = chains(dsn, schema)
        assert all(chain for name, chain in found.items() if name != version(1))
        await check_all(saver, expected)
    assert dangling(dsn, schema) == []


@ONE_DRIVER
async def test_large_values_and_writes_are_decompressed_in_worker_threads(
    dsn: str, schema: str, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "".join(map(str, range(20_000)))
    opened: list[tuple[int, bool]] = []
    decode = Framer._decode_open

    def spy(framer: Framer, frame: bytes, in_thread: bool) -> bytes:
        payload = decode(framer, frame, in_thread)
        opened.append((len(payload), threading.current_thread() is threading.main_thread()))
        return payload

    async with saver_on(dsn, schema, driver=driver, compress_in_thread_min_bytes=64 * 1024) as saver:
        where = await put(saver, config(), checkpoint(1, {"c": text}, {"c": version(1)}))
        where = await put(saver, where, checkpoint(2, {"c": text + "more"}, {"c": version(2)}))
        await saver.aput_writes(where, [("c", text), ("small", 1)], "task")
        assert list(chains(dsn, schema)[version(2)]) == [version(1)]
        monkeypatch.setattr(Framer, "_decode_open", spy)
        found = await get(saver, config())
        assert found.checkpoint["channel_values"] == {"c": text + "more"}
        assert found.pending_writes == [("task", "c", text), ("task", "small", 1)]
        large = [is_main for size, is_main in opened if size >= 64 * 1024]
        assert large == [False, False], "each once, and not on the event loop"
        assert any(is_main for _, is_main in opened), "what is small takes no detour"
        assert [each.checkpoint["channel_values"]["c"] for each in await listed(saver, config())] == [
            text + "more",
            text,
        ]
        run_sql(dsn, f"UPDATE {schema}.writes SET frame = substr(frame, 1, 100) WHERE channel = 'c'")
        with pytest.raises(StoredDataError, match="cannot be read") as caught:
            await saver.aget_tuple(config())
        assert caught.value.channel == "c"
        run_sql(dsn, f"DELETE FROM {schema}.writes")
        run_sql(
            dsn,
            f"UPDATE {schema}.channel_values SET frame = set_byte(frame, 5000, 0) WHERE version = '{version(1)}'",
        )
        with pytest.raises(StoredDataError, match="cannot be read") as caught:
            await saver.aget_tuple(config())
        assert (caught.value.channel, caught.value.version) == ("c", version(2))


@ONE_DRIVER
async def test_without_memory_no_value_has_a_chain(dsn: str, schema: str, driver: str) -> None:
    expected = {number: conversation(number) for number in range(1, 8)}
    async with saver_on(dsn, schema, driver=driver, base_cache_bytes=0) as saver:
        await put_all(saver, expected.values())
        await check_all(saver, expected)
        assert await statements_of(saver, put_all(saver, [conversation(8)], first=8)) == 1
        stats = saver.stats()
        assert (stats.edits_written, stats.base_cache_hits, stats.base_cache_misses) == (0, 0, 0)
        assert (stats.base_cache_bytes, stats.base_cache_entries) == (0, 0)
    assert set(map(len, chains(dsn, schema).values())) == {0}


async def test_a_memory_that_is_too_small_costs_space_and_nothing_else(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema, base_cache_bytes=100_000) as saver:
        for number in range(1, 6):
            for thread in range(20):
                await put(
                    saver,
                    config(f"t{thread}"),
                    checkpoint(number, {"c": conversation(number)}, {"c": version(number)}),
                )
        stats = saver.stats()
        assert stats.base_cache_bytes <= 100_000
        assert stats.base_cache_misses > 80
        for thread in range(20):
            await check_all(
                saver, {number: conversation(number) for number in range(1, 6)}, thread_id=f"t{thread}"
            )


# --- what a process knows ---------------------------------------------------------------------------


async def test_a_put_is_one_statement_whatever_is_known(
    dsn: str, schema: str, saver: AsyncPostgresSaver, other: AsyncPostgresSaver
) -> None:
    assert await other.aget_tuple(config("nobody")) is None  # its first call looks at the schema, too
    await put_all(saver, [conversation(1)])
    for number in range(2, 8):
        assert await statements_of(saver, put_all(saver, [conversation(number)], first=number)) == 1
    # Never a read before a write: what is not known is stored whole, and what follows rests on it.
    for number in range(8, 11):
        assert await statements_of(other, put_all(other, [conversation(number)], first=number)) == 1
    found = chains(dsn, schema)
    assert [found[version(number)] for number in (8, 9, 10)] == [
        [],
        [version(8)],
        skip_chain(10, 8),
    ]
    assert (other.stats().base_cache_misses, other.stats().base_cache_hits) == (1, 2)
    assert saver.stats().base_cache_misses == 1


@ONE_DRIVER
async def test_a_read_tells_what_the_next_value_rests_on(
    dsn: str, schema: str, saver: AsyncPostgresSaver, other: AsyncPostgresSaver
) -> None:
    expected = {number: conversation(number) for number in range(1, 21)}
    await put_all(saver, list(expected.values())[:11])
    await get(other, config())
    await put_all(other, list(expected.values())[11:], first=12)
    assert chains(dsn, schema) == skip_chains(list(expected))
    assert other.stats().base_cache_misses == 0
    await check_all(saver, expected)


@ONE_DRIVER
async def test_a_listing_tells_nothing(
    dsn: str, schema: str, saver: AsyncPostgresSaver, other: AsyncPostgresSaver
) -> None:
    await put_all(saver, [conversation(number) for number in range(1, 4)])
    await listed(other, config())
    assert other.stats().base_cache_entries == 0
    await put_all(other, [conversation(4)], first=4)
    assert chains(dsn, schema)[version(4)] == []


@ONE_DRIVER
async def test_forks_rest_on_what_they_forked_from(
    dsn: str, schema: str, saver: AsyncPostgresSaver, other: AsyncPostgresSaver
) -> None:
    expected = {number: conversation(number) for number in range(1, 13)}
    await put_all(saver, expected.values())
    for number, origin in ((100, 5), (200, 1), (300, 12), (400, 8)):
        state = list(expected[origin])
        where: RunnableConfig = (await get(other, config(number=origin))).config
        for step in range(1, 6):
            state = [*state, message(number + step, 1)]
            now = number + step
            expected[now] = state
            where = await put(other, where, checkpoint(now, {"c": state}, {"c": version(origin + step, now)}))
    found = chains(dsn, schema)
    assert found[version(6, 101)] == skip_chain(6)
    assert found[version(2, 201)] == skip_chain(2)
    assert [name for name, chain in found.items() if not chain] == [version(1)]
    assert other.stats().items_reencoded == 0
    await check_all(saver, expected)
    assert dangling(dsn, schema) == []


@ONE_DRIVER
async def test_two_savers_take_turns_on_a_thread(
    dsn: str, schema: str, saver: AsyncPostgresSaver, other: AsyncPostgresSaver
) -> None:
    expected = {number: conversation(number) for number in range(1, 31)}
    where = config()
    for number, value in expected.items():
        turn = (saver, other)[number // 3 % 2]
        if number % 4 == 0:
            assert await values_of(turn, config()) == {"c": expected[number - 1]}
        where = await put(turn, where, checkpoint(number, {"c": value}, {"c": version(number)}))
    await check_all(saver, expected)
    await check_all(other, expected)
    found = chains(dsn, schema)
    assert sum(1 for chain in found.values() if not chain) == 2, "each began once"
    assert saver.stats().items_reencoded == other.stats().items_reencoded == 0
    assert dangling(dsn, schema) == []


@ONE_DRIVER
async def test_clones_share_what_is_known(dsn: str, schema: str, saver: AsyncPostgresSaver) -> None:
    clone = saver.with_allowlist([("tests.support.values", "Color")])
    expected = {number: conversation(number) for number in range(1, 9)}
    for number, value in expected.items():
        await put_all((saver, clone)[number % 2], [value], first=number)
    assert chains(dsn, schema) == skip_chains(list(expected))
    await check_all(clone, expected)


@ONE_DRIVER
async def test_an_unchanged_value_that_is_put_again_stays_as_it_is(
    dsn: str, schema: str, saver: AsyncPostgresSaver, other: AsyncPostgresSaver
) -> None:
    await put_all(saver, [conversation(number) for number in range(1, 5)])
    before = chains(dsn, schema)
    await get(other, config())
    # The other one knows the value from reading, but not that it need not be brought along.
    for number in (5, 6):
        await put(
            other,
            config(number=4),
            checkpoint(number, {"c": conversation(4)}, {"c": version(4)}),
            new_versions={},
        )
    assert chains(dsn, schema) == before
    await put_all(other, [conversation(7)], first=7)
    for number, length in ((4, 4), (5, 4), (6, 4), (7, 7)):
        assert await values_of(saver, config(number=number)) == {"c": conversation(length)}


# --- versions that are not to be trusted ------------------------------------------------------------


@ONE_DRIVER
async def test_counters_are_no_bases(dsn: str, schema: str, saver: AsyncPostgresSaver) -> None:
    for number in range(1, 6):
        value = conversation(number)
        await put(
            saver, config(), checkpoint(number, {"c": value, "d": value}, {"c": number, "d": str(number)})
        )
        assert await values_of(saver, config()) == {"c": value, "d": value}
    assert set(map(len, chains(dsn, schema, "c").values())) == {0}
    assert set(map(len, chains(dsn, schema, "d").values())) == {0}
    assert saver.stats().base_cache_entries == 0
    # Nor are they the base of one that could be one.
    await put(saver, config(), checkpoint(6, {"c": conversation(6)}, {"c": version(6)}))
    assert chains(dsn, schema, "c")[version(6)] == []


@ONE_DRIVER
async def test_the_first_value_of_a_version_stays_and_the_second_is_nobodys_base(
    dsn: str, schema: str, saver: AsyncPostgresSaver, other: AsyncPostgresSaver
) -> None:
    first, second = conversation(1), [*conversation(0), message(50, 1)]
    await put(other, config(), checkpoint(1, {"c": first}, {"c": version(1)}))
    await put(saver, config(), checkpoint(2, {"c": second}, {"c": version(1)}))
    await put(saver, config(), checkpoint(3, {"c": [*second, message(51)]}, {"c": version(3)}))
    assert chains(dsn, schema) == {version(1): [], version(3): []}
    assert await values_of(saver, config(number=1)) == {"c": first}
    assert await values_of(saver, config(number=2)) == {"c": first}, "a version has one value"
    assert await values_of(saver, config(number=3)) == {"c": [*second, message(51)]}


@ONE_DRIVER
async def test_two_values_of_one_version_at_once(dsn: str, schema: str, saver: AsyncPostgresSaver) -> None:
    # Two forks of one checkpoint whose versions have the same random part; both leave in one batch.
    first, second = conversation(1), [*conversation(0), message(50, 1)]
    await asyncio.gather(
        put(saver, config(), checkpoint(1, {"c": first}, {"c": version(1)})),
        put(saver, config(), checkpoint(2, {"c": second}, {"c": version(1)})),
    )
    await put(saver, config(), checkpoint(3, {"c": [*second, message(51)]}, {"c": version(3)}))
    assert await values_of(saver, config(number=1)) == {"c": first}
    assert await values_of(saver, config(number=2)) == {"c": first}, "a version has one value"
    assert await values_of(saver, config(number=3)) == {"c": [*second, message(51)]}


@ONE_DRIVER
async def test_the_same_checkpoint_twice_with_other_values(
    dsn: str, schema: str, saver: AsyncPostgresSaver
) -> None:
    await put_all(saver, [conversation(1), conversation(2)])
    again = [*conversation(1), message(60, 1)]
    await put(saver, config(number=1), checkpoint(2, {"c": again}, {"c": version(2, 5)}))
    assert await values_of(saver, config()) == {"c": again}
    await put(saver, config(number=1), checkpoint(2, {"c": conversation(9)}, {"c": version(2, 5)}))
    assert await values_of(saver, config()) == {"c": again}, "a version has one value"
    await put_all(saver, [conversation(3)], first=3)
    await check_all(saver, {1: conversation(1), 2: again, 3: conversation(3)})
    assert dangling(dsn, schema) == []


ODD_VERSIONS = [
    '1.0"',
    "1.0\\",
    '1.0\\"',
    "1.0,2.0",
    "1.0}{",
    "{1.0}",
    "NULL.",
    ".",
    " 1.0 ",
    "1.0'",
    "1.0\n\t",
    "1.0 ü 🪨 \u2028",
    "1.0$1",
    "1.0%s",
    '"."',
]


async def test_versions_and_channels_of_any_form(
    dsn: str, schema: str, driver: str, saver: AsyncPostgresSaver, other: AsyncPostgresSaver
) -> None:
    channels = ["c", 'a "quoted" \\ one', "", "ü🪨\n", "NULL"]
    where = config()
    for number, name in enumerate(ODD_VERSIONS, 1):
        state = {channel: conversation(number) for channel in channels}
        where = await put(saver, where, checkpoint(number, state, dict.fromkeys(channels, name)))
    for number in range(1, len(ODD_VERSIONS) + 1):
        state = {channel: conversation(number) for channel in channels}
        assert await values_of(other, config(number=number)) == state
    for channel in channels:
        expected = {
            name: [ODD_VERSIONS[int(each.split(".")[0]) - 1] for each in skip_chain(number)]
            for number, name in enumerate(ODD_VERSIONS, 1)
        }
        assert chains(dsn, schema, channel) == expected
    # Alone, too: that is another statement.
    for number, name in enumerate(ODD_VERSIONS, 1):
        await put(saver, config("alone"), checkpoint(number, {"c": conversation(number)}, {"c": name}))
        assert await values_of(other, config("alone")) == {"c": conversation(number)}
    assert chains(dsn, schema, "c", "alone") == chains(dsn, schema)
    assert dangling(dsn, schema) == []


# --- what others do ---------------------------------------------------------------------------------


async def test_a_thread_deleted_by_another_process_is_begun_anew(
    dsn: str, schema: str, saver: AsyncPostgresSaver, other: AsyncPostgresSaver
) -> None:
    await put_all(saver, [conversation(number) for number in range(1, 6)])
    await other.adelete_thread("thread")
    assert await statements_of(saver, put_all(saver, [conversation(6)], first=6)) == 2
    assert saver.stats().items_reencoded == 1
    await put_all(saver, [conversation(7)], first=7)
    assert saver.stats().items_reencoded == 1
    assert chains(dsn, schema) == {version(6): [], version(7): [version(6)]}
    await check_all(other, {6: conversation(6), 7: conversation(7)})


@ONE_DRIVER
async def test_a_thread_deleted_by_this_process_is_begun_anew_at_once(
    dsn: str, schema: str, saver: AsyncPostgresSaver
) -> None:
    where = await put_all(saver, [conversation(number) for number in range(1, 6)])
    await asyncio.gather(
        saver.adelete_thread("thread"),
        put_all(saver, [conversation(6), conversation(7)], first=6, where=where),
    )
    assert saver.stats().items_reencoded == 0
    assert chains(dsn, schema) == {version(6): [], version(7): [version(6)]}
    await check_all(saver, {6: conversation(6), 7: conversation(7)})


@ONE_DRIVER
@pytest.mark.parametrize("channels", ["c", "cd"], ids=["single", "arrays"])
async def test_a_base_that_was_stored_anew_has_another_chain(
    dsn: str, schema: str, saver: AsyncPostgresSaver, other: AsyncPostgresSaver, channels: str
) -> None:
    def step(number: int) -> Checkpoint:
        return checkpoint(
            number,
            dict.fromkeys(channels, conversation(number)),
            dict.fromkeys(channels, version(number)),
        )

    for number in range(1, 4):
        await put(saver, config(), step(number))
    # The other one has the state in hand; it deletes the thread and puts the state again, whole.
    await other.adelete_thread("thread")
    await put(other, config(), step(3))
    # The fourth of this one would rest on the third, and on what the third rested on.
    await put(saver, config(), step(4))
    await put(saver, config(), step(5))
    assert dangling(dsn, schema) == []
    for number in (3, 4, 5):
        assert await values_of(other, config(number=number)) == step(number)["channel_values"]
    assert saver.stats().items_reencoded == 1


@ONE_DRIVER
async def test_a_base_that_was_stored_anew_with_a_longer_chain(
    dsn: str, schema: str, saver: AsyncPostgresSaver, other: AsyncPostgresSaver
) -> None:
    await put_all(saver, [conversation(1)])
    await get(other, config())
    await put_all(saver, [conversation(2)], first=2)
    await saver.adelete_thread("thread")
    await put_all(saver, [conversation(0)], first=100)
    await put_all(saver, [conversation(1)])  # the same version as before, on another one now
    assert chains(dsn, schema)[version(1)] == [version(100)]
    await put_all(other, [conversation(2), conversation(3)], first=2)
    assert dangling(dsn, schema) == []
    await check_all(saver, {100: conversation(0), 1: conversation(1), 2: conversation(2), 3: conversation(3)})


async def test_a_base_that_is_gone_is_missed_among_many(
    dsn: str, schema: str, saver: AsyncPostgresSaver, other: AsyncPostgresSaver
) -> None:
    threads = [f"t{number}" for number in range(12)]
    for number in range(1, 4):
        await asyncio.gather(
            *(
                put(
                    saver,
                    config(name),
                    checkpoint(number, {"c": conversation(number)}, {"c": version(number)}),
                )
                for name in threads
            )
        )
    for name in threads[::3]:
        await other.adelete_thread(name)
    await asyncio.gather(
        *(
            put(saver, config(name), checkpoint(4, {"c": conversation(4)}, {"c": version(4)}))
            for name in threads
        )
    )
    assert saver.stats().items_reencoded == 4
    for position, name in enumerate(threads):
        numbers = [4] if position % 3 == 0 else [1, 2, 3, 4]
        await check_all(other, {number: conversation(number) for number in numbers}, thread_id=name)
        chain = chains(dsn, schema, "c", name)[version(4)]
        assert chain == ([] if position % 3 == 0 else skip_chain(4))
    assert dangling(dsn, schema) == []


@ONE_DRIVER
async def test_a_value_encoded_again_is_the_one_that_was_put(
    dsn: str, schema: str, saver: AsyncPostgresSaver, other: AsyncPostgresSaver
) -> None:
    await put_all(saver, [conversation(1)])
    await other.adelete_thread("thread")
    value = conversation(2)
    putting = asyncio.ensure_future(put(saver, config(), checkpoint(2, {"c": value}, {"c": version(2)})))
    await asyncio.ensure_future(
        asyncio.sleep(0)
    )  # scheduled last, so it ends after the put has taken its place
    value.append(message(99))  # a node of the next step changes its state in place
    await putting
    assert saver.stats().items_reencoded == 1
    assert await values_of(saver, config()) == {"c": conversation(2)}


@ONE_DRIVER
async def test_a_cancelled_put_misleads_nobody(dsn: str, schema: str, saver: AsyncPostgresSaver) -> None:
    await put_all(saver, [conversation(1), conversation(2)])
    given_up = [*conversation(2), message(70, 1)]
    async with await psycopg.AsyncConnection.connect(dsn) as blocking:
        await blocking.execute(f"LOCK TABLE {schema}.checkpoints IN EXCLUSIVE MODE".encode())
        putting = asyncio.ensure_future(
            put(saver, config(number=2), checkpoint(3, {"c": given_up}, {"c": version(3)}))
        )
        await asyncio.ensure_future(asyncio.sleep(0))
        putting.cancel()
        await asyncio.wait([putting])
        assert putting.cancelled()
        # The caller tries again, and has something else to say under the same version.
        again = asyncio.ensure_future(
            put(saver, config(number=2), checkpoint(4, {"c": conversation(3)}, {"c": version(3)}))
        )
        await asyncio.ensure_future(asyncio.sleep(0))
        await blocking.rollback()
        await again
    stored = (await values_of(saver, config(number=4)))["c"]
    assert stored in (given_up, conversation(3))
    await put(saver, config(number=4), checkpoint(5, {"c": [*stored, message(71)]}, {"c": version(5)}))
    await put(saver, config(number=2), checkpoint(6, {"c": conversation(4)}, {"c": version(6)}))
    assert await values_of(saver, config(number=5)) == {"c": [*stored, message(71)]}
    assert await values_of(saver, config(number=6)) == {"c": conversation(4)}
    assert dangling(dsn, schema) == []


# --- damage -----------------------------------------------------------------------------------------


def _delete(number: int) -> str:
    return f"DELETE FROM {{schema}}.channel_values WHERE thread_id = %s AND version = '{version(number)}'"


def _change(number: int, change: str) -> str:
    where = f"thread_id = %s AND version = '{version(number)}'"
    return f"UPDATE {{schema}}.channel_values SET {change} WHERE {where}"


_LAST_BYTE = "frame = set_byte(frame, octet_length(frame) - 1, get_byte(frame, octet_length(frame) - 1) # 1)"
_ANOTHER = (
    f"frame = (SELECT o.frame FROM {{schema}}.channel_values AS o WHERE o.version = '{version(6)}' LIMIT 1)"
)

# The eighth rests on the seventh, the fifth and the first.
DAMAGE = {
    "its base is missing": (_delete(7), f"Version {version(7)} .* missing"),
    "the middle is missing": (_delete(5), f"Version {version(5)} .* missing"),
    "the first is missing": (_delete(1), f"Version {version(1)} .* missing"),
    "it is missing": (_delete(8), "missing"),
    "its base is corrupt": (_change(7, _LAST_BYTE), "cannot be read"),
    "the middle is corrupt": (_change(5, _LAST_BYTE), "cannot be read"),
    "the first is corrupt": (_change(1, _LAST_BYTE), "cannot be read"),
    "it is corrupt": (_change(8, _LAST_BYTE), "cannot be read"),
    "its base is another one": (
        _change(7, _ANOTHER),
        "cannot be read",
    ),
    "its base is empty": (_change(7, "frame = ''"), "cannot be read"),
    "its chain is lost": (_change(8, "chain = NULL"), "has no chain"),
    "its chain is empty": (_change(8, "chain = '{{}}'"), "has no chain"),
    "its chain is too short": (_change(8, "chain = chain[1:2]"), "cannot be read"),
    "its chain is in disorder": (
        _change(8, "chain = ARRAY[chain[2], chain[1], chain[3]]"),
        "cannot be read",
    ),
    "its chain has a null": (_change(8, "chain = ARRAY[chain[1], NULL, chain[3]]"), "missing"),
    "its chain goes in a circle": (_change(8, "chain = ARRAY[version, version, chain[3]]"), "cannot be read"),
}


@ONE_DRIVER
async def test_damage_is_an_error_that_names_the_place(
    dsn: str, schema: str, saver: AsyncPostgresSaver, other: AsyncPostgresSaver
) -> None:
    for name, (damage, pattern) in DAMAGE.items():
        await put_all(saver, [conversation(number) for number in range(1, 9)], where=config(name))
        assert chains(dsn, schema, thread_id=name)[version(8)] == [version(7), version(5), version(1)]
        run_sql(dsn, damage.format(schema=schema), name)
        for read in (
            other.aget_tuple(config(name)),
            other.aget_tuple(config(name, "", 8)),
            listed(other, config(name)),
        ):
            with pytest.raises(StoredDataError, match=pattern) as caught:
                await read
            error = caught.value
            assert (error.thread_id, error.checkpoint_ns, error.checkpoint_id) == (name, "", checkpoint_id(8))
            assert (error.channel, error.version) == ("c", version(8)), name
        assert other.stats().base_cache_entries == 0, "nothing was learned from it"
        if "first" not in name:
            assert await values_of(saver, config(name, "", 3)) == {"c": conversation(3)}
