"""How many bytes does a chat take on disk and in the WAL, and does a turn cost more the longer it goes on?

One thread of ``loads.chat_graph``: three messages a turn. Disk is all tables, with indexes, after ``VACUUM FULL``; WAL is
what the server wrote from the first turn on. Sizes do not vary, so each saver is measured once, whatever ``--rounds``
says.
"""

from __future__ import annotations

from langchain_core.messages import HumanMessage

from bench import conversations, peers, server
from bench.harness import Figures, Lab, Meter, Table, Verdict
from bench.loads import chat_graph
from bench.peers import Saver

_PEERS = (peers.PGCAIRN, peers.OFFICIAL)
_FEW, _MANY = _MARKS = (200, 800)
_TARGET_DISK = {_FEW: 1 / 20, _MANY: 1 / 60}
_TARGET_WAL = 1 / 30
_TARGET_GROWTH = 1.3
_MB = 1e6


async def run(lab: Lab) -> None:
    """Measure."""

    async def chat(saver: Saver, dsn: str) -> dict[str, float]:
        said = conversations.texts(lab.conversations)
        graph = chat_graph(saver, Meter(), lambda: next(said))
        sizes: dict[str, float] = {}
        wal_before = await server.wal_position(dsn, after_checkpoint=True)
        wal = 0
        for turn in range(1, _MANY + 1):
            await graph.ainvoke(
                {"messages": [HumanMessage(next(said))]}, {"configurable": {"thread_id": "chat"}}
            )
            if turn in _MARKS:
                wal += await server.wal_position(dsn) - wal_before
                sizes[f"wal {turn}"] = wal / _MB
                sizes[f"disk {turn}"] = await server.disk_bytes(dsn) / _MB  # its own WAL does not count
                wal_before = await server.wal_position(dsn, after_checkpoint=True)
        return sizes

    found = await lab.collect("chat", [(peer, chat) for peer in _PEERS], rounds=1)
    _table(lab, found)
    for turns, target in _TARGET_DISK.items():
        work = f"disk of a chat of {turns} turns"
        lab.judge_figure(work, found, f"disk {turns}", peers.PGCAIRN, peers.OFFICIAL, target, "MB")
    work = f"WAL of a chat of {_FEW} turns"
    lab.judge_figure(work, found, f"wal {_FEW}", peers.PGCAIRN, peers.OFFICIAL, _TARGET_WAL, "MB")
    many, few = (found.median(peers.PGCAIRN, f"disk {turns}") / turns * _MB for turns in (_MANY, _FEW))
    lab.verdicts.append(
        Verdict(
            "disk of a turn",
            f"pgcairn, {_MANY} turns",
            many,
            f"pgcairn, {_FEW} turns",
            few,
            _TARGET_GROWTH,
            "bytes",
            at_most=True,
        )
    )


def _table(lab: Lab, found: Figures) -> None:
    median = found.median
    lab.tables.append(
        Table(
            "One thread, MB on disk and of WAL",
            (
                "saver",
                *(f"{what}, {turns} turns" for what in ("disk", "WAL") for turns in _MARKS),
                *(f"{what} bytes a turn, {turns} turns" for what in ("WAL", "disk") for turns in _MARKS),
                "ratio",
            ),
            [
                (
                    peer.label,
                    *(
                        f"{median(peer, f'{what} {turns}'):,.2f}"
                        for what in ("disk", "wal")
                        for turns in _MARKS
                    ),
                    *(
                        f"{median(peer, f'{what} {turns}') * _MB / turns:,.0f}"
                        for what in ("wal", "disk")
                        for turns in _MARKS
                    ),
                    f"{median(peer, f'disk {_MANY}') / _MANY / (median(peer, f'disk {_FEW}') / _FEW):.2f}",
                )
                for peer in _PEERS
            ],
        )
    )
