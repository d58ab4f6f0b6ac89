"""The demo's verdict: a good run passes, and each way of breaking it is noticed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage

from pgcairn.cli.conversations import Conversation
from pgcairn.cli.step_log import (
    ACKNOWLEDGED,
    STARTED,
    Resumed,
    StepEvent,
    StepLog,
    Verdict,
    read_log,
    verify,
)

MESSAGES: tuple[AnyMessage, ...] = (
    HumanMessage("Hello", id="c-0"),
    AIMessage("Good day", id="c-1"),
    HumanMessage("Bye", id="c-2"),
    AIMessage("Farewell", id="c-3"),
)
# Worker 1 finishes the first turn (step 1) and is killed in the second one's answer (step 4).
RUN = [
    StepEvent(STARTED, 1, "t", 1, 0, "agent"),
    StepEvent(ACKNOWLEDGED, 1, "t", 1),
    StepEvent(ACKNOWLEDGED, 1, "t", 3),
    StepEvent(STARTED, 1, "t", 4, 1, "agent"),
    StepEvent(STARTED, 2, "t", 4, 1, "agent"),
    StepEvent(ACKNOWLEDGED, 2, "t", 4),
]
RESUMED = Resumed("t", "id", 0.5, 3, "input taken in", "agent", False, 1)


def judge(
    events: Sequence[StepEvent] = RUN,
    *,
    final: Sequence[AnyMessage] = MESSAGES,
    resumed: Resumed = RESUMED,
    reported: int = 1,
) -> Verdict:
    return verify({"t": Conversation("c", MESSAGES)}, {"t": final}, events, [resumed], {"t": reported})


def test_a_step_that_was_not_committed_may_run_again() -> None:
    assert judge() == Verdict(threads=1, messages=4, steps=2, finished_at_kill=1, rerun=1, problems=())


@pytest.mark.parametrize(
    ("final", "problem"),
    [
        (MESSAGES[:-1], "t: 3 messages instead of 4"),
        ((*MESSAGES, MESSAGES[0]), "t: 5 messages instead of 4"),
        ((*MESSAGES[:3], AIMessage("Hi", id="c-3")), "t: message 3 is not the recorded one"),
        ((), "t: 0 messages instead of 4"),
    ],
    ids=["lost", "added", "changed", "all lost"],
)
def test_messages_that_differ(final: Sequence[AnyMessage], problem: str) -> None:
    assert judge(final=final).problems == (problem,)


def test_a_finished_step_that_runs_again() -> None:
    again = StepEvent(STARTED, 2, "t", 1, 0, "agent")

    problems = judge([*RUN[:4], again, *RUN[4:]]).problems

    assert "t: step 1 (agent) was finished and ran again" in problems
    assert "t: step 1 was in the database and ran again" in problems


def test_a_step_whose_acknowledgement_never_arrived_but_was_read() -> None:
    found = dataclasses.replace(RESUMED, step=4, node="agent", next_node="", turns_done=2)

    assert judge(resumed=found).problems == ("t: step 4 was in the database and ran again",)


def test_two_reruns_in_one_thread() -> None:
    events = [*RUN[:1], RUN[0], *RUN[1:]]

    assert judge(events).problems == ("t: 2 steps ran twice; one kill explains at most one",)


def test_a_step_that_never_ran() -> None:
    assert judge(RUN[3:]).problems == ("t: 1 different steps ran instead of 2",)


def test_a_step_that_was_skipped_after_the_kill() -> None:
    skipped = [dataclasses.replace(event, step=5) if event.worker == 2 else event for event in RUN]

    assert "t: went on with step 5 after step 3" in judge(skipped).problems


def test_a_checkpoint_that_was_acknowledged_and_is_gone() -> None:
    found = dataclasses.replace(RESUMED, step=2, node="input stored", next_node="__start__")

    assert judge(resumed=found).problems == ("t: step 3 was acknowledged and is not in the database",)


def test_a_turn_that_was_reported_and_is_gone() -> None:
    problem = "t: a turn was reported as done and is not in the database"
    assert judge(reported=2).problems == (problem,)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first, second = StepLog(path, 1), StepLog(path, 2)
    first.started("t", 0, 1, "agent")
    second.started("ü", 1, 2, "tools")
    first.acknowledged("t", 1)
    first.close()
    second.close()

    assert read_log(path) == [
        StepEvent(STARTED, 1, "t", 1, 0, "agent"),
        StepEvent(STARTED, 2, "ü", 2, 1, "tools"),
        StepEvent(ACKNOWLEDGED, 1, "t", 1),
    ]
