"""What a figure depends on besides the code: processor, disk, versions, commit."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

_PACKAGES = (
    "pgcairn",
    "langgraph",
    "langgraph-checkpoint",
    "langgraph-checkpoint-postgres",
    "langgraph-checkpoint-sqlite",
    "langchain-core",
    "psycopg",
    "psycopg-pool",
    "asyncpg",
    "aiosqlite",
    "uvloop",
    "orjson",
    "ormsgpack",
    "zstandard",
)
_SYNC_SECONDS = 0.5
_PAGE = b"\x5a" * 8192  # what PostgreSQL flushes at least

try:
    import uvloop

    EVENT_LOOP = "uvloop"
except ImportError:  # Windows
    uvloop = None
    EVENT_LOOP = "asyncio"


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine on the event loop that all contenders are measured on."""
    return asyncio.run(main) if uvloop is None else uvloop.run(main)


def describe() -> dict[str, Any]:
    """The machine, the versions and the commit."""
    return {
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.release()}",
        "flushes_per_second": round(flushes_per_second()),
        "python": platform.python_version(),
        "event_loop": EVENT_LOOP,
        "sqlite": sqlite3.sqlite_version,
        "packages": {name: _version(name) for name in _PACKAGES},
        "commit": _commit(),
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def flushes_per_second() -> float:
    """How often a page in the temporary folder can be overwritten and flushed, as pg_test_fsync does."""
    flush = getattr(os, "fdatasync", os.fsync)
    with tempfile.TemporaryFile() as file:
        file.write(_PAGE)
        flush(file.fileno())
        count, started = 0, time.perf_counter()
        while time.perf_counter() < started + _SYNC_SECONDS:
            file.seek(0)
            file.write(_PAGE)
            file.flush()
            flush(file.fileno())
            count += 1
        return count / (time.perf_counter() - started)


def _commit() -> str | None:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=Path(__file__).parent, capture_output=True, check=True, text=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", "../src", "../sql")
        return git("rev-parse", "HEAD") + ("+changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None
