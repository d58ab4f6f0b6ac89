"""Writers and readers that go on through faults, and remember what was acknowledged.

Each task works on a thread of its own, as a graph does: a pending write, then the checkpoint that follows from it, now and then a
read, which must find what was acknowledged last, or what came after it and was never answered. States grow and are
trimmed, so that values are stored as edits of each other. What a state was can be computed from thread and
number, so nothing of it is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig

from pgcairn import AsyncPostgresSaver, PgcairnError
from pgcairn.operations.doctor import examine
from pgcairn.operations.doctor_report import Severity
from tests.support.savers import checkpoint, checkpoint_id, config, listed, place, put, version

_MOST_ITEMS = 30
# A thread ends after so many checkpoints and another one begins.
_THREAD_LENGTH = 100
_READ_EVERY = 3
_LIST_EVERY = 25


def state_of(thread_id: str, number: int) -> dict[str, Any]:
    """The channel values of a thread's checkpoint: a list that grows and is trimmed, and a number."""
    first = max(0, number - _MOST_ITEMS)
    return {
        "messages": [item_of(thread_id, each) for each in range(first, number + 1)],
        "number": number,
    }


def item_of(thread_id: str, number: int) -> str:
    """What a thread's superstep adds to its list."""
    draw = random.Random(f"{thread_id}/{number}")
    return f"{number} " + "".join(draw.choices("abcdefgh ", k=200))


@dataclass
class Story:
    """What happened to one thread.

    Attributes:
        acknowledged: Numbers of the checkpoints whose put returned.
        unanswered: Those whose put raised or was cancelled: they may be stored.
        written: Numbers of the checkpoints whose pending write returned.
    """

    acknowledged: set[int] = field(default_factory=set)
    unanswered: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    parents: dict[int, int | None] = field(default_factory=dict)

    def may_be_latest(self) -> set[int]:
        """What a read of the latest state may find."""
        last = max(self.acknowledged, default=0)
        return {last} | {each for each in self.unanswered if each > last}


