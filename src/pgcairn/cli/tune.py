"""``pgcairn tune``: short measured runs on a database, and the settings that follow from them.

Writes only into a schema of its own, which it drops. Measures what the server and the way to it cost, lets
``search`` choose the settings, and then offers the target load to what was chosen.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgcairn.cli import plots
from pgcairn.cli.event_loop import run_loop
from pgcairn.cli.schema import dsn_of
from pgcairn.cli.scratch import ServerLimits, scratch_schema, server_limits
from pgcairn.cli.search import Axis, Curve, search, sweep
from pgcairn.cli.tables import table
from pgcairn.cli.workload import Measured, Work, Workload
from pgcairn.errors import InvalidInput
from pgcairn.saver import AsyncPostgresSaver
from pgcairn.settings import Settings
from pgcairn.telemetry import Stats

_PINGS = 50
_LONE_REQUESTS_SECONDS = 1.0
# A process should not be planned for more than this part of what it can do at most (guess).
_HEADROOM = 0.7
# From here on a process's one core counts as used up.
_CPU_IS_FULL = 0.85
_WAIT_FOR_SESSIONS_SECONDS = 0.005


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    tune = subparsers.add_parser(
        "tune",
        help="find settings for a database and a load by short measured runs",
        description="Measures on a schema of its own, which it drops, for about two minutes. Changes nothing else. "
        "A request is a read of the latest state and --steps supersteps.",
    )
    add_trial(tune)
    tune.add_argument(
        "--target-rps",
        type=_positive,
        required=True,
        help="requests per second to be served, over all processes",
    )
    tune.add_argument(
        "--sweep", action="store_true", help="also measure every combination, and say how the choice compares"
    )
    tune.set_defaults(run=run)


def add_trial(parser: argparse.ArgumentParser) -> None:
    """Add the options of commands that measure on the user's database."""
    parser.add_argument("--dsn", help="connection string (default: the environment variable PGCAIRN_DSN)")
    parser.add_argument("--driver", choices=("psycopg", "asyncpg"), default="psycopg")
    parser.add_argument(
        "--conversations",
        type=Path,
        help="JSONL of your conversations (docs/tuning.md); default: invented ones",
    )
    parser.add_argument(
        "--state-bytes", type=_positive, default=8000, help="size of invented states (default: 8000)"
    )
    parser.add_argument("--steps", type=_positive, default=3, help="supersteps of a request (default: 3)")
    parser.add_argument("--callers", type=_positive, default=64, help="concurrent callers (default: 64)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement (default: 1)")
    parser.add_argument("--rounds", type=_positive, default=3, help="measurements of each point (default: 3)")
    parser.add_argument("--out", type=Path, help="folder for JSON, Markdown and plots")


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 on")
    return number


def workload_of(arguments: argparse.Namespace) -> Workload:
    """The work that the options describe.

    Raises:
        InvalidInput: The file of conversations cannot be used.
    """
    if arguments.conversations is not None:
        return Workload.from_file(arguments.conversations, arguments.steps)
    return Workload.invented(arguments.state_bytes, arguments.steps)


def trial_dsn(arguments: argparse.Namespace) -> str:
    """The connection string of a trial, with everything that can be checked before measuring.

    Raises:
        InvalidInput: There is none, or plots were asked for and cannot be drawn.
    """
    import os

    arguments.dsn = arguments.dsn or os.environ.get("PGCAIRN_DSN")
    dsn = dsn_of(arguments)
    if dsn.startswith("embedded:"):
        raise InvalidInput(
            "Trials need the connection string of a running server.",
            hint="`pgcairn server start embedded:///path` prints one.",
        )
    if arguments.out is not None:
        plots.check()
        arguments.out.mkdir(parents=True, exist_ok=True)
    return dsn


@dataclass(frozen=True)
class Costs:
    """What a lone caller pays.

    Attributes:
        ping_seconds: A round trip with nothing to do.
        write_seconds: A pending write, committed.
        request_seconds: A whole request.
        request_cpu_seconds: CPU of this process for it.
        state_bytes: Mean size of a state, serialized.
    """

    ping_seconds: float
    write_seconds: float
    request_seconds: float
    request_cpu_seconds: float
    state_bytes: int

    @property
    def commit_seconds(self) -> float:
        """What the server takes to make a small write durable."""
        return max(0.0, self.write_seconds - self.ping_seconds)


