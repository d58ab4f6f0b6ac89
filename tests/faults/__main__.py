"""All faults, for a minute each, with figures: ``python -m tests.faults [--seconds 60] [--doc docs/reliability.md]``.

Starts a durable server of its own. With ``--doc`` the tables between ``<!-- faults:NAME -->`` and ``<!-- /faults -->`` in
the page are made anew, so that no figure there is typed by hand.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import logging
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.faults.scenarios import SCENARIOS, Outcome, Stage
from tests.support.server import DURABLE, PostgresServer, Programs, ServerFolder

_BLOCK = re.compile(r"(<!-- faults:(\w+) -->\n).*?(<!-- /faults -->)", re.DOTALL)
_HEADER = (
    *("driver", "faults", "calls acknowledged", "errors to callers", "lost, torn, out of order"),
    *("longest wait", "retries", "sessions lost"),
)


def main() -> int:
    """Run, print, write; the exit code says whether all held."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--driver", default="psycopg,asyncpg", help="by commas (default: both)")
    parser.add_argument("--scenario", default=",".join(SCENARIOS), help="by commas (default: all)")
    parser.add_argument("--out", type=Path, help="a file for all figures as JSON")
    parser.add_argument("--doc", type=Path, help="a page whose tables are made anew from this run")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    found: dict[str, dict[str, Outcome]] = {}
    for name in arguments.scenario.split(","):
        for driver in arguments.driver.split(","):
            print(f"{name}, {driver} ...", file=sys.stderr, flush=True)
            outcome = _play(name, driver, arguments.seconds)
            found.setdefault(name, {})[driver] = outcome
            print(json.dumps({name: {driver: asdict(outcome)}}), file=sys.stderr, flush=True)
    about = _about(arguments.seconds)
    for name, outcomes in found.items():
        print(f"\n{name}\n\n{_table(outcomes)}")
    if arguments.out is not None:
        result = {
            **about,
            "scenarios": {
                name: {driver: asdict(outcome) for driver, outcome in outcomes.items()}
                for name, outcomes in found.items()
            },
        }
        arguments.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if arguments.doc is not None:
        _fill(arguments.doc, found, about)
    failed = any(outcome.problems or outcome.errors for each in found.values() for outcome in each.values())
    return int(failed)


def _play(name: str, driver: str, seconds: float) -> Outcome:
    folder = ServerFolder(Programs.find())
    try:
        server = PostgresServer(folder, DURABLE)
        server.start()
        try:
            dsn = server.dsn(server.create_database())
            return asyncio.run(_await(name, Stage(server, dsn, driver, seconds)))
        finally:
            server.stop("immediate")
    finally:
        folder.remove()


async def _await(name: str, stage: Stage) -> Outcome:
    return await SCENARIOS[name](stage)


def _about(seconds: float) -> dict[str, Any]:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    )
    packages = ("pgcairn", "psycopg", "asyncpg", "langgraph-checkpoint")
    return {
        "seconds": seconds,
        "python": platform.python_version(),
        "system": platform.system(),
        "packages": {name: importlib.metadata.version(name) for name in packages},
        "commit": commit.stdout.strip(),
    }


def _table(outcomes: dict[str, Outcome]) -> str:
    rows = [
        (
            driver,
            f"{outcome.faults:,}",
            f"{outcome.acknowledged:,}",
            _sum(outcome.errors),
            f"{len(outcome.problems)}",
            f"{outcome.longest_wait_seconds:.2f} s",
            f"{outcome.retries:,}",
            f"{outcome.sessions_lost:,}",
        )
        for driver, outcome in outcomes.items()
    ]
    names = list(dict.fromkeys(name for outcome in outcomes.values() for name in outcome.figures))
    parts = [_markdown(_HEADER, rows)]
    if names:
        figures = [
            (
                driver,
                *(
                    f"{outcome.figures[name]:,.3g}"
                    if outcome.figures[name] < 100
                    else f"{outcome.figures[name]:,.0f}"
                    for name in names
                ),
            )
            for driver, outcome in outcomes.items()
        ]
        parts.append(_markdown(("driver", *names), figures))
    return "\n\n".join(parts)


def _sum(errors: dict[str, int]) -> str:
    return str(sum(errors.values()))


def _markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(header)} |", f"| --- |{' ---: |' * (len(header) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _fill(page: Path, found: dict[str, dict[str, Outcome]], about: dict[str, Any]) -> None:
    def made(match: re.Match[str]) -> str:
        name = match[2]
        if name == "about":
            packages = ", ".join(f"{each} {number}" for each, number in about["packages"].items())
            text = (
                f"`python -m tests.faults --seconds {about['seconds']:g} --doc docs/reliability.md`: Python "
                f"{about['python']} on {about['system']}, {packages}, commit {about['commit']}."
            )
        elif name in found:
            text = _table(found[name])
        else:
            return match[0]
        return f"{match[1]}{text}\n{match[3]}"

    page.write_text(_BLOCK.sub(made, page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
