"""The web service that is loaded: Starlette on uvicorn with uvloop, around the agent, with the saver of your choice.

    python -m loadtest.service --saver pgcairn --dsn postgresql://… --port 8000

    POST /threads/{id}/turns            {"token", "text"}       a chat turn
    POST /threads/{id}/interrupt-turn   {"token", "text"}       a turn that stops until a person has answered
    POST /threads/{id}/resume           {"allowed": true}       the person's answer
    POST /threads/{id}/fork             {"token", "text"}       a turn from before the latest one, on a branch
    GET  /threads/{id}/state                                    the messages
    GET  /threads/{id}/history?limit=10                         the latest checkpoints
    GET  /stats   /ready   /live

The client chooses the token; it is the id of the message that the turn begins with. An answer with status 200 means
that the turn is committed. The saver is opened and closed with the service: SIGTERM lets requests that are being answered
end, then flushes and closes. 503 means that the same request may succeed later, 409 that the thread is not in a
state for it.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import os
import resource
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import psycopg
import psycopg_pool
from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.types import Command
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bench import peers
from loadtest import scripts
from loadtest.agent import build_agent, last_user_message, turns_in, user_message
from pgcairn import AsyncPostgresSaver
from pgcairn.errors import InvalidInput, PgcairnError

SAVERS: dict[str, peers.Peer] = {
    "pgcairn": peers.PGCAIRN,
    "pgcairn-asyncpg": peers.PGCAIRN_ASYNCPG,
    "official-pool": peers.OFFICIAL,
    "official-single": peers.OFFICIAL_SINGLE,
    "memory": peers.IN_MEMORY,
}
_HISTORY_LIMIT = 10
# A turn leaves at most five checkpoints, and an interrupted one no more; guess: room for what failed in between.
_FORK_LIMIT = 8
_SHUTDOWN_SECONDS = 30
# Longer than clients keep a connection: one that is closed while a request is on its way fails it.
_KEEP_ALIVE_SECONDS = 300
_BACKLOG = 2048  # uvicorn's own default

Answer = Callable[[Request], Awaitable[Response]]


def make_app(
    saver: str, dsn: str, conversations: Path | None = None, *, told: Callable[[str], None] = lambda _: None
) -> Starlette:
    """The application.

    Args:
        saver: A key of ``SAVERS``.
        dsn: The database; empty for ``memory``.
        conversations: What is said; ``None`` for made up conversations.
        told: Called with "ready" when the saver is open, with "closed" when it is closed.
    """
    builder = build_agent(scripts.load(conversations))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with SAVERS[saver].open(dsn) as opened:
            app.state.saver = opened
            app.state.graph = builder.compile(checkpointer=opened)
            told("ready")
            yield
        told("closed")

    app = Starlette(
        routes=[
            Route("/threads/{id}/turns", _turn, methods=["POST"]),
            Route("/threads/{id}/state", _state, methods=["GET"]),
            Route("/threads/{id}/history", _history, methods=["GET"]),
            Route("/threads/{id}/interrupt-turn", _interrupt_turn, methods=["POST"]),
            Route("/threads/{id}/resume", _resume, methods=["POST"]),
            Route("/threads/{id}/fork", _fork, methods=["POST"]),
            Route("/stats", _stats, methods=["GET"]),
            Route("/ready", _ready, methods=["GET"]),
            Route("/live", _live, methods=["GET"]),
        ],
        exception_handlers={
            PgcairnError: _refused,
            psycopg.Error: _refused,
            psycopg_pool.PoolTimeout: _refused,
        },
        lifespan=lifespan,
    )
    app.state.saver_name = saver
    return app


async def _turn(request: Request) -> Response:
    token, text = await _said(request)
    found = await request.app.state.graph.ainvoke({"messages": [user_message(text, token)]}, _config(request))
    return _answered(token, found["messages"])


async def _interrupt_turn(request: Request) -> Response:
    token, text = await _said(request)
    message = user_message(text, token, asks_consent=True)
    found = await request.app.state.graph.ainvoke({"messages": [message]}, _config(request))
    questions = [each.value for each in found["__interrupt__"]]
    return _json(
        {"token": token, "turn": turns_in(found["messages"]), "ids": [token], "questions": questions}
    )


async def _resume(request: Request) -> Response:
    body = await _body(request)
    graph, config = request.app.state.graph, _config(request)
    found = await graph.ainvoke(Command(resume=bool(body.get("allowed", True))), config)
    if not found or not found.get("messages"):
        raise HTTPException(409, "The thread waits for nobody.")
    return _answered(str(last_user_message(found["messages"]).id), found["messages"])


async def _fork(request: Request) -> Response:
    token, text = await _said(request)
    graph, config = request.app.state.graph, _config(request)
    is_latest = True
    base: RunnableConfig | None = None
    async for snapshot in graph.aget_state_history(config, limit=_FORK_LIMIT):
        if not is_latest and not snapshot.next and snapshot.values:
            base = snapshot.config
            break
        is_latest = False
    if base is None:
        raise HTTPException(409, "The thread has no earlier turn to fork from.")
    found = await graph.ainvoke({"messages": [user_message(text, token)]}, base)
    return _answered(token, found["messages"])


async def _state(request: Request) -> Response:
    snapshot = await request.app.state.graph.aget_state(_config(request))
    messages: list[AnyMessage] = snapshot.values.get("messages", [])
    return _json(
        {
            "next": snapshot.next,
            "messages": [{"id": each.id, "type": each.type, "content": each.content} for each in messages],
        }
    )


async def _history(request: Request) -> Response:
    try:
        limit = int(request.query_params.get("limit", _HISTORY_LIMIT))
    except ValueError:
        raise HTTPException(400, "'limit' is not a number.") from None
    found = [
        {
            "checkpoint_id": snapshot.config["configurable"]["checkpoint_id"],
            "created_at": snapshot.created_at,
            "step": (snapshot.metadata or {}).get("step"),
            "next": snapshot.next,
            "messages": len(snapshot.values.get("messages", [])),
        }
        async for snapshot in request.app.state.graph.aget_state_history(_config(request), limit=limit)
    ]
    return _json({"checkpoints": found})


async def _stats(request: Request) -> Response:
    saver = request.app.state.saver
    found: dict[str, Any] = {}
    if isinstance(saver, AsyncPostgresSaver):
        found = dataclasses.asdict(saver.stats())
    elif isinstance(pool := getattr(saver, "conn", None), psycopg_pool.AsyncConnectionPool):
        counts = pool.get_stats()
        found = {
            "pool_size": counts.get("pool_size", 0),
            "pool_idle": counts.get("pool_available", 0),
            "requests_waiting": counts.get("requests_waiting", 0),
        }
    used = resource.getrusage(resource.RUSAGE_SELF)
    return _json(
        {
            "saver": request.app.state.saver_name,
            "pid": os.getpid(),
            "cpu_seconds": used.ru_utime + used.ru_stime,
            "max_resident_kilobytes": used.ru_maxrss,
            "stats": found,
        }
    )


async def _ready(request: Request) -> Response:
    # A read of a thread that does not exist takes the way of every other read.
    await request.app.state.saver.aget_tuple({"configurable": {"thread_id": "ready", "checkpoint_ns": ""}})
    return _json({"ready": True})


async def _live(_: Request) -> Response:
    return _json({"live": True})


async def _refused(_: Request, error: Exception) -> Response:
    status = 400 if isinstance(error, InvalidInput) else 500
    if getattr(error, "retryable", isinstance(error, (psycopg.OperationalError, psycopg_pool.PoolTimeout))):
        status = 503
    print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
    return _json({"error": type(error).__name__, "message": str(error)}, status)


def _answered(token: str, messages: list[AnyMessage]) -> Response:
    last = messages[-1]
    return _json(
        {"token": token, "turn": turns_in(messages), "ids": [token, last.id], "answer": last.content}
    )


async def _said(request: Request) -> tuple[str, str]:
    body = await _body(request)
    token, text = body.get("token"), body.get("text")
    if not isinstance(token, str) or not token or not isinstance(text, str):
        raise HTTPException(400, "'token' and 'text' must be texts.")
    return token, text


async def _body(request: Request) -> dict[str, Any]:
    try:
        found = orjson.loads(await request.body())
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise HTTPException(400, "The body is not a JSON object.")
    return found


def _config(request: Request) -> RunnableConfig:
    return {"configurable": {"thread_id": request.path_params["id"]}}


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")


def main() -> None:
    """Serve until SIGTERM. Prints ``ready PORT`` when requests are taken, ``closed`` when everything is flushed."""
    import uvicorn

    parser = argparse.ArgumentParser(prog="python -m loadtest.service", description="The service under load.")
    parser.add_argument("--saver", choices=tuple(SAVERS), default=os.environ.get("LOADTEST_SAVER", "pgcairn"))
    parser.add_argument("--dsn", default=os.environ.get("LOADTEST_DSN", ""))
    parser.add_argument("--port", type=int, default=0, help="0 (default): any free one")
    parser.add_argument("--conversations", type=Path)
    options = parser.parse_args()
    if not options.dsn and SAVERS[options.saver].needs_server:
        parser.error("--dsn (or LOADTEST_DSN) is missing.")
    listening = socket.create_server(("127.0.0.1", options.port), backlog=_BACKLOG)
    port = listening.getsockname()[1]

    def told(what: str) -> None:
        print(f"ready {port}" if what == "ready" else what, flush=True)

    app = make_app(options.saver, options.dsn, options.conversations, told=told)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=False,
        proxy_headers=False,
        log_level="warning",
        server_header=False,
        date_header=False,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
    )
    # What was imported is never garbage; to look at it in every full collection stops the loop for 0.1 s.
    gc.collect()
    gc.freeze()
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
