"""Copying a thread, on the server and in one statement: the client sees no rows.

Owns what a copy refuses. Keeps no order among callers; that is the coalescer's.
"""

from __future__ import annotations

from pgcairn.connection.pool import Runner, Session
from pgcairn.errors import InvalidInput, OutcomeUnknown, RejectedError
from pgcairn.storage.thread_repository import Copied, ThreadRepository
from pgcairn.telemetry import Counters

_UNIQUE_VIOLATION = "23505"  # PostgreSQL manual, appendix A


async def copy_thread(
    run: Runner, repository: ThreadRepository, counters: Counters, source_id: str, target_id: str
) -> None:
    """Copy everything of a thread to one that has nothing.

    Args:
        run: Runs the transaction.
        repository: The statements.
        counters: ``threads_copied`` is counted.
        source_id: The thread to copy.
        target_id: The thread to make.

    Raises:
        InvalidInput: The source has nothing, or the target has something.
        OutcomeUnknown: A connection broke, and after that the target was there.
    """
    attempts = 0

    async def transaction(session: Session) -> Copied:
        nonlocal attempts
        attempts += 1
        return await repository.copy_thread(session, source_id, target_id)

    try:
        copied = await run(transaction)
    except RejectedError as error:
        if error.sqlstate != _UNIQUE_VIOLATION:
            raise
        raise _exists(source_id, target_id) from error  # written to at the same moment
    if copied.is_taken and attempts > 1:
        # Perhaps by the attempt that got no answer.
        raise OutcomeUnknown(
            f"Thread {target_id!r} exists; it may be the copy of {source_id!r}, made by an attempt that got no answer.",
            hint="Compare the two threads; to copy again, delete the target first.",
        )
    if copied.is_taken:
        raise _exists(source_id, target_id)
    if not (copied.checkpoints or copied.values or copied.writes):
        raise InvalidInput(f"Thread {source_id!r} has nothing to copy.", hint="Is that the thread's id?")
    counters.threads_copied += 1


def _exists(source_id: str, target_id: str) -> InvalidInput:
    return InvalidInput(
        f"Thread {source_id!r} cannot be copied to {target_id!r}, which exists already.",
        hint="Copy to a thread id that is not used, or delete that thread first.",
    )
