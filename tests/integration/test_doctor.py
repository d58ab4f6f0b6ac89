"""The doctor: silent on what is whole, exact about each kind of damage, and careful with what it sweeps."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote

import psycopg
import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from pgcairn import AsyncPostgresSaver, ClosedError, InvalidInput, PostgresSaver
from pgcairn.cli.main import main
from pgcairn.operations.doctor import Kind, Report, Severity, Totals, examine
from pgcairn.storage.doctor_repository import DoctorRepository
from pgcairn.storage.statements import Statements
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
    values_of,
    version,
)
from tests.support.server import arun_sql, run_sql
from tests.support.values import Opaque, aes_serializer

KEY = "sixteen bytes ab"
Rows = dict[str, list[tuple[Any, ...]]]
TABLES = ("checkpoints", "channel_values", "writes")


@pytest.fixture
async def saver(dsn: str, schema: str) -> AsyncIterator[AsyncPostgresSaver]:
    async with saver_on(dsn, schema, page_rows=7) as opened:
        yield opened


def messages(count: int, *, fork: str = "") -> list[str]:
    """A growing value: the next one is an edit of an earlier one."""
    # A fork's have nothing in common with the others, so that they are stored whole.
    filler = [
        uuid.uuid5(uuid.NAMESPACE_OID, f"{number}{fork}").hex if fork else "lorem " * 5
        for number in range(count)
    ]
    return [f"message {n}{fork}: {uuid.UUID(int=n)} {filler[n] * 4}" for n in range(count)]


async def fill(saver: BaseCheckpointSaver[Any], thread_id: str = "chat", turns: int = 12) -> None:
    """A conversation with edits, a fork, a subgraph, a subgraph call, pending writes, an old format."""
    last: int | None = None
    for number in range(1, turns + 1):
        values = {"messages": messages(20 + number), "constant": LARGE_TEXT, "n": number, "small": [number]}
        versions = {"messages": version(number), "n": version(number), "small": version(number)}
        new = None if number == 1 else versions
        stored = await put(
            saver, config(thread_id, "", last), checkpoint(number, values, versions), None, new
        )
        await saver.aput_writes(stored, [("messages", messages(1)), ("n", number)], "task")
        last = number
    forked = {"messages": messages(15, fork=" forked"), "constant": LARGE_TEXT}
    versions = {"messages": version(turns // 2 + 1, 7)}
    await put(
        saver, config(thread_id, "", turns // 2), checkpoint(turns + 1, forked, versions), None, versions
    )
    parents = metadata(source="loop", step=1, parents={"": checkpoint_id(1)})
    await put(saver, config(thread_id, "stateful"), checkpoint(1, {"x": LARGE_TEXT}))
    await put(saver, config(thread_id, "call:1"), checkpoint(1, {"x": LARGE_TEXT}), parents)
    await put(saver, config(thread_id, "old"), checkpoint(1, v=3))
    await saver.aput_writes(config(thread_id, "old", 1), [("__pregel_tasks", {"a": 1})], "task")
    await put(saver, config(thread_id, "old", 1), checkpoint(2, v=3))


def rows_of(dsn: str, schema: str) -> Rows:
    """Everything that is stored."""
    return {table: run_sql(dsn, f"SELECT * FROM {schema}.{table} ORDER BY 1, 2, 3, 4") for table in TABLES}


def places(report: Report, *, is_swept: bool = False) -> list[dict[str, Any]]:
    """What was found, without the texts."""
    return [
        {
            name: value
            for name, value in dataclasses.asdict(finding).items()
            if value is not None and name not in ("detail", "is_swept")
        }
        for finding in report.findings
        if finding.is_swept == is_swept
    ]


# --- what is whole ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_what_was_written_by_a_saver_is_whole(dsn: str, schema: str, driver: str) -> None:
    async with saver_on(dsn, schema, driver=driver, page_rows=5) as saver:
        for thread_id in ("a", "b", "ü"):
            await fill(saver, thread_id)
        before = rows_of(dsn, schema)
        report = await examine(saver, deserialize=True)
        assert report.is_clean, report.findings
        assert report.counts == {}
        assert report.findings == ()
        bytes_stored = sum(
            run_sql(dsn, f"SELECT sum(octet_length({column})) FROM {schema}.{table}")[0][0]
            for table, column in (("checkpoints", "body"), ("channel_values", "frame"), ("writes", "frame"))
        )
        edits, deepest = run_sql(
            dsn,
            f"SELECT count(*), max(cardinality(chain)) FROM {schema}.channel_values WHERE chain IS NOT NULL",
        )[0]
        assert edits > 20
        assert deepest > 1
        assert report.totals == Totals(
            threads=3,
            checkpoints=len(before["checkpoints"]),
            values=len(before["channel_values"]),
            edits=edits,
            deepest_chain=deepest,
            writes=len(before["writes"]),
            stored_bytes=bytes_stored,
        )
        assert (await examine(saver, repair=True, grace_seconds=0)).is_clean
        assert rows_of(dsn, schema) == before


async def test_an_empty_database_is_whole(saver: AsyncPostgresSaver) -> None:
    assert await examine(saver) == Report(
        totals=Totals(), counts={}, swept={}, swept_bytes=0, findings=(), unswept_threads=0
    )


async def test_only_the_threads_that_were_asked_for(saver: AsyncPostgresSaver, dsn: str, schema: str) -> None:
    for thread_id in ("a", "b"):
        await put(saver, config(thread_id), checkpoint(1, {"x": LARGE_TEXT}))
    run_sql(dsn, f"UPDATE {schema}.channel_values SET frame = 'x'")
    report = await examine(saver, ["b", "b", "no such"])
    assert report.totals.threads == report.totals.checkpoints == 1
    assert [(each.kind, each.thread_id) for each in report.findings] == [
        (Kind.CORRUPT_VALUE, "b"),
        (Kind.EMPTY_THREAD, "no such"),
    ]
    assert (await examine(saver)).counts == {Kind.CORRUPT_VALUE: 2}


async def test_many_threads_are_found_also_those_with_writes_or_values_only(
    saver: AsyncPostgresSaver, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgcairn.operations.doctor._THREAD_ROWS", 3)
    for number in range(9):
        await put(saver, config(f"t{number}"), checkpoint(1, {"x": LARGE_TEXT}))
        await saver.aput_writes(config(f"t{number}", number=1), [("x", 1)], "task")
    run_sql(dsn, f"DELETE FROM {schema}.checkpoints WHERE thread_id IN ('t0', 't4', 't8')")
    run_sql(dsn, f"DELETE FROM {schema}.channel_values WHERE thread_id = 't4'")
    run_sql(dsn, f"DELETE FROM {schema}.writes WHERE thread_id = 't8'")
    report = await examine(saver)
    assert report.totals.threads == 9
    assert [(each.kind, each.thread_id) for each in report.findings] == [
        (Kind.ORPHANED_VALUE, "t0"),
        (Kind.ORPHANED_WRITE, "t0"),
        (Kind.ORPHANED_WRITE, "t4"),
        (Kind.ORPHANED_VALUE, "t8"),
    ]


# --- each kind of damage ----------------------------------------------------------------------------------

HERE = "WHERE thread_id = 'chat' AND checkpoint_ns = ''"
AT = {"thread_id": "chat", "checkpoint_ns": ""}
FLIPPED = "set_byte({0}, octet_length({0}) - 1, get_byte({0}, octet_length({0}) - 1) # 1)"
FRAME, BODY = FLIPPED.format("frame"), FLIPPED.format("body")


def edits_on(number: int) -> list[int]:
    """The versions of ``messages`` up to 12, counted from 1, that rest on this one."""
    found = []
    for each in range(1, 13):
        index = each - 1
        while index:
            index &= index - 1
            if index == number - 1:
                found.append(each)
    return found


def message_version(kind: Kind, number: int) -> dict[str, Any]:
    """A finding about a version of ``messages``."""
    return {"kind": kind, **AT, "channel": "messages", "version": version(number)}


DAMAGE: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "a flipped bit in a body": (
        f"UPDATE $.checkpoints SET body = {BODY} {HERE} AND checkpoint_id = '{checkpoint_id(3)}'",
        [{"kind": Kind.CORRUPT_BODY, **AT, "checkpoint_id": checkpoint_id(3)}],
    ),
    "an empty body": (
        f"UPDATE $.checkpoints SET body = '' {HERE} AND checkpoint_id = '{checkpoint_id(3)}'",
        [{"kind": Kind.CORRUPT_BODY, **AT, "checkpoint_id": checkpoint_id(3)}],
    ),
    "the body of another checkpoint": (
        f"UPDATE $.checkpoints SET body = (SELECT body FROM $.checkpoints {HERE} AND checkpoint_id = "
        f"'{checkpoint_id(4)}') {HERE} AND checkpoint_id = '{checkpoint_id(3)}'",
        [{"kind": Kind.FOREIGN_BODY, **AT, "checkpoint_id": checkpoint_id(3)}],
    ),
    "references that are no object": (
        f"UPDATE $.checkpoints SET refs = '[1]' {HERE} AND checkpoint_id = '{checkpoint_id(12)}'",
        [{"kind": Kind.MALFORMED_REFERENCES, **AT, "checkpoint_id": checkpoint_id(12)}],
    ),
    "a value that is gone": (
        f"DELETE FROM $.channel_values {HERE} AND channel = 'messages' AND version = '{version(12)}'",
        [
            {
                "kind": Kind.MISSING_VALUE,
                **AT,
                "checkpoint_id": checkpoint_id(12),
                "channel": "messages",
                "version": version(12),
            }
        ],
    ),
    "a reference to a version that never was": (
        f"UPDATE $.checkpoints SET refs = refs || '{{\"ghost\": \"7\"}}' {HERE} AND checkpoint_id = '{checkpoint_id(2)}'",
        [
            {
                "kind": Kind.MISSING_VALUE,
                **AT,
                "checkpoint_id": checkpoint_id(2),
                "channel": "ghost",
                "version": "7",
            }
        ],
    ),
    "a base that is gone": (
        f"DELETE FROM $.channel_values {HERE} AND channel = 'messages' AND version = '{version(9)}'",
        [
            {
                "kind": Kind.MISSING_VALUE,
                **AT,
                "checkpoint_id": checkpoint_id(9),
                "channel": "messages",
                "version": version(9),
            },
            *(message_version(Kind.MISSING_BASE, each) for each in edits_on(9)),
        ],
    ),
    "a flipped bit in a value that stands alone": (
        f"UPDATE $.channel_values SET frame = {FRAME} {HERE} AND channel = 'constant'",
        [{"kind": Kind.CORRUPT_VALUE, **AT, "channel": "constant", "version": version(1)}],
    ),
    "a flipped bit in an edit": (
        f"UPDATE $.channel_values SET frame = {FRAME} {HERE} AND version = '{version(12)}'",
        [message_version(Kind.CORRUPT_VALUE, 12)],
    ),
    "a base that was replaced by another whole value": (
        f"UPDATE $.channel_values SET frame = (SELECT frame FROM $.channel_values {HERE} AND channel = 'constant')"
        f" {HERE} AND channel = 'messages' AND version = '{version(1)}'",
        [message_version(Kind.CORRUPT_VALUE, each) for each in edits_on(1)],
    ),
    "a chain with a link left out": (
        f"UPDATE $.channel_values SET chain = chain[1:1] {HERE} AND version = '{version(12)}'",
        [message_version(Kind.WRONG_CHAIN, 12)],
    ),
    "a chain that is lost": (
        f"UPDATE $.channel_values SET chain = NULL {HERE} AND version = '{version(12)}'",
        [message_version(Kind.CORRUPT_VALUE, 12)],
    ),
    "a flipped bit in a write": (
        f"UPDATE $.writes SET frame = {FRAME} {HERE} AND checkpoint_id = '{checkpoint_id(6)}' AND idx = 1",
        [
            {
                "kind": Kind.CORRUPT_WRITE,
                **AT,
                "checkpoint_id": checkpoint_id(6),
                "task_id": "task",
                "idx": 1,
                "channel": "n",
            }
        ],
    ),
    "a checkpoint that is gone": (
        f"DELETE FROM $.checkpoints {HERE} AND checkpoint_id = '{checkpoint_id(12)}'",
        [
            message_version(Kind.ORPHANED_VALUE, 12),
            {"kind": Kind.ORPHANED_WRITE, **AT, "checkpoint_id": checkpoint_id(12)},
        ],
    ),
    "a parent that is gone": (
        f"UPDATE $.checkpoints SET parent_checkpoint_id = 'gone' {HERE} AND checkpoint_id = '{checkpoint_id(4)}'",
        [{"kind": Kind.DANGLING_PARENT, **AT, "checkpoint_id": checkpoint_id(4)}],
    ),
    "a parent that is hidden, and linked as if it were not": (
        f"UPDATE $.checkpoints SET hidden = true {HERE} AND checkpoint_id = '{checkpoint_id(11)}'",
        [
            {"kind": Kind.DANGLING_PARENT, **AT, "checkpoint_id": checkpoint_id(12)},
            {"kind": Kind.UNNEEDED_HIDDEN, **AT, "checkpoint_id": checkpoint_id(11)},
        ],
    ),
    "a parent that is linked as hidden, and is not": (
        "UPDATE $.checkpoints SET parent_checkpoint_id = NULL, hidden_parent_id = parent_checkpoint_id"
        f" {HERE} AND checkpoint_id = '{checkpoint_id(11)}'",
        [{"kind": Kind.DANGLING_PARENT, **AT, "checkpoint_id": checkpoint_id(11)}],
    ),
    "a hidden checkpoint that nothing descends from": (
        f"UPDATE $.checkpoints SET hidden = true {HERE} AND checkpoint_id = '{checkpoint_id(12)}'",
        [{"kind": Kind.UNNEEDED_HIDDEN, **AT, "checkpoint_id": checkpoint_id(12)}],
    ),
    "a subgraph call whose root is hidden": (
        f"UPDATE $.checkpoints SET hidden = true {HERE} AND checkpoint_id = '{checkpoint_id(1)}'",
        [
            {"kind": Kind.DANGLING_PARENT, **AT, "checkpoint_id": checkpoint_id(2)},
            {"kind": Kind.UNNEEDED_HIDDEN, **AT, "checkpoint_id": checkpoint_id(1)},
            {
                "kind": Kind.LOST_CALL,
                "thread_id": "chat",
                "checkpoint_ns": "call:1",
                "checkpoint_id": checkpoint_id(1),
            },
        ],
    ),
    "a subgraph call without its root": (
        "UPDATE $.checkpoints SET metadata = jsonb_set(metadata, '{parents,\"\"}', '\"gone\"')"
        " WHERE thread_id = 'chat' AND checkpoint_ns = 'call:1'",
        [
            {
                "kind": Kind.LOST_CALL,
                "thread_id": "chat",
                "checkpoint_ns": "call:1",
                "checkpoint_id": checkpoint_id(1),
            }
        ],
    ),
}


def in_order(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sorted by kind and place."""
    return sorted(found, key=lambda place: repr(sorted((name, str(value)) for name, value in place.items())))


