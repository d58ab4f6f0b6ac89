"""What goes on beside the load, once a second: the service's ``/stats``, and the CPU of everybody.

CPU of a process that ended counts as it was last seen, so a killed session takes at most a second with it.
"""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson
import psutil

_INTERVAL_SECONDS = 1.0
_PATIENCE_SECONDS = 5.0

Processes = Callable[[], Iterable[psutil.Process]]


class CpuMeter:
    """Adds up the CPU of groups of processes that come and go."""

    def __init__(self, groups: Mapping[str, Processes]) -> None:
        self._groups = groups
        self._seen: dict[str, dict[tuple[int, float], float]] = {name: {} for name in groups}

    def read(self) -> dict[str, float]:
        """User and system seconds of each group so far."""
        for name, processes in self._groups.items():
            for process in processes():
                try:
                    times = process.cpu_times()
                    self._seen[name][process.pid, process.create_time()] = times.user + times.system
                except psutil.Error:
                    continue
        return {name: sum(seen.values()) for name, seen in self._seen.items()}


def with_children(process: psutil.Process) -> list[psutil.Process]:
    """A process and everything below it; nothing once it is gone."""
    try:
        return [process, *process.children(recursive=True)]
    except psutil.Error:
        return []


class Sampler:
    """Takes a sample a second until it is stopped.

    Attributes:
        samples: ``at`` is ``time.monotonic()``, ``cpu`` are seconds so far, ``services`` what each process said; a service that
            does not answer in five seconds says nothing.
    """

    def __init__(self, services: Iterable[str], meter: CpuMeter) -> None:
        self._services = list(services)
        self._meter = meter
        self._stopped = asyncio.Event()
        self.samples: list[dict[str, Any]] = []

    def stop(self) -> None:
        """Let ``run`` return after a last sample."""
        self._stopped.set()

    async def run(self) -> None:
        """Sample until stopped."""
        due = time.monotonic()
        while True:
            is_last = self._stopped.is_set()
            cpu = await asyncio.to_thread(self._meter.read)
            at = time.monotonic()
            said = await asyncio.gather(*(asyncio.to_thread(_stats, each) for each in self._services))
            self.samples.append({"at": at, "cpu": cpu, "services": said})
            if is_last:
                return
            due = max(due + _INTERVAL_SECONDS, time.monotonic())
            try:
                await asyncio.wait_for(self._stopped.wait(), due - time.monotonic())
            except asyncio.TimeoutError:
                continue


def _stats(address: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"{address}/stats", timeout=_PATIENCE_SECONDS) as answer:
            found: dict[str, Any] = orjson.loads(answer.read())
            return found
    except OSError:
        return {}
