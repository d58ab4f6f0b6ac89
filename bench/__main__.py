"""The benchmarks' command line.

    python -m bench [all]                 everything
    python -m bench list                  the questions
    python -m bench run NAME ...          some

Without ``--dsn`` a durable PostgreSQL of its own is started and removed afterwards. With it, the role must be allowed to
create databases; each measurement has one of its own. Prints Markdown and writes one JSON file a bench.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

from bench import BENCHES, machine, report, server
from bench.harness import Lab


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"bench.{name}")


def _question(module: ModuleType) -> str:
    return (module.__doc__ or "").strip().splitlines()[0]


def _needs_server(module: ModuleType) -> bool:
    return getattr(module, "NEEDS_SERVER", True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns 1 if a target was not met."""
    options = _parse(arguments)
    if options.action == "list":
        for name in BENCHES:
            print(f"{name:20} {_question(_module(name))}")
        return 0
    # Large states are warned of, and some benches ask for nothing else.
    logging.getLogger("pgcairn").setLevel(logging.ERROR)
    chosen = {name: _module(name) for name in options.names}
    here = machine.describe()
    options.out.mkdir(parents=True, exist_ok=True)
    all_met = True
    with ExitStack() as stack:
        dsn, there = "", None
        if any(map(_needs_server, chosen.values())):
            dsn = stack.enter_context(server.running(options.dsn))
            there = server.describe(dsn)
            if not there["is_durable"]:
                print(
                    "WARNING: the server is not durable; compare nothing with these figures.", file=sys.stderr
                )
        for name, module in chosen.items():
            lab = Lab(dsn, options.rounds, options.seconds, options.conversations)
            print(f"## {name}\n\n{_question(module)}\n", flush=True)
            started = time.perf_counter()
            machine.run(module.run(lab))
            result = _result(name, module, lab, options, here, there if _needs_server(module) else None)
            result["took_seconds"] = round(time.perf_counter() - started, 1)
            (options.out / f"{name}.json").write_text(
                json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
            )
            print(report.body(result) + "\n", flush=True)
            all_met = all_met and all(verdict.met for verdict in lab.verdicts)
    return 0 if all_met else 1


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Benchmarks: one file, one question."
    )
    parser.add_argument("action", nargs="?", choices=("all", "run", "list"), default="all")
    parser.add_argument("names", nargs="*", metavar="NAME", help="after run: which (see list)")
    parser.add_argument("--dsn", help="a running server; default: start one")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each contender")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of each")
    parser.add_argument("--conversations", type=Path, help="chats to take text from, as JSON lines")
    parser.add_argument("--out", type=Path, default=report.RESULTS, help="folder for the JSON files")
    options = parser.parse_intermixed_args(arguments)
    if options.action == "run" and not options.names:
        parser.error("run what? See list.")
    if options.action == "all":
        options.names = list(BENCHES)
    unknown = sorted(set(options.names) - set(BENCHES))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}. Known: {', '.join(BENCHES)}.")
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("--rounds must be at least 1 and --seconds positive.")
    return options


def _result(
    name: str,
    module: ModuleType,
    lab: Lab,
    options: argparse.Namespace,
    here: dict[str, Any],
    there: dict[str, Any] | None,
) -> dict[str, Any]:
    return {
        "bench": name,
        "question": _question(module),
        "command": f"python -m bench run {name}",
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "options": {
            "rounds": options.rounds,
            "seconds": options.seconds,
            "own_server": options.dsn is None,
            "own_sample": options.conversations is None,
        },
        "machine": here,
        "server": there,
        "verdicts": [
            asdict(verdict) | {"ratio": verdict.ratio, "met": verdict.met} for verdict in lab.verdicts
        ],
        "tables": [asdict(table) for table in lab.tables],
        "notes": lab.notes,
        "samples": lab.samples,
    }


if __name__ == "__main__":
    raise SystemExit(main())