@pytest.mark.parametrize("name", DAMAGE)
async def test_damage_is_named_exactly(saver: AsyncPostgresSaver, dsn: str, schema: str, name: str) -> None:
    damage, expected = DAMAGE[name]
    await fill(saver)
    await fill(saver, "other")
    run_sql(dsn, damage.replace("$.", f"{schema}."))
    before = rows_of(dsn, schema)
    report = await examine(saver)
    assert in_order(places(report)) == in_order(expected)
    counted = [place["kind"] for place in expected]
    assert report.counts == {
        kind: counted.count(kind) * (2 if kind is Kind.ORPHANED_WRITE else 1)
        for kind in Kind
        if kind in counted
    }
    assert report.is_clean == all(kind.severity is Severity.NOTE for kind in counted)
    # What is damaged is what a reader meets, and the other way round.
    reads_fail = False
    for thread_id in ("chat", "other"):
        try:
            await listed(saver, config(thread_id, None))
        except Exception:
            reads_fail = True
    assert reads_fail == any(kind.severity is Severity.DAMAGE for kind in counted)
    assert rows_of(dsn, schema) == before


async def test_a_link_to_a_hidden_parent_is_whole(saver: AsyncPostgresSaver, dsn: str, schema: str) -> None:
    await fill(saver)
    run_sql(
        dsn,
        f"UPDATE {schema}.checkpoints SET hidden = true {HERE} AND checkpoint_id IN"
        f" ('{checkpoint_id(10)}', '{checkpoint_id(11)}')",
    )
    run_sql(
        dsn,
        f"UPDATE {schema}.checkpoints SET parent_checkpoint_id = NULL, hidden_parent_id = parent_checkpoint_id {HERE}"
        f" AND checkpoint_id IN ('{checkpoint_id(11)}', '{checkpoint_id(12)}')",
    )
    report = await examine(saver, repair=True, grace_seconds=0)
    assert report.findings == ()
    assert report.totals.hidden_checkpoints == 2


