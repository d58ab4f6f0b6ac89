"""What is asked, when, and of which thread: a seeded schedule, and the book of threads.

``schedule`` says beforehand when each request is due and of which kind it is, whatever the answers do. ``Book`` chooses
a thread when the time has come: one on which nothing is going on where the request changes the thread, as a person
waits for an answer before the next message. Knows nothing of HTTP. Standard library only.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

Kind = Literal["turn", "state", "history", "fork", "interrupt", "resume"]
Arrivals = Literal["constant", "poisson"]

# Of 100 requests. "consent" is an interrupt, or the answer to one that has waited for long enough.
MIX: dict[str, int] = {"turn": 70, "state": 20, "history": 4, "fork": 2, "consent": 4}
# Turns of a thread: the median of tau-bench's recorded chats is 7.
_MAX_TURNS = 8
_NEW_SHARE = 1 / _MAX_TURNS
_THINK_SECONDS = 2.0
# How many threads are looked at for one that can be forked; guess.
_TRIES = 16


class Arrival(NamedTuple):
    """A request that is due.

    Attributes:
        at_seconds: Since the start.
        wanted: A key of ``MIX``.
    """

    at_seconds: float
    wanted: str


def schedule(
    rps: float, seconds: float, ramp_seconds: float, seed: int, arrivals: Arrivals = "constant"
) -> Iterator[Arrival]:
    """All requests in their order: the rate grows evenly from 0 to ``rps``, then stays.

    Args:
        rps: Requests a second after the ramp.
        seconds: How long the rate stays.
        ramp_seconds: How long it grows.
        seed: The same seed, the same schedule.
        arrivals: ``constant``: evenly spaced. ``poisson``: independent of each other, in bursts.
    """
    random_ = random.Random(seed)
    wanted, weights = list(MIX), list(MIX.values())
    in_ramp = rps * ramp_seconds / 2
    count = 0.0
    while True:
        count += 1.0 if arrivals == "constant" else random_.expovariate(1.0)
        if count <= in_ramp:
            at_seconds = math.sqrt(2 * count * ramp_seconds / rps)
        else:
            at_seconds = ramp_seconds + (count - in_ramp) / rps
        if at_seconds >= ramp_seconds + seconds:
            return
        yield Arrival(at_seconds, random_.choices(wanted, weights)[0])


@dataclass(eq=False)
class Thread:
    """A conversation as its user knows it."""

    id: str
    turns: int = 0


@dataclass(frozen=True, eq=False)
class Call:
    """A request to be made.

    Attributes:
        token: The name of the turn that it begins; empty for reads and ``resume``.
        turn: The number of the turn it begins or reads after, from 1 on.
    """

    kind: Kind
    thread: Thread
    token: str
    turn: int

    @property
    def is_write(self) -> bool:
        """Whether it changes the thread."""
        return self.kind not in ("state", "history")


@dataclass
class Book:
    """Which threads there are, and which of them are free."""

    seed: int
    _free: list[Thread] = field(default_factory=list)
    _known: list[Thread] = field(default_factory=list)
    _waiting: deque[tuple[float, Thread]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._numbers = itertools.count(1)

    def begin(self, wanted: str, now_seconds: float) -> Call:
        """Choose a thread for a request that is due, and take it out of the free ones if it is to be changed.

        Where no thread is fit, as at the beginning, a turn takes the place of what was wanted.
        """
        if wanted in ("state", "history") and self._known:
            thread = self._random.choice(self._known)
            return Call(wanted, thread, "", thread.turns)  # type: ignore[arg-type]
        if wanted == "consent":
            if self._waiting and self._waiting[0][0] + _THINK_SECONDS <= now_seconds:
                thread = self._waiting.popleft()[1]
                return Call("resume", thread, "", thread.turns)
            return self._turn("interrupt", self._returning() or self._new())
        if wanted == "fork" and (found := self._forkable()) is not None:
            return self._turn("fork", found)
        is_new = self._random.random() < _NEW_SHARE
        return self._turn("turn", (None if is_new else self._returning()) or self._new())

    def end(self, call: Call, is_acknowledged: bool, now_seconds: float) -> None:
        """Note the answer. A thread whose request failed is left alone: what it holds is not known."""
        thread = call.thread
        if not call.is_write or not is_acknowledged:
            return
        if call.kind != "resume":
            thread.turns += 1
            if thread.turns == 1:
                self._known.append(thread)
        if call.kind == "interrupt":
            self._waiting.append((now_seconds, thread))
        elif thread.turns < _MAX_TURNS:
            self._free.append(thread)

    def _turn(self, kind: Kind, thread: Thread) -> Call:
        number = thread.turns + 1
        return Call(kind, thread, f"{thread.id}.{number}.{self._random.getrandbits(48):012x}", number)

    def _new(self) -> Thread:
        return Thread(f"chat-{self.seed}-{next(self._numbers)}")

    def _returning(self) -> Thread | None:
        return self._take(self._random.randrange(len(self._free))) if self._free else None

    def _forkable(self) -> Thread | None:
        for _ in range(min(_TRIES, len(self._free))):
            position = self._random.randrange(len(self._free))
            if self._free[position].turns >= 2:
                return self._take(position)
        return None

    def _take(self, position: int) -> Thread:
        self._free[position], self._free[-1] = self._free[-1], self._free[position]
        return self._free.pop()
