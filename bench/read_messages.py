"""How many latest states a second can be read, with twenty messages, and with hundreds that came one by one?

The second is the worst case of what is stored as edits of earlier versions: the thread stops at the version that rests on
the most of them.
"""

from __future__ import annotations

import psycopg

from bench import growth, peers, server
from bench.conversations import texts
from bench.harness import Lab
from bench.loads import latest_reads, write_thread, written
from bench.peers import Saver

_PEERS = (peers.PGCAIRN, peers.OFFICIAL)
_MESSAGES, _CALLERS, _THREADS = 20, 32, 64
_TARGET = 3.0
_LEAST, _MOST = 300, 600  # messages of the long thread
_TARGET_LONG = 1.0

# Versions count up from 1, and so does the number of messages.
_LONGEST_CHAIN_SQL = """
SELECT split_part(version, '.', 1)::bigint, coalesce(cardinality(chain), 0)
FROM pgcairn.channel_values
WHERE channel = 'messages' AND split_part(version, '.', 1)::bigint >= %s
ORDER BY 2 DESC, 1 DESC
LIMIT 1
"""


async def run(lab: Lab) -> None:
    """Measure."""
    await _many_callers(lab)
    await _long_thread(lab)


async def _many_callers(lab: Lab) -> None:
    title = f"{_CALLERS} concurrent callers, states of {_MESSAGES} messages"
    load = latest_reads(_CALLERS, threads=_THREADS)
    prepare = written(threads=_THREADS, checkpoints=5, message_count=_MESSAGES)
    found = await lab.compare(title, [(peer, load) for peer in _PEERS], prepare=prepare)
    lab.rates(title, found, _PEERS, "reads", peers.OFFICIAL)
    work = f"reading {_MESSAGES} messages, {_CALLERS} callers"
    lab.judge_rate(work, found, peers.PGCAIRN, peers.OFFICIAL, _TARGET, "reads")


async def _long_thread(lab: Lab) -> None:
    states = [state for state, _ in growth.chat(texts(lab.conversations), _MOST)]
    async with server.fresh_database(lab.dsn) as dsn, peers.PGCAIRN.open(dsn) as saver:
        await write_thread(saver, "thread-0", states)
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            row = await (await connection.execute(_LONGEST_CHAIN_SQL, (_LEAST,))).fetchone()
    assert row is not None
    count, bases = row

    async def prepare(saver: Saver) -> None:
        await write_thread(saver, "thread-0", states[:count])

    title = f"1 caller, a state of {count} messages that came one by one"
    load = latest_reads(1, threads=1)
    found = await lab.compare(title, [(peer, load) for peer in _PEERS], prepare=prepare)
    lab.rates(title, found, _PEERS, "reads", peers.OFFICIAL)
    work = f"reading {count} messages that came one by one"
    lab.judge_rate(work, found, peers.PGCAIRN, peers.OFFICIAL, _TARGET_LONG, "reads")
    lab.notes.append(f"The {count} messages are read from {bases + 1} frames.")