async def test_only_the_first_findings_are_kept_and_all_are_counted(
    saver: AsyncPostgresSaver, dsn: str, schema: str
) -> None:
    await fill(saver, "a")
    await fill(saver, "b")
    run_sql(dsn, f"UPDATE {schema}.channel_values SET frame = '\\x00' WHERE thread_id = 'a'")
    run_sql(dsn, f"DELETE FROM {schema}.checkpoints WHERE thread_id = 'b'")
    for most in (1, 3, None):
        report = await examine(saver, max_findings=most)
        values = run_sql(dsn, f"SELECT count(*) FROM {schema}.channel_values WHERE thread_id = 'a'")[0][0]
        assert report.counts == {
            Kind.CORRUPT_VALUE: values,
            Kind.ORPHANED_VALUE: values,
            Kind.ORPHANED_WRITE: 25,
        }
        kept = {kind: sum(each.kind is kind for each in report.findings) for kind in report.counts}
        groups = {Kind.CORRUPT_VALUE: values, Kind.ORPHANED_VALUE: values, Kind.ORPHANED_WRITE: 13}
        assert kept == {kind: min(count, most or count) for kind, count in groups.items()}


async def test_pages_of_any_size_see_the_same(dsn: str, schema: str) -> None:
    found: list[Report] = []
    for page_rows, page_bytes in ((1, 1024), (3, 2000), (1000, 1024**2)):
        async with saver_on(dsn, schema, page_rows=page_rows, page_bytes=page_bytes) as saver:
            if not found:
                await fill(saver)
                run_sql(dsn, DAMAGE["a base that is gone"][0].replace("$.", f"{schema}."))
            found.append(await examine(saver))
    assert found[0] == found[1] == found[2]
    assert not found[0].is_clean


