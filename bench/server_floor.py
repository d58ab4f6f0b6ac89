"""How many puts a second could the server take, and how much of that does pgcairn use?

``pgbench`` inserts what a lone ``aput`` of pgcairn inserts, a checkpoint and a value of ten messages on a new thread:
one put a transaction, by pgcairn's own statement, and 50 a statement, for which the server itself repeats the rows.
Beside it pgcairn, with as many callers, and how often the disk flushes a page a second (fdatasync of 8 KB in the
temporary folder, where a server of the bench's own has its files).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bench import machine, peers
from bench.harness import Figures, Lab, Load, Meter, Table, Work, sample
from bench.loads import ThreadWriter, messages
from bench.peers import Peer, Saver
from pgcairn.connection import embedded_binaries
from pgcairn.errors import EmbeddedServerError
from pgcairn.settings import Settings
from pgcairn.storage.statements import Statements

_CLIENTS = (1, 10)
_BATCH_ROWS = 50
_MESSAGES = 10
_PARAMETER = re.compile(r"\$(\d+)")
_COMMENT = re.compile(r"/\*.*?\*/")  # its colon would be a variable
_RATE = re.compile(r"^tps = ([\d.]+)", re.MULTILINE)

# The row of a put, in the order of insert_checkpoint_and_value's parameters; bytes as text.
_ROW_SQL = """
SELECT c.thread_id, c.checkpoint_ns, c.checkpoint_id, c.parent_checkpoint_id, c.run_id, c.langgraph_v, c.metadata::text,
    c.refs::text, c.body::text, v.channel, v.version, v.type, v.frame::text
