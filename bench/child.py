"""A measurement in a process of its own, for what a process has only one of: its memory, its profile.

A bench calls ``call`` with its own name; the process calls ``child`` of that module with the connection string and the
arguments, and what it returns comes back.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_DSN_VARIABLE = "PGCAIRN_BENCH_DSN"  # not on a command line: it may hold a password


def call(module: str, dsn: str, arguments: Sequence[str], *, under: Sequence[str] = ()) -> Any:
    """Call ``child(dsn, *arguments)`` of a module in a new process.

    Args:
        under: A program that runs the process, with its options.
    """
    with tempfile.TemporaryDirectory(prefix="pgcairn-child-") as folder:
        answer = Path(folder, "answer")
        try:
            subprocess.run(
                [*under, sys.executable, "-m", "bench.child", module, str(answer), *arguments],
                cwd=Path(__file__).parents[1],
                env=os.environ | {_DSN_VARIABLE: dsn},
                check=True,
                capture_output=True,
            )
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{module}: {error.stderr.decode(errors='replace')}") from error
        return json.loads(answer.read_text())


def main() -> None:
    """The new process."""
    parser = argparse.ArgumentParser(description="Internal: a measurement in a process of its own.")
    parser.add_argument("module")
    parser.add_argument("answer", type=Path)
    parser.add_argument("arguments", nargs="*")
    options = parser.parse_args()
    found = importlib.import_module(options.module).child(os.environ[_DSN_VARIABLE], *options.arguments)
    options.answer.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