# --- payloads, types, keys --------------------------------------------------------------------------------


async def test_no_payload_is_deserialized_unless_asked(
    saver: AsyncPostgresSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(saver)

    def refuse(self: object, found: object) -> None:
        raise AssertionError("deserialized")

    monkeypatch.setattr(JsonPlusSerializer, "loads_typed", refuse)
    assert (await examine(saver)).findings == ()
    report = await examine(saver, deserialize=True)
    totals = report.totals
    assert report.counts == {Kind.UNREADABLE: totals.checkpoints + totals.values + totals.writes}


async def test_what_only_another_serializer_reads_is_named_when_asked(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema, serde=JsonPlusSerializer(pickle_fallback=True)) as writer:
        await put(writer, config(), checkpoint(1, {"large": [Opaque(), LARGE_TEXT], "small": [Opaque()]}))
        await writer.aput_writes(config(number=1), [("w", [Opaque()])], "task")
        await put(writer, config("core"), checkpoint(1), metadata(source="loop", odd=Opaque()))
    async with saver_on(dsn, schema) as saver:
        assert (await examine(saver)).findings == ()
        report = await examine(saver, deserialize=True)
    here = {"kind": Kind.UNREADABLE, "thread_id": "thread", "checkpoint_ns": ""}
    assert in_order(places(report)) == in_order(
        [
            {
                "kind": Kind.UNREADABLE,
                "thread_id": "core",
                "checkpoint_ns": "",
                "checkpoint_id": checkpoint_id(1),
            },
            {**here, "channel": "large", "version": version(1)},
            {**here, "channel": "small", "checkpoint_id": checkpoint_id(1)},
            {**here, "channel": "w", "checkpoint_id": checkpoint_id(1), "task_id": "task", "idx": 0},
        ]
    )


async def test_encrypted_rows_are_checked_with_the_key_and_counted_without(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema, serde=aes_serializer()) as sealed:
        await fill(sealed)
        report = await examine(sealed, deserialize=True)
        assert report.findings == ()
        assert report.totals.sealed_rows == 0
        assert report.totals.edits > 5
        for damage in ("a flipped bit in an edit", "a flipped bit in a body", "a flipped bit in a write"):
            run_sql(dsn, DAMAGE[damage][0].replace("$.", f"{schema}."))
        expected = [
            place
            for name in DAMAGE
            if name in ("a flipped bit in an edit", "a flipped bit in a body", "a flipped bit in a write")
            for place in DAMAGE[name][1]
        ]
        assert in_order(places(await examine(sealed))) == in_order(expected)
    async with saver_on(dsn, schema) as saver:
        report = await examine(saver)
        totals = report.totals
        assert totals.sealed_rows == totals.checkpoints + totals.values + totals.writes
        assert report.findings == ()
        # References, chains and leftovers are not encrypted.
        run_sql(dsn, DAMAGE["a base that is gone"][0].replace("$.", f"{schema}."))
        report = await examine(saver)
        assert in_order(places(report)) == in_order(DAMAGE["a base that is gone"][1])
    wrong = EncryptedSerializer.from_pycryptodome_aes(key=b"another key 1234")
    async with saver_on(dsn, schema, serde=wrong) as saver:
        counts = (await examine(saver)).counts
        assert counts[Kind.CORRUPT_BODY] == totals.checkpoints
        assert counts[Kind.CORRUPT_WRITE] == totals.writes


async def test_rows_that_should_be_encrypted_are_named_and_checked(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema) as plain:
        await put(plain, config("plain"), checkpoint(1, {"x": LARGE_TEXT}))
        await plain.aput_writes(config("plain", number=1), [("x", 1)], "task")
    run_sql(dsn, f"UPDATE {schema}.writes SET frame = {FRAME}")
    async with saver_on(dsn, schema, serde=aes_serializer()) as saver:
        await put(saver, config("sealed"), checkpoint(1, {"x": LARGE_TEXT}))
        report = await examine(saver)
        assert report.counts == {Kind.NOT_ENCRYPTED: 3, Kind.CORRUPT_WRITE: 1}
        assert {each.thread_id for each in report.findings} == {"plain"}
    async with saver_on(dsn, schema, serde=aes_serializer(), allow_plaintext=True) as saver:
        assert (await examine(saver)).counts == {Kind.CORRUPT_WRITE: 1}


# --- sweeping -----------------------------------------------------------------------------------------------


async def leave_orphans(saver: AsyncPostgresSaver, dsn: str, schema: str) -> None:
    """A conversation of which the last six checkpoints were deleted, without their values and writes."""
    await fill(saver)
    run_sql(
        dsn,
        f"DELETE FROM {schema}.checkpoints {HERE}"
        f" AND checkpoint_id BETWEEN '{checkpoint_id(7)}' AND '{checkpoint_id(12)}'",
    )


ORPHANS = [message_version(Kind.ORPHANED_VALUE, number) for number in range(7, 13)] + [
    {"kind": Kind.ORPHANED_WRITE, **AT, "checkpoint_id": checkpoint_id(number)} for number in range(7, 13)
]


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_a_repair_sweeps_what_nothing_needs_and_nothing_else(
    dsn: str, schema: str, driver: str
) -> None:
    async with saver_on(dsn, schema, driver=driver) as saver:
        await leave_orphans(saver, dsn, schema)
        await fill(saver, "other")
        before = rows_of(dsn, schema)
        seen = await listed(saver, None)
        report = await examine(saver)
        assert in_order(places(report)) == in_order(ORPHANS)
        assert rows_of(dsn, schema) == before
        repaired = await examine(saver, repair=True)
        assert repaired.is_clean
        assert repaired.counts == {}
        assert repaired.swept == {Kind.ORPHANED_VALUE: 6, Kind.ORPHANED_WRITE: 12}
        assert in_order(places(repaired, is_swept=True)) == in_order(ORPHANS)
        swept_versions = {version(number) for number in range(7, 13)}
        swept_ids = {checkpoint_id(number) for number in range(7, 13)}
        expected = {
            "checkpoints": before["checkpoints"],
            "channel_values": [
                row
                for row in before["channel_values"]
                if not (row[:3] == ("chat", "", "messages") and row[3] in swept_versions)
            ],
            "writes": [
                row for row in before["writes"] if not (row[:2] == ("chat", "") and row[2] in swept_ids)
            ],
        }
        after = rows_of(dsn, schema)
        assert after == expected
        gone = [row[6] for row in before["channel_values"] if row not in after["channel_values"]] + [
            row[8] for row in before["writes"] if row not in after["writes"]
        ]
        assert repaired.swept_bytes == sum(map(len, gone))
        assert await listed(saver, None) == seen
        assert (await examine(saver, repair=True)).swept == {}


async def test_what_a_needed_value_rests_on_stays(saver: AsyncPostgresSaver, dsn: str, schema: str) -> None:
    await fill(saver)
    # Version 9 is what 10, 11 and 12 rest on.
    run_sql(dsn, f"DELETE FROM {schema}.checkpoints {HERE} AND checkpoint_id = '{checkpoint_id(9)}'")
    report = await examine(saver, repair=True)
    # Its writes stay, too: checkpoint 10 still names it as its parent.
    assert report.swept == {}
    assert [place["kind"] for place in places(report)] == [Kind.DANGLING_PARENT]
    assert (await values_of(saver, config("chat", "", 12)))["messages"] == messages(32)


async def test_what_a_hidden_checkpoint_needs_stays(saver: AsyncPostgresSaver, dsn: str, schema: str) -> None:
    await fill(saver)
    run_sql(dsn, f"UPDATE {schema}.checkpoints SET hidden = true {HERE}")
    before = rows_of(dsn, schema)
    report = await examine(saver, repair=True, grace_seconds=0)
    assert report.is_clean
    assert rows_of(dsn, schema) == before


async def test_nothing_is_swept_in_a_damaged_thread(saver: AsyncPostgresSaver, dsn: str, schema: str) -> None:
    await leave_orphans(saver, dsn, schema)
    await put(saver, config("other"), checkpoint(1, {"x": LARGE_TEXT}))
    run_sql(dsn, f"UPDATE {schema}.checkpoints SET body = '' {HERE} AND checkpoint_id = '{checkpoint_id(2)}'")
    run_sql(dsn, f"DELETE FROM {schema}.checkpoints WHERE thread_id = 'other'")
    before = rows_of(dsn, schema)
    report = await examine(saver, repair=True)
    assert report.unswept_threads == 1
    assert report.swept == {Kind.ORPHANED_VALUE: 1}
    damaged = {"kind": Kind.CORRUPT_BODY, **AT, "checkpoint_id": checkpoint_id(2)}
    assert in_order(places(report)) == in_order([*ORPHANS, damaged])
    after = rows_of(dsn, schema)
    assert [row for row in before["channel_values"] if row not in after["channel_values"]] == [
        row for row in before["channel_values"] if row[0] == "other"
    ]


async def test_a_sweep_in_many_transactions_never_leaves_a_value_without_its_base(
    saver: AsyncPostgresSaver, dsn: str, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgcairn.operations.doctor._SWEEP_ROWS", 2)
    await leave_orphans(saver, dsn, schema)
    run_sql(dsn, f"DELETE FROM {schema}.checkpoints {HERE}")
    one_transaction = DoctorRepository.delete_values
    sizes = []

    async def spied(self: DoctorRepository, session: Any, thread_id: str, places: Any) -> Any:
        gone = await one_transaction(self, session, thread_id, places)
        sizes.append(len(gone))
        broken = run_sql(
            dsn,
            f"SELECT v.version FROM {schema}.channel_values AS v, unnest(v.chain) AS b (version) WHERE NOT EXISTS ("
            f"SELECT FROM {schema}.channel_values AS x WHERE (x.thread_id, x.checkpoint_ns, x.channel, x.version)"
            " = (v.thread_id, v.checkpoint_ns, v.channel, b.version))",
        )
        assert broken == []
        return gone

    monkeypatch.setattr(DoctorRepository, "delete_values", spied)
    report = await examine(saver, repair=True)
    assert report.is_clean
    assert sizes == [2] * 7
    assert report.swept == {Kind.ORPHANED_VALUE: 14, Kind.ORPHANED_WRITE: 24}


@pytest.mark.parametrize("grace_seconds", [0.0, 3600.0])
async def test_only_writes_whose_id_tells_that_they_are_old_are_swept(
    saver: AsyncPostgresSaver, dsn: str, schema: str, grace_seconds: float
) -> None:
    fresh = str(uuid6())
    timeless = [str(uuid.UUID(int=1 << 127, version=4)), "stub", "00000005", uuid.UUID(checkpoint_id(1)).hex]
    old = [checkpoint_id(1), "017f22e2-79b0-7cc3-98c4-dc0c0c07398f", "c232ab00-9414-11ec-b3c8-9f6bdeced846"]
    for number in (*timeless, *old, fresh):
        where = config()
        where["configurable"]["checkpoint_id"] = number
        await saver.aput_writes(where, [("a", 1), ("b", 2)], "task")
    report = await examine(saver, grace_seconds=grace_seconds)
    expected = old if grace_seconds else [*old, fresh]
    assert {each.checkpoint_id for each in report.findings if each.kind is Kind.ORPHANED_WRITE} == set(
        expected
    )
    assert report.counts[Kind.ORPHANED_WRITE] == 2 * len(expected)
    assert {each.checkpoint_id for each in report.findings if each.kind is Kind.EARLY_WRITE} == {
        *timeless,
        fresh,
    } - set(expected)
    report = await examine(saver, repair=True, grace_seconds=grace_seconds)
    assert report.is_clean
    assert report.swept == {Kind.ORPHANED_WRITE: 2 * len(expected)}
    left = {row[2] for row in rows_of(dsn, schema)["writes"]}
    assert left == {*timeless, fresh} - set(expected)


async def test_sends_of_a_parent_that_was_never_stored_stay(saver: AsyncPostgresSaver) -> None:
    await saver.aput_writes(config(number=1), [("__pregel_tasks", {"a": 1})], "task")
    await put(saver, config(number=1), checkpoint(2, v=3))
    seen = await get(saver, config())
    for repair in (False, True):
        report = await examine(saver, repair=repair, grace_seconds=0)
        assert report.swept == {}
        assert [each.kind for each in report.findings] == [Kind.DANGLING_PARENT]
    assert await get(saver, config()) == seen


# --- beside others --------------------------------------------------------------------------------------------

# Waits in the server until a session of this database waits for a lock.
UNTIL_BLOCKED = """
DO $$
BEGIN
    WHILE NOT EXISTS (
        SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()
    ) LOOP
        PERFORM pg_stat_clear_snapshot();
        PERFORM pg_sleep(0.005);
    END LOOP;
END
$$
"""


async def test_a_value_that_somebody_refers_to_meanwhile_is_not_swept(
    saver: AsyncPostgresSaver, dsn: str, schema: str
) -> None:
    await leave_orphans(saver, dsn, schema)
    before = rows_of(dsn, schema)
    where = f"{HERE} AND channel = 'messages' AND version = '{version(12)}'"
    async with await psycopg.AsyncConnection.connect(dsn) as writer:
        await writer.execute(f"SELECT FROM {schema}.channel_values {where} FOR KEY SHARE".encode())
        examining = asyncio.create_task(examine(saver, repair=True))
        await arun_sql(dsn, UNTIL_BLOCKED)
        await writer.execute(
            f"INSERT INTO {schema}.checkpoints (thread_id, checkpoint_ns, checkpoint_id, langgraph_v, metadata, refs, body)"
            f" SELECT thread_id, checkpoint_ns, 'new', 4, '{{}}', '{{\"messages\": \"{version(12)}\"}}', body"
            f" FROM {schema}.checkpoints {HERE} AND checkpoint_id = '{checkpoint_id(6)}'".encode()
        )
        await writer.commit()
        report = await examining
    # 12 rests on 9 and 11: what is orphaned now is 7, 8 and 10.
    rests_on = run_sql(dsn, f"SELECT chain FROM {schema}.channel_values {where}")[0][0]
    swept = {version(number) for number in range(7, 13)} - {version(12), *rests_on}
    assert len(swept) == 3
    assert {place["version"] for place in places(report, is_swept=True) if "version" in place} == swept
    assert report.is_clean
    gone = [row for row in before["channel_values"] if row not in rows_of(dsn, schema)["channel_values"]]
    assert {row[3] for row in gone} == swept


async def test_what_a_value_that_is_no_candidate_rests_on_is_not_deleted(
    saver: AsyncPostgresSaver, dsn: str, schema: str
) -> None:
    await leave_orphans(saver, dsn, schema)
    repository = DoctorRepository(Statements(schema))
    nine, twelve = (("", "messages", version(number)) for number in (9, 12))
    async with saver._engine.pool.acquire() as session:
        assert await repository.delete_values(session, "chat", [nine]) == []
        deleted = await repository.delete_values(session, "chat", [nine, twelve])
        # 10 and 11 rest on 9, and are no candidates.
        assert [place for place, _ in deleted] == [twelve]


async def test_what_came_between_finding_and_deleting_is_seen(
    saver: AsyncPostgresSaver, dsn: str, schema: str
) -> None:
    await leave_orphans(saver, dsn, schema)
    await saver.aput_writes(config("sends", number=1), [("__pregel_tasks", {"a": 1})], "task")
    await put(saver, config("sends", number=1), checkpoint(2, v=3))
    await saver.aput_writes(config("sends", number=2), [("x", 1)], "task")
    repository = DoctorRepository(Statements(schema))
    async with saver._engine.pool.acquire() as session:
        # Its checkpoint is there, or a checkpoint that it is the parent of.
        assert await repository.delete_writes(session, "sends", [("", checkpoint_id(2))]) == []
        assert await repository.delete_writes(session, "sends", [("", checkpoint_id(1))]) == []
        # What a checkpoint refers to is not known any more.
        twelve = ("", "messages", version(12))
        run_sql(
            dsn,
            f"UPDATE {schema}.checkpoints SET refs = '[1]' {HERE} AND checkpoint_id = '{checkpoint_id(2)}'",
        )
        assert await repository.delete_values(session, "chat", [twelve]) == []
        run_sql(
            dsn,
            f"UPDATE {schema}.checkpoints SET refs = NULL {HERE} AND checkpoint_id = '{checkpoint_id(2)}'",
        )
        deleted = await repository.delete_values(session, "chat", [twelve])
        assert [place for place, _ in deleted] == [twelve]


async def test_a_repair_needs_read_committed(dsn: str, schema: str) -> None:
    async with saver_on(dsn, schema) as saver:
        await leave_orphans(saver, dsn, schema)
    before = rows_of(dsn, schema)
    options = quote("-cdefault_transaction_isolation=repeatable\\ read")
    async with saver_on(f"{dsn}?options={options}", schema) as saver:
        assert in_order(places(await examine(saver))) == in_order(ORPHANS)
        with pytest.raises(InvalidInput, match="REPEATABLE READ"):
            await examine(saver, repair=True)
        repository = DoctorRepository(Statements(schema))
        async with saver._engine.pool.acquire() as session:
            places_ = [("", "messages", version(12))]
            assert await repository.delete_values(session, "chat", places_) == []
            assert await repository.delete_writes(session, "chat", [("", checkpoint_id(12))]) == []
    assert rows_of(dsn, schema) == before


async def test_beside_writers_and_deletions_nothing_is_mistaken_for_damage(dsn: str, schema: str) -> None:
    rounds = 25
    async with (
        saver_on(dsn, schema, max_size=4) as writer,
        saver_on(dsn, schema) as deleter,
        saver_on(dsn, schema, page_rows=3, max_size=2) as doctors,
    ):

        async def converse(thread_id: str) -> None:
            last = None
            for number in range(1, rounds + 1):
                values = {"messages": messages(10 + number), "constant": LARGE_TEXT}
                versions = {"messages": version(number)}
                new = None if number == 1 else versions
                where = config(thread_id, "", last)
                stored = await put(writer, where, checkpoint(number, values, versions), None, new)
                await writer.aput_writes(stored, [("n", number)], "task")
                last = number
                if thread_id == "deleted" and number % 5 == 0:
                    await deleter.adelete_thread(thread_id)

        writing = asyncio.gather(*(converse(thread_id) for thread_id in ("a", "b", "deleted")))
        reports: list[Report] = []
        while not writing.done() or not reports:
            reports.append(await examine(doctors, repair=True, grace_seconds=1e10))
        await writing
        reports.append(await examine(doctors))
        for report in reports:
            assert report.is_clean, report.findings
            assert report.swept == {}
        for thread_id in ("a", "b"):
            for number in range(1, rounds + 1):
                found = await values_of(writer, config(thread_id, "", number))
                assert found == {"messages": messages(10 + number), "constant": LARGE_TEXT}


async def test_a_cancelled_examination_leaves_the_saver_usable(saver: AsyncPostgresSaver) -> None:
    await fill(saver)
    seen = asyncio.Event()
    examining = asyncio.create_task(examine(saver, on_progress=lambda totals: seen.set()))
    await seen.wait()
    examining.cancel()
    with pytest.raises(asyncio.CancelledError):
        await examining
    assert (await examine(saver)).is_clean


async def test_it_works_from_other_event_loops(dsn: str, schema: str) -> None:
    with PostgresSaver.from_conn_string(dsn, schema=schema, min_size=1) as saver:
        saver.setup()
        await fill(saver)
        assert (await examine(saver)).totals.threads == 1


async def test_arguments_out_of_range_are_refused(saver: AsyncPostgresSaver) -> None:
    for arguments in ({"grace_seconds": -1}, {"max_findings": 0}, {"threads": [""]}, {"threads": ["a\0"]}):
        with pytest.raises(InvalidInput):
            await examine(saver, **arguments)
    await saver.aclose()
    with pytest.raises(ClosedError):
        await examine(saver)


# --- the command ------------------------------------------------------------------------------------------------


@pytest.fixture
def doctor(
    dsn: str, schema: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """``await doctor("--json")``: (exit code, standard output, standard error)."""
    monkeypatch.delenv("LANGGRAPH_AES_KEY", raising=False)

    async def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = await asyncio.to_thread(main, ["doctor", "--dsn", dsn, "--schema", schema, *arguments])
        return (code, *capsys.readouterr())

    return run


async def test_the_command_on_what_is_whole(
    saver: AsyncPostgresSaver, doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(saver)
    code, out, err = await doctor()
    assert (code, err) == (0, "")
    assert out.splitlines()[:4] == [
        "threads              1",
        "checkpoints          17 (0 hidden)",
        "values               16 (11 edits, deepest chain 3)",
        "writes               25",
    ]
    assert out.splitlines()[-1] == "Nothing is wrong."
    code, out, err = await doctor("--json", "--deserialize")
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert report["is_clean"] is True
    assert report["totals"]["checkpoints"] == 17
    assert report["findings"] == []


async def test_the_command_on_damage(
    saver: AsyncPostgresSaver, doctor: Callable[..., Any], dsn: str, schema: str
) -> None:
    await fill(saver)
    for name in ("a value that is gone", "a parent that is gone"):
        run_sql(dsn, DAMAGE[name][0].replace("$.", f"{schema}."))
    code, out, _ = await doctor()
    assert code == 1
    assert "\ndamage: missing-value (1): a checkpoint refers to a value that has no row\n" in out
    where = f"thread 'chat', namespace '', checkpoint '{checkpoint_id(12)}', channel 'messages', version '{version(12)}'"
    assert f"\n  {where}\n" in out
    assert "\nnote: dangling-parent (1)" in out
    assert "docs/doctor.md" in out.splitlines()[-1]
    code, out, _ = await doctor("--json")
    assert code == 1
    assert json.loads(out)["counts"] == {"missing-value": 1, "dangling-parent": 1}
    [finding] = [each for each in json.loads(out)["findings"] if each["kind"] == "missing-value"]
    assert finding == {
        "kind": "missing-value",
        "severity": "damage",
        "thread_id": "chat",
        "checkpoint_ns": "",
        "checkpoint_id": checkpoint_id(12),
        "channel": "messages",
        "version": version(12),
        "detail": "",
        "is_swept": False,
    }
    # A thread without damage, and one that does not exist: notes do not fail.
    await fill(saver, "other")
    code, out, _ = await doctor("--thread", "other", "--thread", "nobody")
    assert code == 0
    assert "\nnote: empty-thread (1)" in out


async def test_the_command_lists_the_first_or_all(
    saver: AsyncPostgresSaver, doctor: Callable[..., Any], dsn: str, schema: str
) -> None:
    for number in range(30):
        await put(saver, config(f"t{number}"), checkpoint(1, {"x": LARGE_TEXT}))
    run_sql(dsn, f"UPDATE {schema}.channel_values SET frame = ''")
    code, out, _ = await doctor()
    assert code == 1
    assert "corrupt-value (30)" in out
    assert out.count("channel 'x'") == 20
    assert "--all" in out
    code, out, _ = await doctor("--all")
    assert out.count("channel 'x'") == 30
    assert "--all" not in out


async def test_the_command_lists_all_when_each_stands_for_several(
    saver: AsyncPostgresSaver, doctor: Callable[..., Any]
) -> None:
    for number in range(20):
        await saver.aput_writes(config(number=number), [("a", 1), ("b", 2)], "task")
    _, out, _ = await doctor("--all")
    assert "orphaned-write (40)" in out
    assert out.count(": 2 pending writes") == 20
    assert "--all" not in out


async def test_the_command_repairs(
    saver: AsyncPostgresSaver, doctor: Callable[..., Any], dsn: str, schema: str
) -> None:
    await leave_orphans(saver, dsn, schema)
    code, out, _ = await doctor()
    assert code == 1
    assert out.splitlines()[-1] == "No damage, but leftovers: --repair deletes them."
    code, out, _ = await doctor("--grace-seconds", "1e10", "--json")
    assert code == 1
    assert json.loads(out)["counts"] == {"orphaned-value": 6, "early-write": 12}
    code, out, _ = await doctor("--repair")
    assert code == 0
    assert "\nswept: orphaned-value (6)" in out
    assert "\nswept: orphaned-write (12)" in out
    assert f"\n  thread 'chat', namespace '', channel 'messages', version '{version(12)}'\n" in out
    assert out.splitlines()[-1] == "Nothing is wrong."
    code, out, _ = await doctor("--repair")
    assert "swept" not in out


async def test_the_command_says_that_it_left_a_damaged_thread_alone(
    saver: AsyncPostgresSaver, doctor: Callable[..., Any], dsn: str, schema: str
) -> None:
    await leave_orphans(saver, dsn, schema)
    run_sql(dsn, f"UPDATE {schema}.checkpoints SET body = '' {HERE} AND checkpoint_id = '{checkpoint_id(2)}'")
    code, out, _ = await doctor("--repair")
    assert code == 1
    assert "Nothing was swept in 1 damaged thread" in out


async def test_the_command_and_the_key(
    dsn: str, schema: str, doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with saver_on(dsn, schema, serde=aes_serializer()) as sealed:
        await put(sealed, config(), checkpoint(1, {"x": LARGE_TEXT}))
    code, out, _ = await doctor()
    assert code == 0
    assert "sealed, not checked  2 (set LANGGRAPH_AES_KEY)" in out
    monkeypatch.setenv("LANGGRAPH_AES_KEY", KEY)
    code, out, _ = await doctor()
    assert code == 0
    assert "sealed, not checked  0" in out
    run_sql(dsn, f"UPDATE {schema}.channel_values SET frame = {FRAME}")
    code, out, _ = await doctor()
    assert code == 1
    assert "damage: corrupt-value (1)" in out
    async with saver_on(dsn, schema) as plain:
        await put(plain, config("plain"), checkpoint(1))
    code, out, _ = await doctor("--thread", "plain")
    assert code == 1
    assert "damage: not-encrypted (1)" in out
    code, out, _ = await doctor("--thread", "plain", "--allow-plaintext")
    assert code == 0
    monkeypatch.setenv("LANGGRAPH_AES_KEY", "short")
    code, _, err = await doctor()
    assert code == 1
    assert "LANGGRAPH_AES_KEY" in err
    assert "short" not in err


async def test_the_command_shows_progress_on_a_terminal_only(
    saver: AsyncPostgresSaver, doctor: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(saver)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, out, err = await doctor("--json")
    assert code == 0
    json.loads(out)
    assert "1 threads, 17 checkpoints, 16 values, 25 writes" in err
    assert err.endswith("\r\x1b[K")


async def test_the_command_without_a_schema(doctor: Callable[..., Any]) -> None:
    code, _, err = await doctor()
    assert code == 1
    assert "pgcairn setup" in err
