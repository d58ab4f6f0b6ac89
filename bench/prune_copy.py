"""How long does it take to prune a thread of thousands of checkpoints, and to copy it?

The official saver keeps the latest checkpoint of each namespace, this one the last five. The official saver cannot copy.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from bench import peers
from bench.harness import Lab, Table, Verdict, Work
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

    def timed(work: Callable[[Saver], Awaitable[None]]) -> Work:
        async def measure(saver: Saver, _: str) -> dict[str, float]:
            await write_thread(saver, "thread", states, updates)
            started = time.perf_counter()
            await work(saver)
            return {"seconds": time.perf_counter() - started}

        return measure

    async def prune_ours(saver: Saver) -> None:
        await saver.aprune(["thread"], keep_last=_KEPT)  # type: ignore[call-arg]  # not in LangGraph's interface

    async def prune_theirs(saver: Saver) -> None:
        await saver.aprune(["thread"], strategy="keep_latest")

    async def copy(saver: Saver) -> None:
        await saver.acopy_thread("thread", "copy")

    pruned = await lab.collect(
        "prune", [(peers.PGCAIRN, timed(prune_ours)), (peers.OFFICIAL, timed(prune_theirs))]
    )
    copied = await lab.collect("copy", [(peers.PGCAIRN, timed(copy))])
    copy_seconds = copied.median(peers.PGCAIRN, "seconds")
    lab.tables.append(
        Table(
            f"One thread of {_CHECKPOINTS:,} checkpoints, seconds",
            ("saver", "prune", "copy"),
            [
                (
                    peers.PGCAIRN.label,
                    f"{pruned.median(peers.PGCAIRN, 'seconds'):.3f}",
                    f"{copy_seconds:.3f}",
                ),
                (peers.OFFICIAL.label, f"{pruned.median(peers.OFFICIAL, 'seconds'):.3f}", ""),
            ],
        )
    )
    work = f"pruning a thread of {_CHECKPOINTS:,} checkpoints"
    lab.judge_figure(work, pruned, "seconds", peers.PGCAIRN, peers.OFFICIAL, _TARGET_PRUNE, "s")
    lab.verdicts.append(
        Verdict(
            f"copying a thread of {_CHECKPOINTS:,} checkpoints",
            peers.PGCAIRN.label,
            copy_seconds,
            "the bound",
            _MOST_COPY_SECONDS,
            1.0,
            "s",
            at_most=True,
        )
    )