@dataclass(frozen=True)
class Recommendation:
    """What was found.

    Attributes:
        settings: The choice.
        capacity: What it serves at most.
        stats: What the saver counted meanwhile.
        offered: What the target load met, as far as one process is to serve it.
        curves: How each setting was chosen.
        costs: Of a lone caller.
        limits: Of the server.
        processes: How many are needed for the target.
    """

    settings: Settings
    capacity: Measured
    stats: Stats
    offered: Measured
    curves: Sequence[Curve]
    costs: Costs
    limits: ServerLimits
    target_per_second: int
    steps: int

    @property
    def processes(self) -> int:
        """Processes that the target needs, with headroom."""
        return max(1, math.ceil(self.target_per_second / (_HEADROOM * self.capacity.per_second)))

    @property
    def pools_that_fit(self) -> int:
        """Pools of this size that fit into ``max_connections``."""
        return self.limits.pools_that_fit(self.settings.max_size)

    def changed(self) -> dict[str, Any]:
        """The settings that differ from the defaults, by name."""
        default = Settings()
        return {
            field.name: getattr(self.settings, field.name)
            for field in dataclasses.fields(Settings)
            if getattr(self.settings, field.name) != getattr(default, field.name)
        }

    def bottleneck(self) -> str:
        """What limits the throughput, in a sentence."""
        cpu = self.capacity.cpu_fraction
        if cpu >= _CPU_IS_FULL:
            return (
                f"This process's CPU: {cpu:.0%} of the one core that a process can use ({self.capacity.cpu_ms:.2f} ms a "
                "request). More processes serve more."
            )
        if self.stats.session_wait_p95_seconds > _WAIT_FOR_SESSIONS_SECONDS:
            return f"Sessions: callers wait {self.stats.session_wait_p95_seconds * 1e3:.1f} ms for one (p95). Raise max_size."
        trips = 2 * self.steps + 1
        if trips * self.costs.ping_seconds > 0.5 * self.costs.request_seconds:
            return (
                f"The way to the server: a request makes {trips} round trips of {self.costs.ping_seconds * 1e3:.2f} ms one "
                "after the other. More concurrent callers serve more; a server nearby answers sooner."
            )
        return (
            f"The server (its CPU, or its disk: a commit takes {self.costs.commit_seconds * 1e3:.2f} ms): this process used "
            f"{cpu:.0%} of a core and waited for the rest. More processes on this server will not serve much more."
        )


def run(arguments: argparse.Namespace) -> int:
    """Tune, and print what was found."""
    dsn = trial_dsn(arguments)
    workload = workload_of(arguments)
    return run_loop(_tune(dsn, workload, arguments))


async def _tune(dsn: str, workload: Workload, arguments: argparse.Namespace) -> int:
    limits = await server_limits(dsn)
    async with scratch_schema(dsn) as schema:
        start = Settings(schema=schema, driver=arguments.driver, application_name="pgcairn tune")

        async def measure(settings: Settings) -> float:
            _, found = await _closed(dsn, settings, workload, arguments)
            return found.per_second

        _say(f"{workload.name}; {workload.steps} supersteps a request; PostgreSQL {limits.version}")
        costs = await _costs(dsn, start, workload)
        chosen, curves = await search(measure, start, arguments.rounds, _announce)
        stats, capacity = await _closed(dsn, chosen, workload, arguments, times=3)
        needed = max(1, math.ceil(arguments.target_rps / (_HEADROOM * capacity.per_second)))
        _say(f"offering {arguments.target_rps / needed:,.0f} requests/s ...")
        async with AsyncPostgresSaver.from_conn_string(dsn, settings=chosen) as saver:
            work = Work(saver, workload)
            await work.closed(4, 0.5)
            offered = await work.open(arguments.target_rps / needed, max(3.0, 3 * arguments.seconds))
        default = Settings()
        found = Recommendation(
            settings=chosen.replace(
                schema=default.schema, application_name=default.application_name, min_size=default.min_size
            ),
            capacity=capacity,
            stats=stats,
            offered=offered,
            curves=curves,
            costs=costs,
            limits=limits,
            target_per_second=arguments.target_rps,
            steps=arguments.steps,
        )
        report = _report(found)
        if arguments.sweep:
            _say("measuring every combination ...")
            best, best_rate, chosen_rate, points = await sweep(measure, chosen, arguments.rounds)
            report += (
                f"\n\nFull sweep of {points} points: the best, {_short(best)}, serves {best_rate:,.0f} requests/s; the "
                f"recommendation {chosen_rate:,.0f} in the same run: {chosen_rate / best_rate:.0%} of it."
            )
    print(report)
    if arguments.out is not None:
        _write(arguments.out, found, report)
    return 0


async def _closed(
    dsn: str, settings: Settings, workload: Workload, arguments: argparse.Namespace, *, times: int = 1
) -> tuple[Stats, Measured]:
    async with AsyncPostgresSaver.from_conn_string(dsn, settings=settings) as saver:
        await saver.setup()
        found = await Work(saver, workload).closed(
            arguments.callers, times * arguments.seconds, warm_up_seconds=0.5 * arguments.seconds
        )
        return saver.stats(), found


async def _costs(dsn: str, settings: Settings, workload: Workload) -> Costs:
    async with AsyncPostgresSaver.from_conn_string(dsn, settings=settings) as saver:
        await saver.setup()
        pings = [await saver.ping() for _ in range(_PINGS)]
        config: Any = {"configurable": {"thread_id": "cost", "checkpoint_ns": "", "checkpoint_id": "1"}}
        for number in range(_PINGS):
            await saver.aput_writes(config, [("messages", "a write")], f"task-{number}")
        write_seconds = saver.stats().write_p50_seconds
        lone = await Work(saver, workload).closed(1, _LONE_REQUESTS_SECONDS, warm_up_seconds=0.2)
    return Costs(
        ping_seconds=statistics.median(pings),
        write_seconds=write_seconds,
        request_seconds=lone.p50_seconds,
        request_cpu_seconds=lone.cpu_ms / 1e3,
        state_bytes=workload.state_bytes(),
    )


