"""What people write today runs as it stands."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from langgraph.graph import END, START, StateGraph
from psycopg_pool import AsyncConnectionPool
from typing_extensions import TypedDict

from pgcairn import AsyncPostgresSaver


class State(TypedDict):
    """A list that grows."""

    items: Annotated[list[str], operator.add]


def make_builder() -> StateGraph[State, None, State, State]:
    def node(state: State) -> dict[str, Any]:
        return {"items": [f"seen {len(state['items'])}"]}

    builder = StateGraph(State)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder


async def test_the_snippet_with_a_connection_string(database: str) -> None:
    dsn, builder = database, make_builder()

    async with AsyncPostgresSaver.from_conn_string(dsn) as saver:
        await saver.setup()
        graph = builder.compile(checkpointer=saver)
        result = await graph.ainvoke({"items": ["a"]}, {"configurable": {"thread_id": "1"}})

    assert result == {"items": ["a", "seen 1"]}


async def test_the_snippet_with_a_pool(database: str) -> None:
    dsn, builder = database, make_builder()

    # The warning is psycopg's own, for whoever opens a pool in its constructor.
    with pytest.warns(RuntimeWarning, match="opening the async pool"):
        pool = AsyncConnectionPool(
            conninfo=dsn, min_size=5, max_size=50, max_idle=300, max_lifetime=1800, open=True
        )
    saver = AsyncPostgresSaver(pool, pipeline=True)
    await saver.setup()
    graph = builder.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "1"}}
    result = await graph.ainvoke({"items": ["a"]}, config)

    assert result == {"items": ["a", "seen 1"]}
    assert (await graph.aget_state(config)).values == result
    await saver.aclose()
    await pool.close()
