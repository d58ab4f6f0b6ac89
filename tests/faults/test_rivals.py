"""Processes that write the same threads while others prune and copy them: nothing is torn, nothing is left over."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, STDOUT, Process

from pgcairn.operations.doctor import Severity, examine
from tests.support.savers import config, listed, saver_on

# Enough to meet each other a few hundred times; PGCAIRN_TEST_ROUNDS=2000 for thousands of prunes.
_ROUNDS = int(os.environ.get("PGCAIRN_TEST_ROUNDS", "120"))


async def _start(dsn: str, kind: str, seed: int) -> Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.support.rivals", kind, str(seed), str(_ROUNDS)),
        stdin=PIPE,
        stdout=PIPE,
        stderr=STDOUT,
        env={**os.environ, "RIVALS_DSN": dsn},
    )


async def test_two_writers_two_pruners_and_a_doctor(database: str) -> None:
    async with saver_on(database, "pgcairn") as saver:
        writers = [await _start(database, "write", seed) for seed in (1, 2)]
        pruners = [await _start(database, "prune", seed) for seed in (3, 4)]
        outputs = await asyncio.gather(*(each.communicate() for each in writers))
        outputs += await asyncio.gather(*(each.communicate(b"") for each in pruners))  # closes their input
        for process, (output, _) in zip([*writers, *pruners], outputs, strict=True):
            assert process.returncode == 0, output.decode()
        await saver.aprune([each.config["configurable"]["thread_id"] for each in await listed(saver, None)])
        report = await examine(saver)
        assert report.totals.values > 3
        assert report.totals.edits > 0
        assert report.is_clean, report.findings
        assert all(finding.kind.severity is Severity.NOTE for finding in report.findings)
        assert await listed(saver, config("thread-0"))
