"""``pgcairn bench``: this saver and its peers on the user's own database and data, in one run, by turns.

Writes only into schemas of its own, which it drops. A peer whose package is not installed is left out, and said so.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import statistics
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from psycopg.conninfo import make_conninfo

from pgcairn.cli import plots
from pgcairn.cli.event_loop import run_loop
from pgcairn.cli.scratch import scratch_schema, server_limits
from pgcairn.cli.tables import table
from pgcairn.cli.tune import add_trial, trial_dsn, workload_of
from pgcairn.cli.workload import Measured, Work, Workload
from pgcairn.saver import AsyncPostgresSaver
from pgcairn.settings import Settings
from pgcairn.storage.statements import statements_for

_OFFICIAL_POOL = 10
_CALLERS = (1, 16, 64, 256)

Open = Callable[[str, str], AbstractAsyncContextManager[BaseCheckpointSaver[Any]]]
"""Opens a saver on a connection string and a schema."""


@dataclass(frozen=True)
class Contender:
    """A saver to be measured, and how it is opened."""

    name: str
    open: Open


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    bench = subparsers.add_parser(
        "bench",
        help="compare this saver with the official one on your database and data",
        description="Measures on schemas of its own, which it drops. Changes nothing else. A request is a read of the "
        "latest state and --steps supersteps.",
    )
    add_trial(bench)
    bench.add_argument(
        "--peers",
        default="pgcairn,unbatched,asyncpg,official",
        help="which, by commas: pgcairn, unbatched (pipeline=False), asyncpg, official (default: all)",
    )
    bench.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measure, and print the table."""
    dsn = trial_dsn(arguments)
    workload = workload_of(arguments)
    return run_loop(_bench(dsn, workload, arguments))


async def _bench(dsn: str, workload: Workload, arguments: argparse.Namespace) -> int:
    limits = await server_limits(dsn)
    contenders = _contenders(arguments)
    counts = sorted({each for each in _CALLERS if each < arguments.callers} | {arguments.callers})
    found: dict[tuple[str, int], list[Measured]] = {}
    for callers in counts:
        for number in range(arguments.rounds):
            start = number % len(contenders)
            for each in (*contenders[start:], *contenders[:start]):
                print(f"{callers} callers: {each.name} ...", file=sys.stderr, flush=True)
                async with scratch_schema(dsn) as schema, each.open(dsn, schema) as saver:
                    work = Work(saver, workload)
                    measured = await work.closed(callers, arguments.seconds, 0.5 * arguments.seconds)
                    found.setdefault((each.name, callers), []).append(measured)
    report = _report(workload, limits.version, contenders, counts, found, arguments)
    print(report)
    if arguments.out is not None:
        _write(arguments.out, report, contenders, counts, found)
    return 0


def _contenders(arguments: argparse.Namespace) -> Sequence[Contender]:
    known = {
        "pgcairn": Contender(f"pgcairn ({arguments.driver})", _ours(arguments.driver)),
        "unbatched": Contender("pgcairn, pipeline=False", _ours(arguments.driver, pipeline=False)),
        "asyncpg": Contender("pgcairn (asyncpg)", _ours("asyncpg")),
        "official": Contender(f"official, pool of {_OFFICIAL_POOL}", _official),
    }
    chosen = [name.strip() for name in arguments.peers.split(",") if name.strip()]
    for name in chosen:
        if name not in known:
            from pgcairn.errors import InvalidInput

            raise InvalidInput(f"There is no peer {name!r}; known are {', '.join(known)}.")
    needs = {"asyncpg": "asyncpg", "official": "langgraph.checkpoint.postgres"}
    contenders: list[Contender] = []
    for name in chosen:
        if name in needs and not _is_installed(needs[name]):
            print(f"left out: {name} is not installed", file=sys.stderr)
        elif known[name] not in contenders and known[name].name not in {each.name for each in contenders}:
            contenders.append(known[name])
    return contenders


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _ours(driver: str, *, pipeline: bool = True) -> Open:
    @asynccontextmanager
    async def open_saver(dsn: str, schema: str) -> AsyncIterator[BaseCheckpointSaver[Any]]:
        settings = Settings(schema=schema, driver=driver, application_name="pgcairn bench")  # type: ignore[arg-type]
        async with AsyncPostgresSaver.from_conn_string(dsn, pipeline=pipeline, settings=settings) as saver:
            await saver.setup()
            yield saver

    return open_saver


