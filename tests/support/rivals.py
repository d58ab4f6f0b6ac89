"""A process that works on threads which others work on at the same time: ``python -m tests.support.rivals KIND SEED ROUNDS``.

The DSN is in ``RIVALS_DSN``. A writer ends after its rounds; a pruner goes on until its standard input is closed. Either
fails if it reads anything that was not written whole.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
import sys
from typing import Any

from pgcairn import AsyncPostgresSaver
from tests.support.savers import config, listed

THREADS = [f"thread-{number}" for number in range(3)]
# Less than the threads need, so that versions are forgotten now and then.
_CACHE_BYTES = 300_000


def _digest(messages: list[str]) -> str:
    return hashlib.sha256("\0".join(messages).encode()).hexdigest()


def _checked(found: Any) -> list[str]:
    messages: list[str] = found.checkpoint["channel_values"]["messages"]
    assert _digest(messages) == found.metadata["digest"], found.config
    return messages


async def write(saver: AsyncPostgresSaver, seed: int, rounds: int) -> None:
    """Let conversations grow, shrink now and then, and branch."""
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.base.id import uuid6

    draw = random.Random(seed)
    for number in range(rounds):
        where: Any = config(draw.choice(THREADS))
        # Sometimes without looking: then it goes on from what this process remembers.
        found = await saver.aget_tuple(where) if draw.random() < 0.8 else None
        messages = [] if found is None else list(_checked(found))
        version: Any = None if found is None else found.checkpoint["channel_versions"]["messages"]
        where = where if found is None else found.config
        for step in range(draw.randrange(1, 5)):
            if draw.random() < 0.05:
                messages = messages[len(messages) // 2 :]
            text = "".join(draw.choices("abcdefgh ", k=draw.randrange(100, 600)))
            messages = [*messages, f"{seed} {number} {step} {text}"][-60:]
            version = saver.get_next_version(version, None)
            checkpoint = empty_checkpoint()
            checkpoint["id"] = str(uuid6())
            checkpoint["channel_values"] = {"messages": messages}
            checkpoint["channel_versions"] = {"messages": version}
            meta: Any = {"source": "loop", "step": step, "parents": {}, "digest": _digest(messages)}
            where = await saver.aput(where, checkpoint, meta, {"messages": version})
            await saver.aput_writes(where, [("messages", messages[-1])], "task")


async def prune(saver: AsyncPostgresSaver, seed: int) -> None:
    """Prune, copy and read until nobody wants it any more."""
    draw = random.Random(seed)
    ended = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    number = 0
    while not ended.done():
        number += 1
        await saver.aprune(draw.sample(THREADS, 2), keep_last=draw.randrange(1, 4))
        source = draw.choice(THREADS)
        if number % 5 == 0 and await saver.aget_tuple(config(source)) is not None:
            await saver.acopy_thread(source, f"copy-{seed}-{number}")
        for each in await listed(saver, config(source, None)):
            _checked(each)
    await ended


async def main(kind: str, seed: int, rounds: int) -> None:
    """Work."""
    async with AsyncPostgresSaver.from_conn_string(
        os.environ["RIVALS_DSN"], base_cache_bytes=_CACHE_BYTES
    ) as saver:
        await (write(saver, seed, rounds) if kind == "write" else prune(saver, seed))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
