"""The demo from its beginning to its end: the server, the three parts, and the exit code."""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from langsmith import tracing_context
from rich.console import Console

from pgcairn.cli.agent import build_agent
from pgcairn.cli.conversations import Conversation, load_conversations
from pgcairn.cli.demo_compare import compare
from pgcairn.cli.demo_databases import database_name, new_database
from pgcairn.cli.demo_kill import play_and_kill, show_continuation, show_verdict
from pgcairn.cli.demo_travel import travel
from pgcairn.cli.demo_worker import config_of, scripts
from pgcairn.cli.event_loop import run_loop
from pgcairn.cli.step_log import verify
from pgcairn.connection.embedded import open_embedded
from pgcairn.saver import AsyncPostgresSaver

# Width of the output where no terminal tells its own: the widest table fits.
_PLAIN_WIDTH = 110


@dataclass(frozen=True)
class Options:
    """What the command line says."""

    conversations: Path | None
    threads: int
    data_dir: Path | None
    dsn: str | None
    seconds_per_saver: float

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Options:
        """From the parsed command line."""
        return cls(
            conversations=arguments.conversations,
            threads=arguments.threads,
            data_dir=arguments.data_dir,
            # A directory that was named counts for more than a server from the environment.
            dsn=None if arguments.data_dir else arguments.dsn,
            seconds_per_saver=arguments.seconds_per_saver,
        )


def run(options: Options) -> int:
    """Run the demo: 0 if every check held, else 1."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=_PLAIN_WIDTH)
    conversations = load_conversations(options.conversations)
    # The agent's runs are nobody's traces.
    with tempfile.TemporaryDirectory(prefix="pgcairn-demo-") as folder, tracing_context(enabled=False):
        return run_loop(_demo(console, options, conversations, Path(folder)))


async def _demo(console: Console, options: Options, conversations: list[Conversation], folder: Path) -> int:
    begin = time.perf_counter()
    keep = options.data_dir is not None
    threads = scripts(conversations, options.threads)
    played = min(len(conversations), options.threads)
    console.print(
        f"[bold]pgcairn demo[/]: {options.threads} threads replay {played} of {len(conversations)} conversations "
        f"({options.conversations or 'the sample'})"
    )
    async with _server(console, options, folder) as server, new_database(server, "kill", keep=keep) as dsn:
        async with AsyncPostgresSaver.from_conn_string(dsn) as saver:
            await saver.setup()
            problems = await _kill(console, options, threads, saver, dsn, folder)
            console.rule("[bold]2. Time travel", align="left")
            problems += await travel(console, saver, threads)
        console.rule("[bold]3. Three savers on the same server", align="left")
        await compare(console, server, conversations, options.threads, options.seconds_per_saver, keep=keep)
        if options.data_dir is not None:
            console.print(
                f"  kept: pgcairn server psql {options.data_dir} -d {database_name(dsn)}", highlight=False
            )
    outcome = "[green]Every check held[/]" if not problems else f"[red]{len(problems)} checks failed[/]"
    console.print(f"{outcome} in {time.perf_counter() - begin:.0f} s.")
    return 1 if problems else 0


@asynccontextmanager
async def _server(console: Console, options: Options, folder: Path) -> AsyncIterator[str]:
    if options.dsn and not options.dsn.startswith("embedded:"):
        yield options.dsn
        return
    directory = (options.data_dir or folder / "server").absolute()
    where = options.dsn or f"embedded:{quote(str(directory))}"
    begin = time.perf_counter()
    with console.status("starting the embedded PostgreSQL"):
        lease = await open_embedded(where)
    async with lease:
        console.print(f"  embedded PostgreSQL started in {time.perf_counter() - begin:.1f} s")
        yield lease.dsn


async def _kill(
    console: Console,
    options: Options,
    threads: dict[str, Conversation],
    saver: AsyncPostgresSaver,
    dsn: str,
    folder: Path,
) -> list[str]:
    console.rule("[bold]1. A worker is killed, another goes on", align="left")
    killed = await play_and_kill(console, dsn, threads, options.conversations, folder)
    graph = build_agent(threads.__getitem__).compile(checkpointer=saver)
    snapshots = await asyncio.gather(*(graph.aget_state(config_of(thread)) for thread in threads))
    final = {
        thread: snapshot.values.get("messages", [])
        for thread, snapshot in zip(threads, snapshots, strict=True)
    }
    show_continuation(console, killed)
    verdict = verify(threads, final, killed.events, killed.resumed, killed.turns_reported)
    show_verdict(console, verdict, killed)
    return list(verdict.problems)
