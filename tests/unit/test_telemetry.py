"""Percentiles and the copy of the counters."""

from __future__ import annotations

import dataclasses

from pgcairn.telemetry import Counters, Latencies, Stats, snapshot


def test_percentiles_are_samples() -> None:
    latencies = Latencies()
    assert latencies.percentiles(0.5, 0.99) == (0.0, 0.0)
    latencies.observe(3.0)
    assert latencies.percentiles(0.0, 0.5, 1.0) == (3.0, 3.0, 3.0)
    for sample in range(1, 101):
        latencies.observe(float(sample))
    latencies = Latencies()
    for sample in reversed(range(1, 101)):
        latencies.observe(float(sample))
    assert latencies.percentiles(0.0, 0.01, 0.5, 0.95, 0.99, 1.0) == (1.0, 1.0, 50.0, 95.0, 99.0, 100.0)


def test_only_the_last_samples_count() -> None:
    latencies = Latencies()
    latencies.observe(1e9)
    for _ in range(2048):
        latencies.observe(1.0)
    assert latencies.percentiles(1.0) == (1.0,)


def test_statistics_are_a_copy_of_every_counter() -> None:
    counters = Counters()
    plain = [field.name for field in dataclasses.fields(Counters) if field.type == "int"]
    for number, name in enumerate(plain, 1):
        setattr(counters, name, number)
    counters.write_latency.observe(0.25)
    counters.read_latency.observe(0.5)
    stats = snapshot(counters, pool_size=5, pool_idle=4, base_cache_bytes=3, base_cache_entries=2)
    for number, name in enumerate(plain, 1):
        if name != "batch_rows_total":
            assert getattr(stats, name) == number
    assert stats.batch_rows_mean == counters.batch_rows_total / counters.batches
    assert (stats.write_p50_seconds, stats.write_p99_seconds, stats.read_p95_seconds) == (0.25, 0.25, 0.5)
    assert (stats.pool_size, stats.pool_idle) == (5, 4)
    assert (stats.base_cache_bytes, stats.base_cache_entries) == (3, 2)
    nothing = snapshot(Counters(), pool_size=0, pool_idle=0, base_cache_bytes=0, base_cache_entries=0)
    assert nothing.batch_rows_mean == 0.0
    assert dataclasses.fields(Stats)
    counters.reads = 99
    assert stats.reads != 99