FROM pgcairn.checkpoints c JOIN pgcairn.channel_values v USING (thread_id, checkpoint_ns)
"""
_BATCH_SQL = """
WITH stored_values AS (
    INSERT INTO pgcairn.channel_values (thread_id, checkpoint_ns, channel, version, type, frame)
    SELECT $1::text || n, $2::text, $10::text, $11::text, $12::text, $13::bytea FROM generate_series(1, {rows}) n
)
INSERT INTO pgcairn.checkpoints (
    thread_id, checkpoint_ns, checkpoint_id, parent_checkpoint_id, run_id, langgraph_v, metadata, refs, body
)
SELECT $1::text || n, $2::text, $3::text, $4::text, $5::text, $6::int4, $7::text::jsonb, $8::text::jsonb, $9::bytea
FROM generate_series(1, {rows}) n
"""


async def run(lab: Lab) -> None:
    """Measure."""
    program = _pgbench()
    if program is None:
        raise SystemExit(
            "There is no pgbench: neither beside the server's programs, nor on the PATH, nor in "
            "/usr/lib/postgresql. Install it (on Debian and Ubuntu: apt install postgresql-contrib), or set "
            f"{embedded_binaries.BIN_VARIABLE} to the bin directory of a PostgreSQL that has it."
        )
    contenders: list[tuple[Peer, Work]] = []
    by_name: dict[tuple[str, int], Peer] = {}
    for clients in _CLIENTS:
        for name, work in (
            ("flushes of a page", _flushing),
            ("pgbench, one put a transaction", _server_alone(program, lab.seconds, clients, rows=1)),
            (
                f"pgbench, {_BATCH_ROWS} puts a statement",
                _server_alone(program, lab.seconds, clients, rows=_BATCH_ROWS),
            ),
            *(
                (f"{peer.label}{of}", _saver(lab.seconds, callers))
                for of, callers in (("", clients), (f", {_BATCH_ROWS} callers each", clients * _BATCH_ROWS))
                for peer in (peers.PGCAIRN, peers.PGCAIRN_ASYNCPG)
            ),
        ):
            driver = peers.PGCAIRN_ASYNCPG if peers.PGCAIRN_ASYNCPG.label in name else peers.PGCAIRN
            peer = by_name[name, clients] = replace(driver, label=f"{name}, {clients}")
            contenders.append((peer, work))
    found = await lab.collect("rates", contenders)
    lab.tables.append(_table(found, by_name))
    lab.notes.append(f"pgbench is {_version(program)}.")


def _pgbench() -> str | None:
    folders: list[str] = []
    with suppress(EmbeddedServerError):  # the server is another one; a pgbench may be anywhere
        folders.append(str(embedded_binaries.find_binaries()))
    # Before the PATH: Debian's is a script that chooses by the clusters that it knows.
    versions = Path("/usr/lib/postgresql").glob("*/bin")
    folders += sorted(map(str, versions), reverse=True)
    return shutil.which("pgbench", path=os.pathsep.join([*folders, os.environ.get("PATH", "")]))


def _version(program: str) -> str:
    answer = subprocess.run([program, "--version"], capture_output=True, check=True, text=True).stdout
    return answer.partition("(PostgreSQL) ")[2].split()[0]


async def _flushing(_: Saver, __: str) -> dict[str, float]:
    return {"rate": await asyncio.to_thread(machine.flushes_per_second)}


def _saver(seconds: float, callers: int) -> Work:
    load = _puts(callers)

    async def work(saver: Saver, _: str) -> dict[str, float]:
        return {"rate": (await sample(saver, load, seconds)).rate}

    return work


def _puts(callers: int) -> Load:
    state = messages(_MESSAGES, as_objects=False)

    async def load(saver: Saver, meter: Meter) -> None:
        numbers = itertools.count()

        async def caller() -> None:
            while not meter.stopped:
                await ThreadWriter(saver, f"thread-{next(numbers)}").put(state)
                meter.operations += 1

        await asyncio.gather(*(caller() for _ in range(callers)))

    return load


def _server_alone(program: str, seconds: float, clients: int, *, rows: int) -> Work:
    single = Statements(Settings().schema).insert_checkpoint_and_value.text
    statement = single if rows == 1 else _BATCH_SQL.format(rows=rows)

    async def work(saver: Saver, dsn: str) -> dict[str, float]:
        await ThreadWriter(saver, "thread").put(messages(_MESSAGES, as_objects=False))
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            row = await (await connection.execute(_ROW_SQL)).fetchone()
        assert row is not None
        script, variables = _script(statement, row)
        transactions = await asyncio.to_thread(_run, program, dsn, script, variables, clients, seconds)
        return {"rate": transactions * rows}

    return work


def _script(statement: str, row: tuple[object, ...]) -> tuple[str, dict[str, str]]:
    """A pgbench script that inserts a row again and again on new threads, and the variables that it needs.

    A variable holds what a parameter of pgcairn holds, as text; it cannot hold null and empty text, which are written out.
    """
    variables = {f"p{number}": str(value) for number, value in enumerate(row, 1) if value not in (None, "")}
    variables["p1"] = "0"

    def written(match: re.Match[str]) -> str:
        name = f"p{match[1]}"
        return f":{name}" if name in variables else "NULL" if row[int(match[1]) - 1] is None else "''"

    text = " ".join(_PARAMETER.sub(written, _COMMENT.sub("", statement)).split())
    return f"\\set p1 random(1, 1000000000000000)\n{text};\n", variables


def _run(
    program: str, dsn: str, script: str, variables: Mapping[str, str], clients: int, seconds: float
) -> float:
    given = conninfo_to_dict(dsn)
    password = given.pop("password", None)  # not on a command line
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as file:
        file.write(script)
        file.flush()
        answer = subprocess.run(
            [
                *(program, "--no-vacuum", "--protocol=prepared", f"--file={file.name}"),
                *(f"--client={clients}", "--jobs=1", f"--time={max(1, round(seconds))}"),
                *(f"--define={name}={value}" for name, value in variables.items()),
                make_conninfo("", **given),
            ],
            env=os.environ | ({"PGPASSWORD": str(password)} if password else {}),
            capture_output=True,
            text=True,
            check=False,
        )
    rate = _RATE.search(answer.stdout)
    if answer.returncode or rate is None:
        raise RuntimeError(f"pgbench failed: {answer.stderr.strip()}")
    return float(rate[1])


def _table(found: Figures, by_name: Mapping[tuple[str, int], Peer]) -> Table:
    names = list(dict.fromkeys(name for name, _ in by_name))
    reference = names[1]
    return Table(
        "Puts a second",
        (
            "who",
            *(f"{clients} client{'s' if clients > 1 else ''}" for clients in _CLIENTS),
            *(f"÷ the second row, {clients}" for clients in _CLIENTS),
        ),
        [
            (
                name,
                *(f"{found.median(by_name[name, clients], 'rate'):,.0f}" for clients in _CLIENTS),
                *(
                    f"{found.median(by_name[name, clients], 'rate') / found.median(by_name[reference, clients], 'rate'):.2f}"
                    for clients in _CLIENTS
                ),
            )
            for name in names
        ],
    )
