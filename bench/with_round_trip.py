"""What is left of 256 threads' supersteps when the server is one millisecond away, or five?

The delay is made by ``bench.delay_proxy``, half of it in each direction, and measured before it is used. Without any,
the way goes through the proxy, too, which takes CPU time of the same machine, from all savers alike.
"""

from __future__ import annotations

import statistics
import time

import psycopg
from psycopg.conninfo import make_conninfo

from bench import delay_proxy, peers, server
from bench.harness import Lab
from bench.loads import supersteps

_PEERS = (peers.PGCAIRN, peers.PGCAIRN_SINGLE, peers.OFFICIAL)
_CALLERS = 256
_RTT_MS = (0.0, 1.0, 5.0)
_TARGETS = {1.0: 12.0}
_PROBES = 200


async def run(lab: Lab) -> None:
    """Measure."""
    for rtt_ms in _RTT_MS:
        await _at_distance(lab, rtt_ms)


async def _at_distance(lab: Lab, rtt_ms: float) -> None:
    with delay_proxy.running(server.tcp_or_socket(lab.dsn), rtt_ms) as port:

        def reach(dsn: str) -> str:
            return make_conninfo(dsn, host="127.0.0.1", port=port, sslmode="disable", gssencmode="disable")

        near, far = await _round_trip_ms(lab.dsn), await _round_trip_ms(reach(lab.dsn))
        lab.notes.append(
            f"Median of SELECT 1: {near:.2f} ms directly, {far:.2f} ms through the proxy with {rtt_ms:g} ms."
        )
        title = f"{_CALLERS} concurrent threads, {rtt_ms:g} ms of round trip"
        load = supersteps(_CALLERS)
        found = await lab.compare(title, [(peer, load) for peer in _PEERS], reach=reach)
    lab.rates(title, found, _PEERS, "supersteps", peers.OFFICIAL)
    if rtt_ms in _TARGETS:
        work = f"raw supersteps, {_CALLERS} threads, {rtt_ms:g} ms round trip"
        lab.judge_rate(work, found, peers.PGCAIRN, peers.OFFICIAL, _TARGETS[rtt_ms], "supersteps")


async def _round_trip_ms(dsn: str) -> float:
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        times = []
        for _ in range(_PROBES):
            started = time.perf_counter()
            await connection.execute("SELECT 1")
            times.append(time.perf_counter() - started)
        return statistics.median(times) * 1e3