class Load:
    """The tasks and what they saw.

    Args:
        saver: What they use.
        tasks: How many.
        pause_seconds: Longest pause of a task between supersteps; 0: none.
        name: Begins the names of all threads.
    """

    def __init__(
        self, saver: AsyncPostgresSaver, *, tasks: int = 24, pause_seconds: float = 0.03, name: str = "load"
    ) -> None:
        self.stories: dict[str, Story] = {}
        self.errors: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.longest_wait_seconds = 0.0
        self.last_answer_at = 0.0
        self._saver = saver
        self._tasks = tasks
        self._pause_seconds = pause_seconds
        self._name = name
        self._ending = False
        self._answer: asyncio.Event = asyncio.Event()

    @property
    def acknowledged(self) -> int:
        """Calls that returned: checkpoints and pending writes."""
        return sum(len(story.acknowledged) + len(story.written) for story in self.stories.values())

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Work for the length of the block; at its end every call is answered."""
        working = [asyncio.create_task(self._work(number), name="load") for number in range(self._tasks)]
        try:
            yield
        finally:
            self._ending = True
            await asyncio.gather(*working)

    async def answers(self, count: int = 1) -> None:
        """Wait until so many more calls have returned."""
        wanted = self.acknowledged + count
        while self.acknowledged < wanted:
            self._answer.clear()
            await self._answer.wait()

    async def _work(self, task: int) -> None:
        draw = random.Random(task)
        for thread in self._threads(task):
            story = self.stories[thread] = Story()
            where: RunnableConfig = config(thread)
            last: int | None = None
            for number in range(1, _THREAD_LENGTH + 1):
                if self._ending:
                    return
                story.parents[number] = last
                if last is not None and await self._write(story, thread, last, number):
                    story.written.add(number)
                if await self._put(story, thread, where, number):
                    where, last = config(thread, number=number), number
                if number % _READ_EVERY == 0:
                    await self._read(story, thread)
                if number % _LIST_EVERY == 0:
                    await self._list(thread)
                await asyncio.sleep(draw.uniform(0, self._pause_seconds))

    def _threads(self, task: int) -> Iterator[str]:
        number = 0
        while not self._ending:
            yield f"{self._name}-{task}-{number}"
            number += 1

    async def _write(self, story: Story, thread: str, last: int, number: int) -> bool:
        with self._answered():
            await self._saver.aput_writes(
                config(thread, number=last), [("messages", item_of(thread, number))], f"task-{number}"
            )
            return True
        return False

    async def _put(self, story: Story, thread: str, where: RunnableConfig, number: int) -> bool:
        what = checkpoint(
            number, state_of(thread, number), {"messages": version(number), "number": version(number)}
        )
        story.unanswered.add(number)
        with self._answered():
            await put(self._saver, where, what)
            story.unanswered.discard(number)
            story.acknowledged.add(number)
            return True
        return False

    async def _read(self, story: Story, thread: str) -> None:
        allowed = story.may_be_latest()
        with self._answered():
            found = await self._saver.aget_tuple(config(thread))
            number = 0 if found is None else found.checkpoint["channel_values"]["number"]
            if number not in allowed:
                self.wrong.append(f"{thread}: the latest is {number}, it should be one of {sorted(allowed)}")
            elif found is not None and found.checkpoint["channel_values"] != state_of(thread, number):
                self.wrong.append(f"{thread}: checkpoint {number} has another state")

    async def _list(self, thread: str) -> None:
        with self._answered():
            ids = [place(each)[2] for each in await listed(self._saver, config(thread), limit=5)]
            if ids != sorted(ids, reverse=True):
                self.wrong.append(f"{thread}: listed as {ids}")

    @contextlib.contextmanager
    def _answered(self) -> Iterator[None]:
        asked_at = time.monotonic()
        try:
            yield
        except PgcairnError as error:
            self.errors[f"{type(error).__name__}: {error.message[:100]}"] += 1
        else:
            self.last_answer_at = time.monotonic()
            self._answer.set()
        self.longest_wait_seconds = max(self.longest_wait_seconds, time.monotonic() - asked_at)

    async def missing(self, dsn: str, schema: str = "pgcairn") -> list[str]:
        """Look at everything with a new saver; say what is lost, torn or out of order. Empty: all is well."""
        problems = list(self.wrong)
        async with AsyncPostgresSaver.from_conn_string(dsn, schema=schema) as saver:
            for thread, story in self.stories.items():
                problems += await _compare(saver, thread, story)
            report = await examine(saver)
        problems += [
            f"doctor: {kind.value} ({count})"
            for kind, count in report.counts.items()
            if kind.severity is Severity.DAMAGE
        ]
        return problems


async def _compare(saver: AsyncPostgresSaver, thread: str, story: Story) -> list[str]:
    problems: list[str] = []
    found = {place(each)[2]: each for each in await listed(saver, config(thread))}
    numbers = {checkpoint_id(each): each for each in story.acknowledged | story.unanswered}
    problems += [f"{thread}: nobody put {each}" for each in found.keys() - numbers.keys()]
    for identity, number in sorted(numbers.items()):
        stored = found.get(identity)
        if stored is None:
            if number in story.acknowledged:
                problems.append(f"{thread}: acknowledged checkpoint {number} is lost")
            continue
        if stored.checkpoint["channel_values"] != state_of(thread, number):
            problems.append(f"{thread}: checkpoint {number} has another state")
        parent = story.parents[number]
        expected = None if parent is None else checkpoint_id(parent)
        named = stored.parent_config and stored.parent_config["configurable"]["checkpoint_id"]
        if named != expected:
            problems.append(f"{thread}: checkpoint {number} has the parent {named}, not {expected}")
    written = {task: value for each in found.values() for task, _, value in each.pending_writes or ()}
    for number in story.written:
        if written.get(f"task-{number}") != item_of(thread, number):
            problems.append(f"{thread}: the acknowledged write of checkpoint {number} is lost")
    return problems
