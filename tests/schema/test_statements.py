"""Every statement on a real schema: it prepares on both drivers, and its plan uses the index it names."""

from __future__ import annotations

import re
from collections.abc import Iterator

import asyncpg
import psycopg
import pytest
from psycopg.sql import Literal

from pgcairn.connection.pool import Query
from pgcairn.storage.migrations import all_ddl
from pgcairn.storage.statements import BatchShape, Statements, sql_directory
from tests.support.server import Server

_ALL = Statements("s").all()
_WHOLE_BATCH = BatchShape(True, True, True, True, True)


@pytest.fixture(scope="module")
def filled(server: Server, shared_database: str) -> Iterator[tuple[str, Statements]]:
    """A DSN and the statements of a schema with enough rows that a sequential scan is no option."""
    statements = Statements("plans")
    dsn = server.dsn(shared_database)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(all_ddl(statements).encode())
        connection.execute("SET search_path = plans")
        connection.execute(
            """
            INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, langgraph_v, metadata, refs, body)
            SELECT t, '', lpad(c::text, 8, '0'), 4, '{"step": 1}', '{"x": "1"}', 'b'
            FROM generate_series(1, 3000) AS t, generate_series(1, 10) AS c
            """
        )
        connection.execute(
            """
            INSERT INTO channel_values (thread_id, checkpoint_ns, channel, version, type, frame)
            SELECT t, '', 'x', v, 't', 'f' FROM generate_series(1, 3000) AS t, generate_series(1, 10) AS v
            """
        )
        connection.execute(
            """
            INSERT INTO writes (thread_id, checkpoint_ns, checkpoint_id, task_id, idx, task_path, channel, type, frame)
            SELECT t, '', lpad(c::text, 8, '0'), 'task', 0, '', 'x', 't', 'f'
            FROM generate_series(1, 3000) AS t, generate_series(1, 10) AS c
            """
        )
        connection.execute("ANALYZE checkpoints, channel_values, writes")
    yield dsn, statements
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("DROP SCHEMA plans CASCADE")


@pytest.mark.parametrize("number", range(len(_ALL)), ids=[query.name for query in _ALL])
def test_a_statement_prepares_with_psycopg(filled: tuple[str, Statements], number: int) -> None:
    dsn, statements = filled
    query = statements.all()[number]
    with psycopg.connect(dsn, autocommit=True) as connection:
        result = connection.pgconn.prepare(b"p", query.text.encode())
        assert result.status == psycopg.pq.ExecStatus.COMMAND_OK, result.get_error_message()
        described = connection.pgconn.describe_prepared(b"p")
        found = [described.param_type(position) for position in range(described.nparams)]
        assert found == [_oid(connection, type_name) for type_name in query.types]


def _oid(connection: psycopg.Connection, type_name: str) -> int:
    info = connection.adapters.types[type_name.removesuffix("[]")]
    return info.array_oid if type_name.endswith("[]") else info.oid


async def test_every_statement_prepares_with_asyncpg(filled: tuple[str, Statements]) -> None:
    dsn, statements = filled
    connection = await asyncpg.connect(dsn)
    try:
        for query in statements.all():
            prepared = await connection.prepare(query.text)
            assert len(prepared.get_parameters()) == len(query.types), query.name
    finally:
        await connection.close()


# --- plans ------------------------------------------------------------------------------------------

_MANY = [str(number) for number in range(1, 101)]
_N = len(_MANY)
_NS = [""] * _N
_IDS = ["00000005"] * _N
_BYTES = [b"f"] * _N
_KEPT = (_MANY, _NS, _IDS, ["task"] * _N, [0] * _N, _NS, ["x"] * _N, ["t"] * _N, _BYTES)
_ROW = ("1", "", "00000005", None, None, 4, "{}", None, b"b")