def _announce(axis: Axis) -> None:
    _say(f"trying {axis.name}: {', '.join(f'{each:g}' for each in axis.candidates)} ...")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _short(settings: Settings) -> str:
    names = ("lanes", "max_size", "max_batch_rows", "batch_delay_seconds", "compression_level")
    return ", ".join(f"{name}={getattr(settings, name):g}" for name in names)


def _report(found: Recommendation) -> str:
    costs, limits = found.costs, found.limits
    parts = [
        "## Recommended\n\n" + _snippet(found),
        "## Why\n\n"
        + "\n\n".join(
            f"{curve.name} (chosen: {curve.chosen:g})\n\n"
            + table(
                (curve.name, "requests/s"),
                [(f"{value:g}", f"{rate:,.0f}") for value, rate in sorted(curve.rates.items())],
            )
            for curve in found.curves
        ),
        "## What a lone caller pays\n\n"
        + table(
            ("what", "ms"),
            [
                ("round trip", f"{costs.ping_seconds * 1e3:.3f}"),
                ("making a small write durable", f"{costs.commit_seconds * 1e3:.3f}"),
                (f"request of {found.steps} supersteps", f"{costs.request_seconds * 1e3:.3f}"),
                ("of which CPU of this process", f"{costs.request_cpu_seconds * 1e3:.3f}"),
            ],
        )
        + f"\n\nStates have {costs.state_bytes:,} bytes on average, serialized.",
        "## What it serves\n\n"
        + table(
            ("load", "requests/s", "p50 ms", "p95 ms", "p99 ms", "CPU of this process"),
            [
                _line("as much as it can", found.capacity),
                _line(f"offered {found.offered.offered_per_second:,.0f}/s", found.offered),
            ],
        )
        + (
            "\n\nThe offered load could not be served and was given up."
            if found.offered.is_overloaded
            else ""
        ),
        "## What limits it\n\n" + found.bottleneck(),
        "## How many processes\n\n" + _processes(found),
    ]
    if not limits.commit_waits_for_disk:
        parts.append(
            "The server acknowledges commits before they are on disk (synchronous_commit or fsync is off): a crash loses the last ones."
        )
    return "\n\n".join(parts)


def _processes(found: Recommendation) -> str:
    limits, size = found.limits, found.settings.max_size
    text = (
        f"{found.target_per_second:,} requests/s need {found.processes} process(es) that are kept below {_HEADROOM:.0%} of what "
        f"they can do. max_connections={limits.max_connections}, {limits.reserved} of them reserved, {limits.sessions - 1} in use "
        f"by others: {found.pools_that_fit} pools of max_size={size} fit."
    )
    if found.processes > found.pools_that_fit:
        text += " That is too few: lower max_size, use a pooler, or raise max_connections."
    return text


def _snippet(found: Recommendation) -> str:
    changed = found.changed()
    if not changed:
        return "The defaults: `Settings()`."
    lines = "".join(f"    {name}={value!r},\n" for name, value in changed.items())
    return f"```python\nSettings(\n{lines})\n```"


def _line(name: str, found: Measured) -> tuple[str, ...]:
    latencies = (found.p50_seconds, found.p95_seconds, found.p99_seconds)
    return (
        name,
        f"{found.per_second:,.0f}",
        *(f"{each * 1e3:.1f}" for each in latencies),
        f"{found.cpu_fraction:.0%}",
    )


def _write(folder: Path, found: Recommendation, report: str) -> None:
    folder.joinpath("tune.md").write_text(f"# pgcairn tune\n\n{report}\n", encoding="utf-8")
    result = {
        "settings": found.changed(),
        "target_per_second": found.target_per_second,
        "processes": found.processes,
        "pools_that_fit": found.pools_that_fit,
        "bottleneck": found.bottleneck(),
        "capacity": dataclasses.asdict(found.capacity),
        "offered": dataclasses.asdict(found.offered),
        "costs": dataclasses.asdict(found.costs),
        "server": dataclasses.asdict(found.limits),
        "curves": [
            {
                "setting": each.name,
                "chosen": each.chosen,
                "rates": [list(pair) for pair in each.rates.items()],
            }
            for each in found.curves
        ],
    }
    folder.joinpath("tune.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    panels = [
        (each.name, {"": [(f"{value:g}", rate) for value, rate in sorted(each.rates.items())]})
        for each in found.curves
    ]
    drawn = plots.curves(folder / "tune", "What each setting does", panels, "requests/s")
    _say("written: " + ", ".join(str(each) for each in (folder / "tune.md", folder / "tune.json", *drawn)))
