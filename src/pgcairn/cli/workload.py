"""The work that ``pgcairn bench`` and ``pgcairn tune`` give to savers: conversations, without a graph around them.

A *request* is what one turn of an agent asks of a saver: the latest state is read, then a few supersteps each store a write
and the checkpoint that follows from it, with one message more. Threads come and go as their conversations end.
Owns the work and how it is measured; knows nothing of settings or of output.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from pgcairn.cli.conversations import load_conversations
from pgcairn.errors import InvalidInput, PgcairnError

# A request that is not begun within this time of its turn is one too many: the load is above what can be served.
_HOPELESS_SECONDS = 5.0
# A message of the invented conversations, and how many there are of those.
_MESSAGE_CHARACTERS = 500
_INVENTED = 32


@dataclass(frozen=True)
class Workload:
    """Conversations, and how many supersteps a request has.

    Attributes:
        conversations: Each grows by one message with every superstep; it begins with ``first`` messages.
        steps: Supersteps of a request.
        first: Messages that a thread starts with.
        name: Where they come from, for people.
    """

    conversations: Sequence[Sequence[AnyMessage]]
    steps: int
    first: int
    name: str

    @classmethod
    def from_file(cls, path: Path, steps: int) -> Workload:
        """Conversations of a JSONL file (see ``cli/conversations.py``).

        Raises:
            InvalidInput: The file cannot be read or has too short conversations only.
        """
        found = [each.messages for each in load_conversations(path) if len(each.messages) > steps]
        if not found:
            raise InvalidInput(f"{path}: no conversation has more than {steps} messages.")
        return cls(found, steps, 1, path.name)

    @classmethod
    def invented(cls, state_bytes: int, steps: int) -> Workload:
        """Conversations whose states are about so large, in bytes of text; the same at every call."""
        count = max(1, state_bytes // _MESSAGE_CHARACTERS)
        size = min(_MESSAGE_CHARACTERS, state_bytes)
        length = count + 8 * steps
        return cls(
            [_invent(number, length, size) for number in range(_INVENTED)],
            steps,
            count,
            f"invented messages, states of about {state_bytes:,} bytes",
        )

    def state_bytes(self) -> int:
        """Mean size of a state, serialized, over the checkpoints that the work makes of it."""
        serde = JsonPlusSerializer()
        sizes = [
            len(serde.dumps_typed(list(messages[:length]))[1])
            for messages in self.conversations[:8]
            for length in sorted({self.first + 1, (self.first + len(messages)) // 2, len(messages)})
        ]
        return round(sum(sizes) / len(sizes))


def _invent(number: int, length: int, size: int) -> list[AnyMessage]:
    draw = random.Random(number)  # noqa: S311 - work, not a secret
    words = ["".join(draw.choices("etaoinshrdlucmfwypvbg", k=draw.randint(2, 9))) for _ in range(400)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    made: list[AnyMessage] = []
    for position in range(length):
        text = " ".join(draw.choices(words, weights, k=size // 3 + 1))[:size]
        kind = AIMessage if position % 2 else HumanMessage
        made.append(kind(text, id=f"{number}-{position}"))
    return made


class _Thread:
    """One thread on its way through a conversation."""

    def __init__(self, thread_id: str, messages: Sequence[AnyMessage], first: int) -> None:
        self._messages = messages
        self._length = first
        self._config: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        self._latest: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
        self._version: Any = None
        self._step = 0

    @property
    def is_over(self) -> bool:
        return self._length >= len(self._messages)

    async def request(self, saver: BaseCheckpointSaver[Any], steps: int, on_call: Callable[[], None]) -> None:
        await saver.aget_tuple(self._latest)
        on_call()
        for _ in range(steps):
            if self.is_over:
                return
            task_id = str(uuid.UUID(int=(self._step << 64) | (8 << 60), version=5))
            if self._step:
                written = [("messages", [self._messages[self._length]])]
                await saver.aput_writes(self._config, written, task_id, "~__pregel_pull, agent")
            on_call()
            self._length += 1
            self._version = saver.get_next_version(self._version, None)
            checkpoint = empty_checkpoint()
            checkpoint["id"] = str(uuid6(clock_seq=self._step))
            checkpoint["channel_values"] = {"messages": list(self._messages[: self._length])}
            checkpoint["channel_versions"] = {"messages": self._version, "branch:to:agent": self._version}
            checkpoint["versions_seen"] = {"agent": {"messages": self._version}}
            self._config = await saver.aput(
                self._config,
                checkpoint,
                {"source": "loop", "step": self._step, "parents": {}},
                {"messages": self._version, "branch:to:agent": self._version},
            )
            self._step += 1
            on_call()


@dataclass(frozen=True)
class Measured:
    """One window of work.

    Attributes:
        offered_per_second: Requests that were to be served each second; 0: as many as the callers could.
        requests: Requests that were served in the window, by parts: callers that wait for one commit move in waves, and a
            window of few waves would see one more or less.
        seconds: Length of the window.
        p50_seconds, p95_seconds, p99_seconds: From the moment a request was due to its end.
        cpu_fraction: CPU time of this process over the window; one core is 1.
        is_overloaded: The offered load was given up, because requests waited too long.
    """

    offered_per_second: float
    requests: float
    seconds: float
    p50_seconds: float
    p95_seconds: float
    p99_seconds: float
    cpu_fraction: float
    is_overloaded: bool = False

    @property
    def per_second(self) -> float:
        """Requests served each second."""
        return self.requests / self.seconds

    @property
    def cpu_ms(self) -> float:
        """CPU of this process for one request, in milliseconds."""
        return self.cpu_fraction * self.seconds / max(1.0, self.requests) * 1e3


class Work:
    """A workload on one saver. Threads go on from one measurement to the next.

    Args:
        saver: Who stores.
        workload: What.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], workload: Workload) -> None:
        self._saver = saver
        self._workload = workload
        self._idle: deque[_Thread] = deque()
        self._numbers: Iterator[int] = itertools.count()
        self._name = uuid.uuid4().hex[:8]
        self._calls = 0

    def _count(self) -> None:
        self._calls += 1

    async def _serve(self) -> None:
        thread = self._idle.popleft() if self._idle else self._new()
        await thread.request(self._saver, self._workload.steps, self._count)
        if not thread.is_over:
            self._idle.append(thread)

    def _new(self) -> _Thread:
        number = next(self._numbers)
        conversations = self._workload.conversations
        return _Thread(
            f"{self._name}-{number}", conversations[number % len(conversations)], self._workload.first
        )

    async def closed(self, callers: int, seconds: float, warm_up_seconds: float = 0.0) -> Measured:
        """Let so many callers make request after request: what can be served at most."""
        begin = time.perf_counter() + warm_up_seconds
        end = begin + seconds
        latencies: list[float] = []

        async def caller() -> None:
            while (asked_at := time.perf_counter()) < end:
                await self._serve()
                answered_at = time.perf_counter()
                if begin <= answered_at <= end:
                    latencies.append(answered_at - asked_at)

        async def watch() -> Measured:
            await asyncio.sleep(warm_up_seconds)
            calls, cpu, started = self._calls, time.process_time(), time.perf_counter()
            await asyncio.sleep(seconds)
            requests = (self._calls - calls) / (2 * self._workload.steps + 1)
            used, window = time.process_time() - cpu, time.perf_counter() - started
            return _measured(0, requests, latencies, window, used)

        watching = asyncio.create_task(watch())
        await asyncio.gather(watching, *(caller() for _ in range(callers)))
        return watching.result()

    async def open(self, per_second: float, seconds: float) -> Measured:
        """Begin so many requests each second, whether the ones before have ended or not; time counts from when each was due."""
        latencies: list[float] = []
        failures: list[PgcairnError] = []
        tasks: set[asyncio.Task[None]] = set()
        begin, cpu = time.perf_counter(), time.process_time()

        async def one(due: float) -> None:
            try:
                await self._serve()
            except PgcairnError as error:
                failures.append(error)
                return
            latencies.append(time.perf_counter() - due)

        is_overloaded = False
        for number in range(math.ceil(per_second * seconds)):
            due = begin + number / per_second
            wait = due - time.perf_counter()
            await asyncio.sleep(max(0.0, wait))
            if -wait > _HOPELESS_SECONDS or len(tasks) > per_second * _HOPELESS_SECONDS:
                is_overloaded = True
                break
            task = asyncio.create_task(one(due))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        served, window = len(latencies), time.perf_counter() - begin
        used = time.process_time() - cpu
        if tasks:
            await asyncio.wait(tasks)  # their latencies count, their number does not
        if failures:
            raise failures[0]
        return _measured(per_second, served, latencies, window, used, is_overloaded=is_overloaded)


def _measured(
    offered: float,
    requests: float,
    latencies: list[float],
    seconds: float,
    cpu_seconds: float,
    *,
    is_overloaded: bool = False,
) -> Measured:
    ordered = sorted(latencies) or [0.0]

    def quantile(share: float) -> float:
        return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]

    return Measured(
        offered_per_second=offered,
        requests=requests,
        seconds=seconds,
        p50_seconds=quantile(0.5),
        p95_seconds=quantile(0.95),
        p99_seconds=quantile(0.99),
        cpu_fraction=cpu_seconds / seconds,
        is_overloaded=is_overloaded,
    )