@asynccontextmanager
async def _official(dsn: str, schema: str) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver as OfficialSaver
    from psycopg import AsyncConnection
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    # It knows no schemas: its tables are where the search path begins.
    async with await AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(statements_for(schema).script("create_schema").encode())
    pool: AsyncConnectionPool[AsyncConnection[dict[str, Any]]] = AsyncConnectionPool(
        make_conninfo(dsn, options=f"-c search_path={schema}"),
        min_size=_OFFICIAL_POOL,
        max_size=_OFFICIAL_POOL,
        kwargs={"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row},
        open=False,
    )
    async with pool:
        saver = OfficialSaver(pool)
        await saver.setup()
        yield saver


def _report(
    workload: Workload,
    server: str,
    contenders: Sequence[Contender],
    counts: Sequence[int],
    found: dict[tuple[str, int], list[Measured]],
    arguments: argparse.Namespace,
) -> str:
    rows = []
    last = contenders[-1]
    for callers in counts:
        base = _median(found[last.name, callers], "per_second")
        for each in contenders:
            measured = found[each.name, callers]
            rate = _median(measured, "per_second")
            rows.append(
                (
                    each.name,
                    str(callers),
                    f"{rate:,.0f}",
                    f"{min(one.per_second for one in measured):,.0f}–{max(one.per_second for one in measured):,.0f}",
                    f"{rate / base:.2f}" if base else "",
                    *(
                        f"{_median(measured, name) * 1e3:.1f}"
                        for name in ("p50_seconds", "p95_seconds", "p99_seconds")
                    ),
                    f"{_median(measured, 'cpu_ms'):.2f}",
                )
            )
    header = (
        *("saver", "callers", "requests/s", "lowest–highest", f"÷ {last.name}"),
        *("p50 ms", "p95 ms", "p99 ms", "client CPU ms"),
    )
    about = (
        f"{workload.name}, states of {workload.state_bytes():,} bytes on average; a request: one read, {workload.steps} supersteps. "
        f"PostgreSQL {server}, pgcairn {version('pgcairn')}, Python {sys.version.split()[0]}. Medians of {arguments.rounds} "
        f"measurements of {arguments.seconds:g} s, by turns."
    )
    return f"{about}\n\n{table(header, rows)}"


def _median(measured: Sequence[Measured], name: str) -> float:
    return float(statistics.median(getattr(each, name) for each in measured))


def _write(
    folder: Path,
    report: str,
    contenders: Sequence[Contender],
    counts: Sequence[int],
    found: dict[tuple[str, int], list[Measured]],
) -> None:
    folder.joinpath("bench.md").write_text(f"# pgcairn bench\n\n{report}\n", encoding="utf-8")
    result = [
        {"saver": name, "callers": callers, "measured": [dataclasses.asdict(each) for each in measured]}
        for (name, callers), measured in found.items()
    ]
    folder.joinpath("bench.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")

    def lines(name: str, factor: float) -> dict[str, list[tuple[str, float]]]:
        return {
            each.name: [
                (str(callers), factor * _median(found[each.name, callers], name)) for callers in counts
            ]
            for each in contenders
        }

    drawn = plots.curves(
        folder / "bench", "By concurrent callers", [("callers", lines("per_second", 1))], "requests/s"
    )
    drawn += plots.curves(
        folder / "bench-latency", "By concurrent callers", [("callers", lines("p95_seconds", 1e3))], "p95 ms"
    )
    names = ", ".join(str(each) for each in (folder / "bench.md", folder / "bench.json", *drawn))
    print(f"written: {names}", file=sys.stderr)
