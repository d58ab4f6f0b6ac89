"""Second part of the demo: time travel. One thread is taken back to an earlier checkpoint and goes on differently."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from langchain_core.messages import AnyMessage, HumanMessage
from langgraph.types import StateSnapshot
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pgcairn.cli.agent import build_agent
from pgcairn.cli.conversations import Conversation
from pgcairn.cli.demo_worker import config_of
from pgcairn.saver import AsyncPostgresSaver

_EDITED = "I changed my mind. Please let me talk to a person."
_TEXT = 38


async def travel(
    console: Console, saver: AsyncPostgresSaver, threads: Mapping[str, Conversation]
) -> list[str]:
    """Fork one thread and show both branches.

    Returns:
        What was wrong; empty if both branches are as they should be.
    """
    graph = build_agent(threads.__getitem__).compile(checkpointer=saver)
    thread = max(threads, key=lambda name: min(len(threads[name].turns), 4))
    recorded = list(threads[thread].messages)
    config = config_of(thread)
    history = [snapshot async for snapshot in graph.aget_state_history(config)]
    head, chosen = history[0], _question(history)
    messages: list[AnyMessage] = chosen.values["messages"]
    console.print(
        f"  {thread}: {len(history)} checkpoints; back to step {_step(chosen)} "
        f"(…{chosen.config['configurable']['checkpoint_id'][-12:]}), where the user had just written\n"
        f"  message {len(messages) - 1}; that message is edited with update_state, and the agent answers anew"
    )
    edited = HumanMessage(_EDITED, id=messages[-1].id)
    fork = await graph.aupdate_state(chosen.config, {"messages": [edited]})
    await graph.ainvoke(None, fork)
    new = await graph.aget_state(config)
    old = await graph.aget_state(head.config)
    _show(console, len(messages) - 1, old.values["messages"], new.values["messages"])
    after = [snapshot async for snapshot in graph.aget_state_history(config)]
    problems = []
    if old.values["messages"] != recorded:
        problems.append(f"{thread}: the first branch changed")
    if new.values["messages"][:-1] != [*messages[:-1], edited]:
        problems.append(f"{thread}: the second branch does not begin like the first")
    if len(after) <= len(history) or after[-len(history) :] != history:
        problems.append(f"{thread}: the history lost checkpoints")
    for problem in problems:
        console.print(f"  [red]WRONG[/] {problem}", highlight=False)
    if not problems:
        console.print(
            f"  [green]ok[/] both branches are there: {len(after)} checkpoints, the first {len(history)} unchanged"
        )
    return problems


def _step(snapshot: StateSnapshot) -> int:
    return int((snapshot.metadata or {}).get("step", -1))


def _question(history: Sequence[StateSnapshot]) -> StateSnapshot:
    # Where the agent is about to answer the user: the second such place if there is one, else the first.
    asked: list[StateSnapshot] = [
        snapshot
        for snapshot in reversed(history)
        if snapshot.next == ("agent",) and isinstance(snapshot.values["messages"][-1], HumanMessage)
    ]
    return asked[min(1, len(asked) - 1)]


def _show(console: Console, first: int, old: Sequence[AnyMessage], new: Sequence[AnyMessage]) -> None:
    table = Table(title="One thread, two branches", title_justify="left")
    table.add_column("message", justify="right")
    table.add_column("first branch")
    table.add_column("second branch")
    start = max(0, first - 1)
    for position in range(start, min(first + 4, max(len(old), len(new)))):
        table.add_row(str(position), _brief(old, position), _brief(new, position))
    if len(old) > first + 4:
        table.add_row("…", f"{len(old) - first - 4} more", "")
    console.print(table)


def _brief(messages: Sequence[AnyMessage], position: int) -> Text:
    if position >= len(messages):
        return Text("")
    message = messages[position]
    calls = getattr(message, "tool_calls", None)
    said = ", ".join(f"calls {call['name']}" for call in calls) if calls else str(message.content)
    line = " ".join(said.split())
    return Text(f"{message.type}: {line if len(line) <= _TEXT else line[: _TEXT - 1] + '…'}")
