"""The load test's command line.

    python -m loadtest [run]      one run: 200 requests a second for a minute
    python -m loadtest compare    pgcairn and the official saver in turn, under the same offered load
    python -m loadtest ceiling    the highest rate that each sustains with p95 up to 200 ms

Without ``--dsn`` a durable PostgreSQL of its own is started and removed afterwards. With it, the role must be allowed to
create databases; each run has one of its own. Prints Markdown; writes JSON, pictures and Locust's HTML report to ``--out``.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from bench import machine, server
from loadtest import database, plots, report, results, runner
from loadtest.ceiling import Search
from loadtest.service import SAVERS

_PACKAGES = (
    *("langgraph", "langgraph-checkpoint", "langgraph-checkpoint-postgres", "psycopg", "asyncpg"),
    *("locust", "starlette", "uvicorn", "httptools", "uvloop"),
)
_OFFICIAL = "official-pool"
# The targets: what a user of 200 requests a second would ask for.
_P95_MS = 100.0
_SERVED_SHARE = 0.99
_CEILING_P95_MS = 200.0
_CEILING_SERVED_SHARE = 0.98
_CEILING_RATIO = 3.0
_CEILING_START_RPS = 100.0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns 1 if a target was not met, 2 if an acknowledged turn is missing."""
    options = parse(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    here = machine.describe()
    with database.running(options.dsn) as found:
        there = server.describe(found.dsn)
        if not there["is_durable"]:
            print("WARNING: the server is not durable; compare nothing with these figures.", file=sys.stderr)
        work = {"run": _run, "compare": _compare, "ceiling": _ceiling}[options.action]
        runs, targets, notes = machine.run(work(found, options))
    result = {
        "name": options.name,
        "command": options.command,
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "machine": here,
        "packages": {name: _version(name) for name in _PACKAGES},
        "server": there,
        "targets": targets,
        "notes": notes,
        "runs": [results.as_json(run) for run in runs],
    }
    (options.out / f"{options.name}.json").write_text(
        json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    print(report.body(result))
    if any(run.figures.get("turns_missing") for run in runs):
        return 2
    return 0 if all(each["is_met"] for each in targets) else 1


Outcome = tuple[list[results.Run], list[dict[str, Any]], list[str]]


async def _run(found: database.Database, options: argparse.Namespace) -> Outcome:
    run = await _measure(found, _plan(options, options.saver), options, options.name)
    return [run], _targets(run), []


async def _compare(found: database.Database, options: argparse.Namespace) -> Outcome:
    savers = [options.saver, _OFFICIAL]
    runs = []
    for number in range(options.rounds):
        for saver in savers if number % 2 == 0 else savers[::-1]:
            name = f"{options.name}-{saver}-{number + 1}"
            runs.append(await _measure(found, _plan(options, saver), options, name))
    runs.sort(key=lambda run: savers.index(run.options["saver"]))
    ours = [run for run in runs if run.options["saver"] == options.saver]
    return runs, [target for run in ours for target in _targets(run)], []


async def _ceiling(found: database.Database, options: argparse.Namespace) -> Outcome:
    searches = {saver: Search(_CEILING_START_RPS) for saver in (options.saver, _OFFICIAL)}
    runs: dict[str, list[results.Run]] = {saver: [] for saver in searches}
    while any(search.next_rps() for search in searches.values()):
        for saver, search in searches.items():
            rps = search.next_rps()
            if rps is None:
                continue
            run = await runner.run(found, replace(_plan(options, saver), rps=rps))
            runs[saver].append(run)
            is_good = _is_sustained(run)
            search.told(rps, is_good)
            print(
                f"{saver}: {rps:g} RPS, p95 {run.figures['p95_ms']:.0f} ms, served {run.figures['served_rps']:.1f}, "
                f"{run.figures['failures']} failures: {'sustained' if is_good else 'too much'}",
                file=sys.stderr,
                flush=True,
            )
    ours, theirs = searches[options.saver].best_rps, searches[_OFFICIAL].best_rps
    ratio = ours / theirs if theirs else 0.0
    target = _target(
        f"highest sustained RPS, {options.saver} {ours:g} ÷ {_OFFICIAL} {theirs:g}",
        ratio,
        f"≥ {_CEILING_RATIO:g}",
        is_met=ratio >= _CEILING_RATIO,
    )
    note = (
        f"Sustained: p95 ≤ {_CEILING_P95_MS:g} ms, at least {_CEILING_SERVED_SHARE:.0%} served in time, no failure, no turn "
        f"missing, for {options.seconds:g} s. A rate that failed was tried a second time."
    )
    return [run for saver in searches for run in runs[saver]], [target], [note]


def _is_sustained(run: results.Run) -> bool:
    found = run.figures
    return bool(
        found["p95_ms"] <= _CEILING_P95_MS
        and found["served_rps"] >= _CEILING_SERVED_SHARE * found["offered_rps"]
        and not found["failures"]
        and not found["turns_missing"]
    )


async def _measure(
    found: database.Database, plan: runner.Plan, options: argparse.Namespace, name: str
) -> results.Run:
    path: Path = options.out / name
    run = await runner.run(found, plan, path.with_suffix(".html").resolve())
    plots.draw(run, path, f"{report.label(run.options)}, {plan.rps:g} requests a second")
    return run


def _targets(run: results.Run) -> list[dict[str, Any]]:
    found, options = run.figures, run.options
    name = report.label(options)
    made = [_target(f"{name}: failures", found["failures"], "0", is_met=not found["failures"])]
    if "turns_missing" in found:
        count = found["turns_missing"]
        made.append(_target(f"{name}: turns missing", count, "0", is_met=not count))
    if not options["faults"]:
        least = _SERVED_SHARE * options["rps"]
        made.append(
            _target(
                f"{name}: served RPS",
                found["served_rps"],
                f"≥ {least:g}",
                is_met=found["served_rps"] >= least,
            )
        )
        made.append(
            _target(f"{name}: p95 ms", found["p95_ms"], f"≤ {_P95_MS:g}", is_met=found["p95_ms"] <= _P95_MS)
        )
    return made


def _target(what: str, found: float, bound: str, *, is_met: bool) -> dict[str, Any]:
    return {"what": what, "found": found, "bound": bound, "is_met": is_met}


def _plan(options: argparse.Namespace, saver: str) -> runner.Plan:
    return runner.Plan(
        saver=saver,
        rps=options.rps,
        seconds=options.seconds,
        ramp_seconds=options.ramp,
        processes=options.processes,
        faults=options.faults,
        arrivals=options.arrivals,
        seed=options.seed,
        conversations=None if options.conversations is None else options.conversations.resolve(),
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """What was asked for; ``command`` is how to ask for it again."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest",
        description="A web service around an agent under load, and a look at what is stored.",
    )
    parser.add_argument("action", nargs="?", choices=("run", "compare", "ceiling"), default="run")
    parser.add_argument("--saver", choices=tuple(SAVERS), default="pgcairn")
    parser.add_argument("--driver", choices=("psycopg", "asyncpg"), default="psycopg", help="of pgcairn")
    parser.add_argument("--rps", type=float, default=200.0, help="requests a second to offer (run, compare)")
    parser.add_argument("--seconds", type=float, help="of each run (60; ceiling: 15)")
    parser.add_argument("--ramp", type=float, help="seconds in which the rate grows (10; ceiling: 5)")
    parser.add_argument("--processes", type=int, default=1, help="of the service")
    parser.add_argument("--faults", action="store_true", help="kill sessions, restart the server")
    parser.add_argument("--arrivals", choices=("constant", "poisson"), default="constant")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each saver (compare)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--conversations", type=Path, help="what is said, as JSON lines; default: made up")
    parser.add_argument("--dsn", help="a running server; default: start one")
    parser.add_argument("--out", type=Path, default=report.RESULTS)
    parser.add_argument("--name", help="of the files; default: what is done")
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = parser.parse_args(given)
    # What a reader has to type; where it was stored and on which server is not part of it.
    options.command = " ".join(["python -m loadtest", *_without(given, ("--out", "--dsn", "--name"))])
    if options.conversations is not None:
        options.command = options.command.replace(str(options.conversations), options.conversations.name)
    if options.driver == "asyncpg" and options.saver == "pgcairn":
        options.saver = "pgcairn-asyncpg"
    is_ceiling = options.action == "ceiling"
    options.seconds = options.seconds if options.seconds is not None else (15.0 if is_ceiling else 60.0)
    options.ramp = options.ramp if options.ramp is not None else (5.0 if is_ceiling else 10.0)
    if options.name is None:
        options.name = options.action
        if options.action == "run" and options.processes > 1:
            options.name = "processes"
        if options.faults:
            options.name = "faults" if options.action == "run" else f"{options.action}-faults"
    if (
        options.rps <= 0
        or options.seconds <= 0
        or options.ramp < 0
        or options.processes < 1
        or options.rounds < 1
    ):
        parser.error("--rps, --seconds, --processes and --rounds must be positive, --ramp not negative.")
    if options.processes > 1 and options.saver == "memory":
        parser.error("--saver memory shares nothing between processes.")
    if is_ceiling and options.saver == "memory":
        parser.error("--saver memory stores nothing that could be looked up.")
    return options


def _without(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    kept, skip = [], False
    for each in arguments:
        if skip:
            skip = False
        elif each in names:
            skip = True
        elif not each.startswith(tuple(f"{name}=" for name in names)):
            kept.append(each)
    return kept


if __name__ == "__main__":
    raise SystemExit(main())
