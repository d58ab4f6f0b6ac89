"""Pruning threads and deleting runs, in transactions of bounded size, beside running writers.

Owns the order in which things go: newest first, so that every checkpoint that is still visible has the ancestors
that it is rebuilt from; subgraph calls before the root checkpoint that they go by; values last. Whatever breaks off
in between loses nothing that is kept, and the next call does the rest.

What goes is chosen once, by the first statement: what others commit later is not touched. Whether it is deleted or
only hidden, and whether a value is still unreferenced, is decided within each transaction, after its locks are held.
Holds no session between transactions and keeps no order among callers; that is the coalescer's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import TypeVar

from pgcairn.connection.pool import Runner, Session
from pgcairn.storage.thread_repository import Checkpoints, Place, Range, Removed, ThreadRepository, ValuePlace
from pgcairn.telemetry import Counters

T = TypeVar("T")

# Rows that one transaction locks and removes, as many as a batch of the write path has (guess): about 20 ms, for which
# a writer of the same rows may have to wait, and what a lost connection repeats.
_ROWS_PER_TRANSACTION = 1000

# Up to this many checkpoints go in one transaction where nothing is hidden: about 30 ms (bench/prune_copy.py).
_MOST_AT_ONCE = 10_000

# In a namespace: what follows is the id of a call. Without one it belongs to a subgraph that keeps its state.
_CALL = ":"


class Retention:
    """Removes checkpoints, and the writes and values that went with them.

    Args:
        repository: The statements.
        counters: What was removed is counted.
    """

    def __init__(self, repository: ThreadRepository, counters: Counters) -> None:
        self._repository = repository
        self._counters = counters

    async def prune(self, run: Runner, thread_id: str, keep_last: int) -> None:
        """Keep the newest checkpoints of each namespace of a thread.

        Args:
            run: Runs each transaction.
            thread_id: The thread; an unknown one is fine.
            keep_last: How many to keep, at least 1.
        """
        repository = self._repository
        found = await run(lambda session: repository.select_places(session, thread_id))
        calls = [(ns, found[ns].visible[0]) for ns in found if _CALL in ns and found[ns].visible]
        roots: Mapping[str, str | None] = {}
        if calls:
            roots = await run(lambda session: repository.select_roots(session, thread_id, calls))
        kept = choose_kept(found, roots, keep_last)
        known_id = max((found[ns].newest for ns in found), default="")
        needed = await run(lambda session: repository.select_needed(session, thread_id, kept, known_id))
        gone, rest = choose_gone(found, kept, needed)
        if not await self._remove_ranges(run, thread_id, found, gone, rest, needed, known_id):
            await self._remove(run, thread_id, gone, needed=needed, rest=rest, known_id=known_id)
            # Also what others put meanwhile as children of what has gone.
            await run(lambda session: repository.relink_checkpoints(session, thread_id, rest, known_id))
        await self._collect(run, thread_id, at_once=len(gone) <= _MOST_AT_ONCE)

    async def find_runs(self, run: Runner, run_ids: Sequence[str]) -> dict[str, list[Place]]:
        """Find the checkpoints of runs, by thread."""
        return await run(lambda session: self._repository.select_runs(session, run_ids))

    async def delete_checkpoints(self, run: Runner, thread_id: str, places: Sequence[Place]) -> None:
        """Delete checkpoints of a thread with their writes and values, and what was hidden for their sake.

        Args:
            run: Runs each transaction.
            thread_id: The thread.
            places: Which, in the order in which they are to go.
        """
        repository = self._repository
        await self._remove(run, thread_id, places, needed=frozenset(), rest=(), known_id="")
        found = await run(lambda session: repository.select_places(session, thread_id))
        hidden = [(ns, each) for ns in found for each in found[ns].hidden]
        if hidden:
            needed = await run(lambda session: repository.select_needed(session, thread_id, (), ""))
            superfluous = [place for place in hidden if place not in needed]
            await self._remove(run, thread_id, superfluous, needed=frozenset(), rest=(), known_id="")
        await self._collect(run, thread_id)

    async def _remove_ranges(
        self,
        run: Runner,
        thread_id: str,
        found: Mapping[str, Checkpoints],
        gone: Sequence[Place],
        rest: Sequence[Place],
        needed: Set[Place],
        known_id: str,
    ) -> bool:
        """Remove everything at once where nothing is, was or will be hidden; say whether it was done."""
        if needed or len(gone) > _MOST_AT_ONCE or any(each.hidden for each in found.values()):
            return False
        by_namespace: dict[str, list[str]] = {}
        for checkpoint_ns, checkpoint_id in gone:
            by_namespace.setdefault(checkpoint_ns, []).append(checkpoint_id)
        ranges = [Range(ns, max(ids), len(ids)) for ns, ids in by_namespace.items()]
        if not ranges:
            return True
        removed = await run(
            lambda session: self._repository.remove_ranges(
                session, thread_id, ranges, rest=rest, known_id=known_id
            )
        )
        if removed is None:
            return False
        self._counters.checkpoints_pruned += removed.checkpoints
        self._counters.writes_pruned += removed.writes
        return True

    async def _remove(
        self,
        run: Runner,
        thread_id: str,
        places: Sequence[Place],
        *,
        needed: Set[Place],
        rest: Sequence[Place],
        known_id: str,
    ) -> None:
        counters = self._counters
        for chunk in _chunks(places):

            async def transaction(session: Session, chunk: Sequence[Place] = chunk) -> Removed:
                return await self._repository.remove_checkpoints(
                    session, thread_id, chunk, needed=needed, rest=rest, known_id=known_id
                )

            removed = await run(transaction)
            counters.checkpoints_pruned += removed.checkpoints
            counters.checkpoints_hidden += removed.hidden
            counters.writes_pruned += removed.writes

    async def _collect(self, run: Runner, thread_id: str, *, at_once: bool = False) -> None:
        """Delete the values that no checkpoint needs any more, what rests on others before those."""
        repository = self._repository
        if at_once:
            count = await run(lambda session: repository.delete_unneeded_values(session, thread_id))
            if count is not None:
                self._counters.values_pruned += count
                return
        garbage = await run(lambda session: repository.select_unreferenced(session, thread_id))
        for chunk in _chunks(garbage):

            async def transaction(session: Session, chunk: Sequence[ValuePlace] = chunk) -> int:
                return await repository.delete_values(session, thread_id, chunk)

            self._counters.values_pruned += await run(transaction)


def choose_kept(
    found: Mapping[str, Checkpoints], roots: Mapping[str, str | None], keep_last: int
) -> list[Place]:
    """Choose what a prune keeps: the newest of each namespace, but nothing of a subgraph call whose root checkpoint goes.

    Args:
        found: All checkpoints by namespace.
        roots: By call's namespace, the root checkpoint that the call started from.
        keep_last: How many to keep of a namespace.
    """
    root = found.get("", Checkpoints([], []))
    kept_roots = set(root.visible[:keep_last])
    # A root checkpoint that is not stored (yet) has not gone: runs save in the background.
    gone_roots = {*root.visible, *root.hidden} - kept_roots
    return [
        (ns, each)
        for ns in found
        if roots.get(ns) not in gone_roots
        for each in found[ns].visible[:keep_last]
    ]


def choose_gone(
    found: Mapping[str, Checkpoints], kept: Sequence[Place], needed: Set[Place]
) -> tuple[list[Place], list[Place]]:
    """Choose what a prune removes, in the order in which it is to go, and what remains, visible or hidden.

    The root namespace comes last: a call goes by its root checkpoint, so it must have gone before that.
    """
    staying = set(kept)
    gone: list[Place] = []
    for ns in sorted(found, reverse=True):
        gone += [(ns, each) for each in found[ns].visible if (ns, each) not in staying]
        gone += [(ns, each) for each in found[ns].hidden if (ns, each) not in needed]
    # Also of what will be hidden, and of what others hid: their links may change.
    return gone, [*kept, *sorted(needed - staying)]


def _chunks(places: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(places), _ROWS_PER_TRANSACTION):
        yield places[start : start + _ROWS_PER_TRANSACTION]