_ARGUMENTS: dict[str, tuple[object, ...]] = {
    "insert_checkpoint": _ROW,
    "insert_checkpoint_on_base": (*_ROW, "x", "1"),
    "insert_checkpoint_and_value": (*_ROW, "x", "1", "t", b"f"),
    "insert_checkpoint_and_edit": (*_ROW, "x", "2", '{"1"}', "t", b"f", "1"),
    "insert_write": ("1", "", "00000005", "task", 0, "", "x", "t", b"f"),
    "lock_checkpoint": ("1", "", "00000005"),
    "replace_checkpoint": ("1", "", "00000005", None, 4, "{}", None, b"b"),
    "delete_threads": (_MANY[:3],),
    "select_places": ("1",),
    "select_roots": ("1", _NS, _IDS),
    "select_needed": ("1", _NS, _IDS, "00000005"),
    "lock_checkpoints": ("1", _NS, _IDS),
    "hide_checkpoints": ("1", _NS, _IDS),
    "delete_checkpoints": ("1", _NS, _IDS),
    "relink_checkpoints": ("1", _NS, _IDS, "00000005"),
    "select_unreferenced": ("1",),
    "lock_values": ("1", _NS, ["x"] * _N, _MANY),
    "delete_values": ("1", _NS, ["x"] * _N, _MANY),
    "copy_thread": ("1", "new"),
    "select_latest": ("1", ""),
    "select_exact": ("1", "", "00000005"),
    "select_many": (_MANY, _NS, [None] * _N),
    "select_delta_path": ("1", "", "00000005", ["x", "y"], True, 1_000_000),
    "select_delta_rows": ("1", "", ["00000004", "00000003"], ["x", "y"], [2, 1], ["x"], ["1"]),
    "page_of_namespace": ("1", "", None, "00000005", "{}", 10),
    "page_of_thread": ("1", None, None, "{}", None, None, 10),
    "doctor_threads": ("1", 10),
    "doctor_checkpoints": ("1", "", "00000005", 10),
    "doctor_values": ("1", "", "x", "5", 10),
    "doctor_writes": ("1", "", "00000005", "task", 0, 10),
    "doctor_orphaned_values": ("1", 10),
    "doctor_orphaned_writes": ("1", "", "00000005", 10),
    "doctor_unneeded_hidden": ("1", 10),
    "doctor_lost_calls": ("1", 10),
    "doctor_delete_values": ("1", _NS, ["x"] * _N, _MANY),
    "doctor_lock_writes": ("1", _NS, _MANY),
    "doctor_delete_writes": ("1", _NS, _MANY),
    "batch": (
        *([*range(_N)], _MANY, _NS, ["x"] * _N, ["1"] * _N, ["{}"] * _N),
        *([*range(_N)], _MANY, _NS, ["x"] * _N, ["1"] * _N, [None] * _N, ["t"] * _N, _BYTES),
        *(
            [*range(_N)],
            _MANY,
            _NS,
            _IDS,
            [None] * _N,
            [None] * _N,
            [4] * _N,
            ["{}"] * _N,
            [None] * _N,
            _BYTES,
        ),
        *_KEPT,
        *_KEPT,
    ),
}
_PARTS = {
    "select_latest": ["part_tuple", "source_latest"],
    "select_exact": ["part_tuple", "source_exact"],
    "select_many": ["part_tuple", "source_many"],
    "page_of_namespace": ["part_tuple", "source_page_of_namespace"],
    "page_of_thread": ["part_tuple", "source_page_of_thread"],
    "select_unreferenced": ["select_unreferenced", "part_referenced_values", "part_needed_values"],
    "delete_values": ["delete_values", "part_needed_values"],
    "batch": ["part_needs", "part_values", "part_checkpoints", "part_writes_kept", "part_writes_replaced"],
}


def _named_indexes(name: str) -> set[str]:
    """The indexes that the comments of a statement name."""
    sources = "".join(file.read_text() for file in sql_directory().joinpath("queries").iterdir())
    found: set[str] = set()
    for part in _PARTS.get(name, [name]):
        match = re.search(rf"-- name: {part} :\w+\n((?:--.*\n)+)", sources)
        assert match is not None, part
        found |= set(re.findall(r"\b\w+_pkey\b", match[1]))
        if "the primary keys" in match[1]:
            found |= {"checkpoints_pkey", "channel_values_pkey", "writes_pkey"}
    assert found, f"{name} names no index"
    return found


