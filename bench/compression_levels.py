"""Which zstd level suits chat text, and from which size on is a worker thread worth it?

Source of ``Settings.compression_level``, ``Settings.compress_in_thread_min_bytes`` and of the faster level for small
payloads (``pgcairn/codec/compression.py``). Input: every conversation's whole list of messages, and the body of a
checkpoint, as the serializer makes them; ``--conversations`` names a file of more than the small sample.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Callable

import zstandard
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from bench import conversations
from bench.harness import Lab, Table
from bench.loads import text
from pgcairn.codec.checkpoint import encode_put
from pgcairn.codec.serde import Codec
from pgcairn.settings import Settings

NEEDS_SERVER = False

_LEVELS = (-7, -5, -3, -1, 1, 2, 3, 6, 9)
_SMALL_LEVELS = (-5, -3, -1, 1, 3)
_LARGE_BYTES = Settings().compress_in_thread_min_bytes
_MIN_TIMED_SECONDS = 0.02  # one timing repeats until then: a thousand ticks of the clock and more


async def run(lab: Lab) -> None:
    """Measure."""
    serde = JsonPlusSerializer()
    chats = conversations.load(lab.conversations)
    payloads = [serde.dumps_typed(chat)[1] for chat in chats]
    sizes = sorted(map(len, payloads))
    largest = max(payloads, key=len)
    body = _body(serde)
    lab.notes.append(
        f"{len(payloads)} conversations of {sizes[0]:,} to {sizes[-1]:,} bytes, median {statistics.median(sizes):,.0f}"
        + ("." if lab.conversations else " (the sample of the project).")
    )
    _levels(lab, "All conversations", payloads, _LEVELS)
    _levels(lab, f"The largest conversation, {len(largest):,} bytes", [largest], _LEVELS)
    _levels(lab, f"The body of a checkpoint, {len(body):,} bytes", [body], _SMALL_LEVELS)
    await _hand_over(lab, text(_LARGE_BYTES, seed=1).encode())  # chats repeated would compress too well


def _body(serde: JsonPlusSerializer) -> bytes:
    version = "00000000000000000000000000000009.0.3745401188473625"
    checkpoint = {
        "v": 4,
        "id": "1f000009-aaaa-6bbb-8ccc-ddddeeeeffff",
        "ts": "2026-01-01T00:00:00.000000+00:00",
        "channel_values": {"step": 7, "branch:to:agent": None},
        "channel_versions": {"messages": version, "step": version, "__start__": version},
        "versions_seen": {
            "__input__": {},
            "__start__": {"__start__": version},
            "agent": {"messages": version},
        },
        "updated_channels": ["messages"],
    }
    metadata = {"source": "loop", "step": 7, "parents": {}, "run_id": "0b1b64fc-3b2a-4a4f-9f8e-6a1c52f0d7aa"}
    codec = Codec(serde, Settings())
    return encode_put(codec, 1024, None, checkpoint, metadata, {}, ("thread", "")).body


def _timed(work: Callable[[], object]) -> float:
    count, started = 0, time.perf_counter()
    while (spent := time.perf_counter() - started) < _MIN_TIMED_SECONDS:
        work()
        count += 1
    return spent / count


def _levels(lab: Lab, title: str, payloads: list[bytes], levels: tuple[int, ...]) -> None:
    """Compress payloads at each level, level after level in every round."""
    compressors = {
        level: zstandard.ZstdCompressor(level=level, write_checksum=True, write_content_size=True)
        for level in levels
    }
    opener = zstandard.ZstdDecompressor()
    seconds: dict[int, list[float]] = {level: [] for level in levels}
    opening: dict[int, list[float]] = {level: [] for level in levels}
    stored: dict[int, int] = {}
    for _ in range(lab.rounds):
        for level, compressor in compressors.items():
            frames = [compressor.compress(payload) for payload in payloads]
            stored[level] = sum(map(len, frames))
            seconds[level].append(
                _timed(lambda c=compressor: [c.compress(p) for p in payloads])  # type: ignore[misc]
            )
            opening[level].append(_timed(lambda f=frames: [opener.decompress(each) for each in f]))  # type: ignore[misc]
    total, count = sum(map(len, payloads)), len(payloads)
    lab.samples[title] = {
        str(level): [
            {"seconds": each, "bytes": total, "stored_bytes": stored[level]} for each in seconds[level]
        ]
        for level in levels
    }
    base_bytes, base_seconds = stored[1], statistics.median(seconds[1])
    lab.tables.append(
        Table(
            title,
            (
                "level",
                "bytes (mean)",
                "times smaller",
                "bytes ÷ level 1",
                "µs to compress",
                "time ÷ level 1",
                "µs to open",
            ),
            [
                (
                    str(level),
                    f"{stored[level] / count:,.0f}",
                    f"{total / stored[level]:.2f}",
                    f"{stored[level] / base_bytes:.2f}",
                    f"{statistics.median(seconds[level]) / count * 1e6:.1f}",
                    f"{statistics.median(seconds[level]) / base_seconds:.2f}",
                    f"{statistics.median(opening[level]) / count * 1e6:.1f}",
                )
                for level in levels
            ],
        )
    )


async def _hand_over(lab: Lab, large: bytes) -> None:
    loop = asyncio.get_running_loop()
    compressor = zstandard.ZstdCompressor(
        level=Settings().compression_level, write_checksum=True, write_content_size=True
    )
    compressing, handing = [], []
    for _ in range(lab.rounds):
        compressing.append(_timed(lambda: compressor.compress(large)))
        count, started = 0, time.perf_counter()
        while (spent := time.perf_counter() - started) < _MIN_TIMED_SECONDS:
            await loop.run_in_executor(None, int)
            count += 1
        handing.append(spent / count)
    lab.tables.append(
        Table(
            "Worker thread",
            ("what", "µs"),
            [
                ("hand-over to a worker thread and back", f"{statistics.median(handing) * 1e6:.0f}"),
                (
                    f"compressing {_LARGE_BYTES // 1024} KiB (compress_in_thread_min_bytes)",
                    f"{statistics.median(compressing) * 1e6:,.0f}",
                ),
            ],
        )
    )
