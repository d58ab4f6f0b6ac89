"""The command ``pgcairn``: puts the groups of commands together and turns errors into exit codes.

A group is a module with ``register(subparsers)``; each of its commands sets ``run`` to a function from the
parsed arguments to an exit code. To add a group, add its module to ``COMMANDS``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any, Protocol

from pgcairn.cli import bench, demo, doctor, schema, server, tune
from pgcairn.errors import PgcairnError


class CommandModule(Protocol):
    """What a module of commands offers."""

    def register(self, subparsers: argparse._SubParsersAction[Any]) -> None:
        """Add the module's commands."""


COMMANDS: tuple[CommandModule, ...] = (schema, server, doctor, bench, tune, demo)


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="pgcairn", description="LangGraph state in PostgreSQL: commands for its operators."
    )
    parser.add_argument("--version", action="version", version=f"pgcairn {version('pgcairn')}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in COMMANDS:
        module.register(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0 fine, 1 an error that was printed, 130 Ctrl-C."""
    arguments = build_parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except PgcairnError as error:
        print(f"pgcairn: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
