"""First part of the demo: a worker plays all threads, is killed with SIGKILL in mid-run, and a new one goes on."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from pgcairn.cli.conversations import Conversation
from pgcairn.cli.demo_databases import wait_until_gone
from pgcairn.cli.demo_worker import application_name
from pgcairn.cli.step_log import STARTED, Resumed, StepEvent, Verdict, read_log
from pgcairn.errors import PgcairnError

# How long the scripted model takes. So short that the demo is brief, so long that threads are in mid-turn
# when the worker is killed.
_MODEL_SECONDS = 0.15
_EXAMPLES = 6


class WorkerFailed(PgcairnError):
    """A worker ended by itself with an error; what it said is above."""


@dataclass
class Killed:
    """What the two workers did."""

    pid: int = 0
    turns_reported: dict[str, int] = field(default_factory=dict)
    resumed: list[Resumed] = field(default_factory=list)
    events: list[StepEvent] = field(default_factory=list)


def progress_on(console: Console) -> Progress:
    """A progress display in the style of the demo; silent where there is no terminal."""
    return Progress(
        TextColumn("  {task.description:<30}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        refresh_per_second=8,
        disable=not console.is_terminal,
    )


async def play_and_kill(
    console: Console,
    dsn: str,
    threads: Mapping[str, Conversation],
    conversations: Path | None,
    folder: Path,
) -> Killed:
    """Run worker 1, kill it when half of the turns are done, run worker 2 to the end.

    Raises:
        WorkerFailed: A worker ended by itself with an error.
    """
    total = sum(len(conversation.turns) for conversation in threads.values())
    log = folder / "steps.log"
    arguments = ["--threads", str(len(threads)), "--log", str(log), "--model-seconds", str(_MODEL_SECONDS)]
    if conversations is not None:
        arguments += ["--conversations", str(conversations)]
    found = Killed()
    with progress_on(console) as progress:
        bar = progress.add_task("worker 1", total=total)
        async with _worker(dsn, [*arguments, "--worker", "1"]) as first:
            found.pid = first.pid
            progress.update(bar, description=f"worker 1 (pid {first.pid})")
            async for event in _events(first):
                if event["event"] != "turn":
                    continue
                found.turns_reported[event["thread"]] = event["turns"]
                progress.advance(bar)
                if sum(found.turns_reported.values()) >= total / 2 and first.returncode is None:
                    first.kill()  # SIGKILL: no handler runs, nothing is flushed or closed
            code = await first.wait()
        done = sum(found.turns_reported.values())
        if code >= 0:
            raise WorkerFailed(f"Worker 1 ended with exit code {code} before it was killed.")
        progress.update(bar, description=f"worker 1 (pid {first.pid}) [red]killed[/]")
        progress.stop_task(bar)
        console.print(f"  [red]SIGKILL[/] to worker 1 (pid {first.pid}) after {done} of {total} turns")
        await wait_until_gone(dsn, application_name(1))
        bar = progress.add_task("worker 2", total=total)
        async with _worker(dsn, [*arguments, "--worker", "2"]) as second:
            progress.update(bar, description=f"worker 2 (pid {second.pid})")
            await _follow(second, progress, bar, found)
            if code := await second.wait():
                raise WorkerFailed(f"Worker 2 ended with exit code {code}.")
    found.events = read_log(log)
    return found


async def _follow(worker: asyncio.subprocess.Process, progress: Progress, bar: TaskID, found: Killed) -> None:
    async for event in _events(worker):
        kind = event.pop("event")
        if kind == "resumed":
            found.resumed.append(Resumed(**event))
            progress.advance(bar, event["turns_done"])
        elif kind == "turn":
            progress.advance(bar)


@asynccontextmanager
async def _worker(dsn: str, arguments: list[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "pgcairn.cli.demo_worker",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PGCAIRN_DSN": dsn},
        start_new_session=True,  # Ctrl-C is for the demo, which then ends its worker
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def _events(worker: asyncio.subprocess.Process) -> AsyncIterator[dict[str, Any]]:
    assert worker.stdout is not None
    async for line in worker.stdout:
        if line.endswith(b"\n"):  # the last line of a killed worker may be cut
            yield json.loads(line)


def show_continuation(console: Console, killed: Killed) -> None:
    """Print the signs of persistence for some threads that were interrupted in different places."""
    first: dict[str, StepEvent] = {}
    for event in killed.events:
        if event.worker == 2 and event.kind == STARTED:
            first.setdefault(event.thread, event)
    table = Table(title="What worker 2 found, and how it went on", title_justify="left")
    for heading in ("thread", "snapshot read", "age", "last finished step", "next step", "went on with"):
        table.add_column(heading, overflow="fold")
    for each in _examples(killed.resumed, first):
        began = first.get(each.thread)
        table.add_row(
            each.thread,
            f"…{each.checkpoint_id[-12:]}" if each.checkpoint_id else "none yet",
            f"{each.age_seconds:.1f} s" if each.checkpoint_id else "",
            f"{each.step} {each.node}" if each.checkpoint_id else "none",
            _next(each),
            f"{began.step} {began.node}, turn {began.turn + 1}" if began else "nothing: all was done",
        )
    console.print(table)


def _next(each: Resumed) -> str:
    if not each.next_node:
        return "the next turn, if any"
    name = each.next_node.strip("_")
    return f"{each.step + 1} {name}" + (": result is stored" if each.result_saved else "")


def _examples(resumed: list[Resumed], first: Mapping[str, StepEvent]) -> list[Resumed]:
    # One of each kind of interruption, then more of those in mid-turn.
    kinds: dict[tuple[str, str, bool], Resumed] = {}
    for each in resumed:
        kinds.setdefault((each.node, each.next_node, each.result_saved), each)
    chosen = list(kinds.values())
    rest = [each for each in resumed if each not in chosen and each.next_node and each.thread in first]
    return sorted((chosen + rest)[:_EXAMPLES], key=lambda each: each.thread)


def show_verdict(console: Console, verdict: Verdict, killed: Killed) -> None:
    """Print the outcome of the checks."""
    in_turn = sum(1 for each in killed.resumed if each.next_node)
    console.print(
        f"  snapshot read: {len(killed.resumed)} threads, {in_turn} of them in the middle of a turn\n"
        f"  finished before the kill and never run again: {verdict.finished_at_kill} of {verdict.steps} steps\n"
        f"  started, cut before its result was committed, and so run again: {verdict.rerun} "
        f"(at most one in a thread)"
    )
    if verdict.problems:
        for problem in verdict.problems[:10]:
            console.print(f"  [red]WRONG[/] {problem}", highlight=False)
        console.print(f"  [red]{len(verdict.problems)} problems[/]")
    else:
        console.print(
            f"  [green]ok[/] no finished step ran twice; nothing lost: all {verdict.messages} messages "
            f"of {verdict.threads} threads are the recorded ones"
        )
