"""``pgcairn demo``: what the saver does, shown on an embedded server.

This module only reads the command line and checks that the demo's packages are there, so that the other
commands do without them; ``demo_run`` is the demo.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    demo = subparsers.add_parser(
        "demo", help="an agent with 64 threads, a worker killed in mid-run, time travel, a table of savers"
    )
    demo.add_argument(
        "--conversations", type=Path, metavar="PATH", help="JSONL of conversations (default: a small sample)"
    )
    demo.add_argument(
        "--threads", type=_count, default=64, help="threads that run at once (default: 64)", metavar="N"
    )
    demo.add_argument(
        "--data-dir",
        type=Path,
        metavar="PATH",
        help="directory of the embedded server, kept with its databases (default: a temporary one, removed)",
    )
    demo.add_argument(
        "--dsn",
        # No default from the environment: what PGCAIRN_DSN names may be in production.
        help="use this server instead of an embedded one; its role must be allowed to create databases",
    )
    demo.add_argument(
        "--seconds-per-saver",
        type=_seconds,
        default=7.5,
        metavar="S",
        help="how long each saver is measured, over three rounds (default: 7.5)",
    )
    demo.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo: 0 if every check held."""
    try:
        import langgraph.checkpoint.postgres.aio
        import langgraph.graph  # noqa: F401
        import rich  # noqa: F401
    except ImportError as missing:
        print(f"pgcairn: The demo needs more packages ({missing}).", file=sys.stderr)
        print('Install them with: pip install "pgcairn[demo]"', file=sys.stderr)
        return 1
    from pgcairn.cli import demo_run

    return demo_run.run(demo_run.Options.from_arguments(arguments))


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < 3600:
        raise argparse.ArgumentTypeError("between 0 and 3600")
    return value
