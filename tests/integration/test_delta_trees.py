"""Any tree of checkpoints, as LangGraph could have made it: every history in it is that of LangGraph's own walk."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot

from pgcairn import PostgresSaver
from tests.support.savers import LARGE_TEXT, checkpoint, config, metadata, version
from tests.support.server import Server

CHANNELS = ("x", "y", "z")
_threads = itertools.count()


@dataclass(frozen=True)
class Node:
    """A checkpoint to be.

    Attributes:
        parent: How many checkpoints before; 0 or too many: none.
        writes: (channel, task path) of what its tasks write; its children have then updated that channel.
        kinds: What each channel keeps: nothing, a snapshot, or a plain value.
        counts: Whether it was made by a graph that counts, as those with DeltaChannels do.
    """

    parent: int
    writes: tuple[tuple[str, str], ...]
    kinds: tuple[str, ...]
    counts: bool


_KINDS = st.sampled_from(["nothing"] * 6 + ["snapshot", "large snapshot", "inline", "large", "none"])
_NODES = st.builds(
    Node,
    parent=st.sampled_from([1, 1, 1, 1, 1, 1, 2, 3, 0]),
    writes=st.lists(st.tuples(st.sampled_from(CHANNELS), st.sampled_from("abc")), max_size=4).map(tuple),
    kinds=st.tuples(*[_KINDS] * len(CHANNELS)),
    counts=st.sampled_from([True, True, True, False]),
)


def made(kind: str, number: int) -> Any:
    return {
        "snapshot": _DeltaSnapshot([number]),
        "large snapshot": _DeltaSnapshot([number, LARGE_TEXT]),
        "inline": f"inline {number}",
        "large": [number, LARGE_TEXT],
        "none": None,
    }[kind]


@dataclass
class Made:
    versions: dict[str, str]
    counters: dict[str, list[int]]
    updated_next: set[str]


def plant(savers: tuple[BaseCheckpointSaver[Any], ...], thread_id: str, nodes: list[Node]) -> None:
    """Put a tree into savers."""
    done: list[Made] = []
    for number, node in enumerate(nodes):
        parent = number - node.parent if 0 < node.parent <= number else None
        before = Made({}, {}, set()) if parent is None else done[parent]
        versions = dict(before.versions)
        values: dict[str, Any] = {}
        counters: dict[str, list[int]] = {}
        for channel, kind in zip(CHANNELS, node.kinds, strict=True):
            # A graph that counts stores snapshots of its DeltaChannels and nothing else of them.
            is_kept = kind != "nothing" and (not node.counts or "snapshot" in kind)
            is_updated = channel in before.updated_next
            if is_updated or is_kept:
                versions[channel] = version(number + 1)
            if is_kept:
                values[channel] = made(kind, number)
            elif node.counts:
                updates, supersteps = before.counters.get(channel, (0, 0))
                counters[channel] = [updates + is_updated, supersteps + 1]
        new = {name: each for name, each in versions.items() if before.versions.get(name) != each}
        meta = metadata(source="loop", step=number)
        if counters:
            meta = metadata(source="loop", step=number, counters_since_delta_snapshot=counters)
        for saver in savers:
            saver.put(config(thread_id, number=parent), checkpoint(number, values, versions), meta, dict(new))
            for place, (channel, path) in enumerate(node.writes):
                saver.put_writes(
                    config(thread_id, number=number),
                    [(channel, f"{number}.{place}")],
                    f"task {9 - place}",
                    path,
                )
        done.append(Made(versions, counters, {channel for channel, _ in node.writes}))


@pytest.fixture(scope="module")
def saver(server: Server, shared_database: str) -> Iterator[PostgresSaver]:
    with PostgresSaver.from_conn_string(server.dsn(shared_database), schema="trees", min_size=1) as opened:
        opened.setup()
        yield opened


def chain(*kinds: str) -> list[Node]:
    return [Node(1, (("x", "a"),), (kind, "nothing", "nothing"), True) for kind in kinds]


@given(st.lists(_NODES, min_size=2, max_size=14), st.sets(st.sampled_from(CHANNELS), min_size=1))
@example([*chain("snapshot", "nothing", "nothing")], {"x"})
@example([Node(1, (), ("inline", "none", "large"), False), *chain("nothing", "nothing")], {"x", "y", "z"})
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_history_is_that_of_langgraphs_own_walk(
    saver: PostgresSaver, nodes: list[Node], channels: set[str]
) -> None:
    thread_id = f"tree-{next(_threads)}"
    memory = InMemorySaver()
    plant((saver, memory), thread_id, nodes)
    asked = sorted(channels)
    # Counters that begin anew without a value, which only this tree has, cost one more.
    most = 2 if all(node.counts for node in nodes) else 3
    for number in range(len(nodes)):
        where = config(thread_id, number=number)
        before = saver.stats().statements
        ours = saver.get_delta_channel_history(config=where, channels=asked)
        assert saver.stats().statements - before <= most
        assert ours == BaseCheckpointSaver.get_delta_channel_history(saver, config=where, channels=asked)
        assert ours == memory.get_delta_channel_history(config=where, channels=asked)
