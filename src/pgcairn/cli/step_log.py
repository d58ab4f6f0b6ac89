"""The step log: what the workers did, written outside the database, and the verdict drawn from it.

A worker appends one line when a node *starts* and one when a checkpoint was *acknowledged*; each is a single
write to a file opened with O_APPEND, so a killed worker leaves whole lines. The verdict compares the lines
and the final messages with the conversations. No database and no output here.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from langchain_core.messages import AnyMessage

from pgcairn.cli.conversations import Conversation

STARTED = "started"
ACKNOWLEDGED = "acknowledged"


@dataclass(frozen=True)
class StepEvent:
    """One line. ``step`` is LangGraph's number, which the checkpoint made by that step also carries."""

    kind: str
    worker: int
    thread: str
    step: int
    turn: int = -1
    node: str = ""


class StepLog:
    """The writing end."""

    def __init__(self, path: Path, worker: int) -> None:
        self._worker = worker
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def started(self, thread: str, turn: int, step: int, node: str) -> None:
        """A node starts."""
        self._append(StepEvent(STARTED, self._worker, thread, step, turn, node))

    def acknowledged(self, thread: str, step: int) -> None:
        """The checkpoint of a step was acknowledged: the step is finished."""
        self._append(StepEvent(ACKNOWLEDGED, self._worker, thread, step))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def _append(self, event: StepEvent) -> None:
        fields = (event.kind, event.worker, event.thread, event.step, event.turn, event.node)
        os.write(self._file, json.dumps(fields).encode() + b"\n")


def read_log(path: Path) -> list[StepEvent]:
    """All lines, in the order in which they were written."""
    return [StepEvent(*json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


@dataclass(frozen=True)
class Resumed:
    """What a worker found in the database for a thread before it went on."""

    thread: str
    checkpoint_id: str  # empty: no checkpoint
    age_seconds: float  # of the checkpoint, when it was read
    step: int  # the last finished step
    node: str  # what that step was
    next_node: str  # empty: the next step is a new turn
    result_saved: bool  # the next step's result is stored already; only its checkpoint is missing
    turns_done: int


@dataclass(frozen=True)
class Verdict:
    """What came out. ``problems`` is empty exactly if everything is as promised."""

    threads: int
    messages: int
    steps: int  # different node runs
    finished_at_kill: int  # steps whose checkpoint the first worker saw acknowledged, without the user's own
    rerun: int  # steps that were started twice because the first start had not been committed
    problems: tuple[str, ...] = field(default=())


def verify(
    conversations: Mapping[str, Conversation],
    final: Mapping[str, Sequence[AnyMessage]],
    events: Iterable[StepEvent],
    resumed: Iterable[Resumed] = (),
    turns_reported: Mapping[str, int] | None = None,
) -> Verdict:
    """Judge a run.

    What may run twice: a step that had started and whose result was not committed when its worker was killed,
    at most one in a thread. What may not: a step whose checkpoint was acknowledged, or that the next worker
    found in the database. What was acknowledged must be found.

    Args:
        conversations: By thread, what should have been said.
        final: By thread, what the database holds at the end.
        events: The step log.
        resumed: What the second worker found.
        turns_reported: By thread, how many turns the first worker had reported as done.
    """
    problems: list[str] = []
    for thread, conversation in conversations.items():
        problems += _compare(thread, conversation.messages, final.get(thread, ()))
    found = {each.thread: each for each in resumed}
    for thread, turns in (turns_reported or {}).items():
        if thread not in found or found[thread].turns_done < turns:
            problems.append(f"{thread}: a turn was reported as done and is not in the database")
    starts: Counter[tuple[str, int]] = Counter()
    acknowledged: set[tuple[str, int]] = set()
    finished_at_kill: set[tuple[str, int]] = set()
    first_of_second: dict[str, int] = {}
    last_of_first: dict[str, int] = {}
    for event in events:
        key = (event.thread, event.step)
        if event.kind == ACKNOWLEDGED:
            acknowledged.add(key)
            if event.worker == 1:
                last_of_first[event.thread] = event.step
                if key in starts:
                    finished_at_kill.add(key)
            continue
        if key in acknowledged:
            problems.append(f"{event.thread}: step {event.step} ({event.node}) was finished and ran again")
        starts[key] += 1
        if event.worker > 1:
            first_of_second.setdefault(event.thread, event.step)
    for thread, step in last_of_first.items():
        if thread in found and found[thread].step < step:
            problems.append(f"{thread}: step {step} was acknowledged and is not in the database")
    problems += _check_continuation(found, first_of_second)
    problems += _check_counts(conversations, starts)
    return Verdict(
        threads=len(conversations),
        messages=sum(len(messages) for messages in final.values()),
        steps=len(starts),
        finished_at_kill=len(finished_at_kill),
        rerun=sum(count - 1 for count in starts.values()),
        problems=tuple(problems),
    )


def _compare(thread: str, expected: Sequence[AnyMessage], found: Sequence[AnyMessage]) -> list[str]:
    if list(found) == list(expected):
        return []
    if len(found) != len(expected):
        return [f"{thread}: {len(found)} messages instead of {len(expected)}"]
    different = [i for i, (a, b) in enumerate(zip(expected, found, strict=True)) if a != b]
    return [f"{thread}: message {different[0]} is not the recorded one"]


def _check_continuation(found: Mapping[str, Resumed], first: Mapping[str, int]) -> list[str]:
    problems = []
    for thread, step in first.items():
        if thread not in found:
            continue
        resumed = found[thread]
        if step <= resumed.step:
            problems.append(f"{thread}: step {step} was in the database and ran again")
        elif step - resumed.step not in _distances(resumed):
            problems.append(f"{thread}: went on with step {step} after step {resumed.step}")
    return problems


def _distances(resumed: Resumed) -> set[int]:
    # From the last finished step to the next that runs a node. A turn begins with two steps that run none:
    # its input is stored, then taken in.
    if not resumed.next_node:
        return {3}
    if resumed.next_node == "__start__":
        return {2}
    return {2, 4} if resumed.result_saved else {1}  # 4: the stored result was the last of its turn


def _check_counts(
    conversations: Mapping[str, Conversation], starts: Mapping[tuple[str, int], int]
) -> list[str]:
    problems = []
    different = Counter(thread for thread, _ in starts)
    twice = Counter(thread for (thread, _), count in starts.items() for _ in range(count - 1))
    for thread, conversation in conversations.items():
        if different[thread] != conversation.node_runs:
            problems.append(
                f"{thread}: {different[thread]} different steps ran instead of {conversation.node_runs}"
            )
        if twice[thread] > 1:
            problems.append(f"{thread}: {twice[thread]} steps ran twice; one kill explains at most one")
    return problems
