"""How many write lanes are best?

Source of the default of ``Settings.lanes``.
"""

from __future__ import annotations

from typing import Any

from bench.harness import Lab, Sample, Table
from bench.loads import supersteps
from bench.peers import Saver, pgcairn
from pgcairn.settings import Settings

_LANES = (1, 2, 3, 4, 8)
_CALLERS = (16, 64, 256)


async def _batch_rows(saver: Saver, _: str, __: Sample) -> dict[str, Any]:
    return {"batch_rows_mean": saver.stats().batch_rows_mean}  # type: ignore[attr-defined]


async def run(lab: Lab) -> None:
    """Measure."""
    contenders = {lanes: pgcairn(f"lanes={lanes}", lanes=lanes) for lanes in _LANES}
    found = {}
    for callers in _CALLERS:
        load = supersteps(callers)
        found[callers] = await lab.compare(
            f"{callers} threads", [(peer, load) for peer in contenders.values()], finish=_batch_rows
        )
    lab.tables.append(
        Table(
            f"Supersteps/s (and mean rows of a batch) by lanes; the default is {Settings().lanes}",
            ("lanes", *(f"{callers} threads" for callers in _CALLERS)),
            [
                (
                    str(lanes),
                    *(
                        f"{found[callers].rate(peer):,.0f} ({found[callers].extra(peer, 'batch_rows_mean'):.0f})"
                        for callers in _CALLERS
                    ),
                )
                for lanes, peer in contenders.items()
            ],
        )
    )
