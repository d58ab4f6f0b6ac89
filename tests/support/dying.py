"""A client that is killed while it works: ``python -m tests.support.dying DRIVER SCHEMA ACTION``; the DSN is in ``DYING_DSN``.

It says ``ready`` on its standard output before it begins, and ``done`` when it is through, which nobody expects.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

from pgcairn import AsyncPostgresSaver
from tests.support.savers import LARGE_TEXT, checkpoint, config, put, version


async def act(saver: AsyncPostgresSaver, action: str) -> None:
    """What it dies of."""
    if action == "put":
        what = checkpoint(9, {"n": 9, "big": LARGE_TEXT + "9"}, {"n": version(9), "big": version(9)})
        await asyncio.gather(
            put(saver, config(number=8), what), saver.aput_writes(config(number=9), [("n", 9)], "task")
        )
    elif action == "prune":
        await saver.aprune(["thread"])
    elif action == "copy":
        await saver.acopy_thread("thread", "copy")
    elif action == "setup":
        await saver.setup()
    else:
        raise ValueError(action)


async def main(driver: Any, schema: str, action: str) -> None:
    """Open a saver, say so, wait for a line, begin."""
    async with AsyncPostgresSaver.from_conn_string(
        os.environ["DYING_DSN"],
        driver=driver,
        schema=schema,
        application_name="dying",
        prepared_statements=False,  # so that statement and parameters travel together
    ) as saver:
        print("ready", flush=True)
        sys.stdin.readline()
        await act(saver, action)
        print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))
