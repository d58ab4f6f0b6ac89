"""How long does it take to prune a thread of thousands of checkpoints, and to copy it?

The official saver keeps the latest checkpoint of each namespace, this one the last five. The official saver cannot copy.
"""

from __future__ import annotations

import time

from bench import peers
from bench.harness import Lab, Table, Verdict
from bench.loads import messages, write_thread
from bench.peers import Saver

_CHECKPOINTS = 5000
_FIRST_MESSAGES = 4
_STEPS_OF_A_MESSAGE = (
    500  # the list grows to 14 messages: large enough for rows, small enough to be written soon
)
_KEPT = 5
_TARGET_PRUNE = 1 / 3
_MOST_COPY_SECONDS = 1.0


async def run(lab: Lab) -> None:
    """Measure."""
    all_messages = messages(_FIRST_MESSAGES + _CHECKPOINTS // _STEPS_OF_A_MESSAGE, as_objects=False)
    states = [
        all_messages[: _FIRST_MESSAGES + number // _STEPS_OF_A_MESSAGE] for number in range(_CHECKPOINTS)
    ]
    updates = [state[-1] for state in states]

    async def ours(saver: Saver, _: str) -> dict[str, float]:
        await write_thread(saver, "thread", states, updates)
        started = time.perf_counter()
        await saver.acopy_thread("thread", "copy")
        copied = time.perf_counter()
        await saver.aprune(["thread"], keep_last=_KEPT)  # type: ignore[call-arg]  # not in LangGraph's interface
        return {"prune": time.perf_counter() - copied, "copy": copied - started}

    async def theirs(saver: Saver, _: str) -> dict[str, float]:
        await write_thread(saver, "thread", states, updates)
        started = time.perf_counter()
        await saver.aprune(["thread"], strategy="keep_latest")
        return {"prune": time.perf_counter() - started}

    found = await lab.collect("prune and copy", [(peers.PGCAIRN, ours), (peers.OFFICIAL, theirs)])
    copy = found.median(peers.PGCAIRN, "copy")
    lab.tables.append(
        Table(
            f"One thread of {_CHECKPOINTS:,} checkpoints, seconds",
            ("saver", "prune", "copy"),
            [
                (peers.PGCAIRN.label, f"{found.median(peers.PGCAIRN, 'prune'):.3f}", f"{copy:.3f}"),
                (peers.OFFICIAL.label, f"{found.median(peers.OFFICIAL, 'prune'):.3f}", ""),
            ],
        )
    )
    work = f"pruning a thread of {_CHECKPOINTS:,} checkpoints"
    lab.judge_figure(work, found, "prune", peers.PGCAIRN, peers.OFFICIAL, _TARGET_PRUNE, "s")
    lab.verdicts.append(
        Verdict(
            f"copying a thread of {_CHECKPOINTS:,} checkpoints",
            peers.PGCAIRN.label,
            copy,
            "the bound",
            _MOST_COPY_SECONDS,
            1.0,
            "s",
            at_most=True,
        )
    )