def _plan(connection: psycopg.Connection, query: Query, arguments: tuple[object, ...], mode: str) -> str:
    connection.execute(f"SET plan_cache_mode = {mode}".encode())
    connection.execute(f"PREPARE p ({', '.join(query.types)}) AS {query.text}".encode())
    given = ", ".join(
        f"{Literal(argument).as_string(connection)}::{type_name}"
        for argument, type_name in zip(arguments, query.types, strict=True)
    )
    rows = connection.execute(f"EXPLAIN EXECUTE p ({given})".encode()).fetchall()
    connection.execute("DEALLOCATE p")
    return "\n".join(row[0] for row in rows)


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("name", _ARGUMENTS)
def test_a_hot_statement_uses_the_indexes_it_names(
    filled: tuple[str, Statements], name: str, mode: str
) -> None:
    dsn, statements = filled
    query = statements.batch(_WHOLE_BATCH) if name == "batch" else getattr(statements, name)
    with psycopg.connect(dsn, autocommit=True) as connection:
        plan = _plan(connection, query, _ARGUMENTS[name], mode)
    for index in _named_indexes(name):
        assert index in plan, plan
    assert not re.search(r"Seq Scan on \w*\.?(checkpoints|channel_values|writes)\b", plan), plan


def test_the_latest_checkpoint_is_one_row_of_the_index_backwards(filled: tuple[str, Statements]) -> None:
    dsn, statements = filled
    with psycopg.connect(dsn, autocommit=True) as connection:
        for mode in ("force_generic_plan", "force_custom_plan"):
            for name in ("select_latest", "select_many"):
                plan = _plan(connection, getattr(statements, name), _ARGUMENTS[name], mode)
                assert "Index Scan Backward using checkpoints_pkey" in plan, plan


def test_a_walk_that_was_planned_on_a_small_table_does_not_scan_it(
    server: Server, shared_database: str
) -> None:
    """The plan is kept while the table grows."""
    statements = Statements("small")
    with psycopg.connect(server.dsn(shared_database), autocommit=True) as connection:
        connection.execute(all_ddl(statements).encode())
        connection.execute("SET search_path = small")
        connection.execute(
            """
            INSERT INTO checkpoints (thread_id, checkpoint_ns, checkpoint_id, langgraph_v, metadata, body)
            SELECT '1', '', lpad(c::text, 8, '0'), 4, '{}', repeat('b', 300)::bytea FROM generate_series(1, 50) AS c
            """
        )
        connection.execute("ANALYZE checkpoints")
        query = statements.select_delta_path
        plan = _plan(connection, query, _ARGUMENTS["select_delta_path"], "force_generic_plan")
        connection.execute("DROP SCHEMA small CASCADE")
    assert re.search(r"Index Scan using checkpoints_pkey on checkpoints a\b", plan), plan


# --- what the keys' limits promise ------------------------------------------------------------------


def test_the_longest_keys_fit_into_every_index(filled: tuple[str, Statements]) -> None:
    import random

    from pgcairn.keys import MAX_KEY_BYTES

    dsn, statements = filled
    noise = "".join(random.Random(3).choices([chr(code) for code in range(33, 127)], k=MAX_KEY_BYTES))
    quarter = len(noise) // 4
    four = [noise[position : position + quarter] for position in range(0, 4 * quarter, quarter)]
    with psycopg.connect(dsn, autocommit=True) as connection:
        raw = psycopg.RawCursor(connection)
        raw.execute(
            statements.insert_checkpoint.text,
            [four[0] + four[3], *four[1:3], None, None, 4, "{}", None, b"b"],
        )
        raw.execute(statements.insert_write.text, [*four, 2**31 - 1, "", "x", "t", b"f"])
        for thread_id, rest in ((noise[:-1], ""), ("r", noise[:-1])):
            raw.execute(
                statements.insert_checkpoint.text,
                [thread_id, "", "1", None, rest or None, 4, "{}", None, b"b"],
            )
            raw.execute(
                statements.insert_checkpoint_and_value.text,
                [thread_id[:-2], "", "2", None, None, 4, "{}", None, b"b", "x", "1", "t", b"f"],
            )
            raw.execute(statements.insert_write.text, [thread_id[:-2], "", "1", "1", 0, "", "x", "t", b"f"])
        raw.execute(
            statements.delete_threads.text, [[four[0] + four[3], four[0], noise[:-1], noise[:-3], "r", ""]]
        )
        raw.close()
