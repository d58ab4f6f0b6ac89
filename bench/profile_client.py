"""Where does the client's CPU go?

py-spy samples the stacks of a client under the load of ``raw_supersteps``, in a process of its own; each sample belongs
to the innermost frame that a layer claims. A layer's time is its share of the samples times the client CPU of a
superstep, measured over the whole run. Time spent inside C belongs to the Python frame that called it.
"""

from __future__ import annotations

import asyncio
import re
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bench import child as processes
from bench import machine, peers, server
from bench.harness import Lab, Table, sample
from bench.loads import supersteps

_RUNS = ((peers.PGCAIRN, 64), (peers.PGCAIRN, 256))
_SAMPLES_PER_SECOND = 300
_MIN_SECONDS = 5.0
# Stacks begin here, or in a worker thread; what lies above is the start of the process.
_ROOTS = ("_profiled (bench/profile_client.py", "Thread._bootstrap (threading.py")
_PATH = re.compile(r"\(/.*/(?:site-packages|lib/python3\.\d+|src(?=/pgcairn/))/(.*):\d+\)$")
_OWN_PATH = re.compile(r"\(" + re.escape(f"{Path(__file__).parents[1]}/") + r"(.*):\d+\)$")

# The first match decides; a frame is "function (path)".
_LAYERS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (layer, re.compile(pattern))
    for layer, pattern in (
        ("harness", r"\(bench/"),
        ("compression", r"\(pgcairn/codec/compression\.py"),
        ("encoding, serializer", r"\((pgcairn/codec/|langgraph/checkpoint/serde/|ormsgpack)"),
        ("keys and intake", r"\((pgcairn/(intake|keys|saver|engine)\.py|langgraph/checkpoint/base/)"),
        ("coalescer", r"\(pgcairn/(coalescer|telemetry)\.py"),
        (
            "repository and packing",
            r"\(pgcairn/storage/|^(_pack|_texts|encode\w*|<lambda>|\w+\.dump) \(pgcairn/connection/psycopg",
        ),
        ("driver", r"\((psycopg|asyncpg|pgcairn/connection/)"),
        ("event loop and threads", r"\((uvloop|asyncio|concurrent|threading\.py|selectors\.py)"),
    )
)
_OTHER = "other"


async def run(lab: Lab) -> None:
    """Measure."""
    spy = _py_spy()
    if spy is None:
        lab.notes.append("Not measured: py-spy is not installed (pip install py-spy).")
        return
    seconds = max(_MIN_SECONDS, lab.seconds)
    columns: list[tuple[str, Mapping[str, int], float]] = []
    functions: dict[str, Counter[str]] = {}
    for peer, callers in _RUNS:
        async with server.fresh_database(lab.dsn) as dsn:
            stacks, cpu_ms = await asyncio.to_thread(_record, spy, dsn, peer, callers, seconds)
        title = f"{peer.label}, {callers}"
        columns.append((title, by_layer(stacks), cpu_ms))
        functions[title] = by_function(stacks)
        lab.samples[title] = {"layers": [dict(columns[-1][1])], "cpu_ms": [{"superstep": cpu_ms}]}
    names = [name for name, _ in _LAYERS] + [_OTHER]
    lab.tables.append(
        Table(
            "Client CPU by layer, µs per superstep (share)",
            ("layer", *(title for title, _, _ in columns)),
            [
                (name, *(_cell(found.get(name, 0) / sum(found.values()), cpu) for _, found, cpu in columns))
                for name in names
                if any(found.get(name) for _, found, _ in columns)
            ]
            + [("all", *(f"{cpu * 1e3:.0f}" for _, _, cpu in columns))],
        )
    )
    title, found, cpu_ms = columns[1]
    lab.tables.append(
        Table(
            f"The functions that take most: {title} threads, µs per superstep",
            ("function", "self"),
            [
                (f"`{function}`", _cell(count / sum(found.values()), cpu_ms))
                for function, count in functions[title].most_common(15)
            ],
        )
    )


def _cell(share: float, cpu_ms: float) -> str:
    return f"{share * cpu_ms * 1e3:.0f} ({share:.0%})"


def _py_spy() -> str | None:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def _record(
    spy: str, dsn: str, peer: peers.Peer, callers: int, seconds: float
) -> tuple[dict[tuple[str, ...], int], float]:
    with tempfile.TemporaryDirectory(prefix="pgcairn-profile-") as folder:
        stacks = Path(folder, "stacks")
        found = processes.call(
            __name__,
            dsn,
            [peer.label, str(callers), str(seconds)],
            under=[
                *(spy, "record", "--format", "raw", "--full-filenames", "--output", str(stacks)),
                *("--rate", str(_SAMPLES_PER_SECOND), "--"),
            ],
        )
        return parse(stacks.read_text()), found["cpu_ms"]


def parse(raw: str) -> dict[tuple[str, ...], int]:
    """Stacks below ``_ROOTS`` with their counts, from py-spy's raw format: ``frame;frame;frame count``."""
    found: Counter[tuple[str, ...]] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        frames = [
            _PATH.sub(r"(\1)", _OWN_PATH.sub(lambda own: f"({own[1].removeprefix('src/')})", frame))
            for frame in stack.split(";")
        ]
        below = next((number for number, frame in enumerate(frames) if frame.startswith(_ROOTS)), None)
        if below is not None:
            found[tuple(frames[below + 1 :])] += int(count)
    return dict(found)


def layer_of(stack: Iterable[str]) -> str:
    """The layer of the innermost frame that belongs to one."""
    for frame in reversed(tuple(stack)):
        for layer, pattern in _LAYERS:
            if pattern.search(frame):
                return layer
    return _OTHER


def by_layer(stacks: Mapping[tuple[str, ...], int]) -> Counter[str]:
    """Samples of each layer."""
    found: Counter[str] = Counter()
    for stack, count in stacks.items():
        found[layer_of(stack)] += count
    return found


def by_function(stacks: Mapping[tuple[str, ...], int]) -> Counter[str]:
    """Samples of each innermost function."""
    found: Counter[str] = Counter()
    for stack, count in stacks.items():
        if stack:
            found[stack[-1]] += count
    return found


async def _load(dsn: str, label: str, callers: int, seconds: float) -> dict[str, Any]:
    peer = next(peer for peer, _ in _RUNS if peer.label == label)
    async with peer.open(dsn) as saver:
        measured = await sample(saver, supersteps(callers), seconds)
    return {"cpu_ms": measured.cpu_ms, "rate": measured.rate}


def _profiled(dsn: str, label: str, callers: int, seconds: float) -> dict[str, Any]:
    found: dict[str, Any] = machine.run(_load(dsn, label, callers, seconds))
    return found


def child(dsn: str, label: str, callers: str, seconds: str) -> dict[str, Any]:
    """The process that is sampled."""
    return _profiled(dsn, label, int(callers), float(seconds))
