"""From a journal and samples to figures, tables and targets.

Everything is about the measured seconds, after the ramp. A request belongs to the second in which it was due; it counts as
served in the second in which its answer came.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from loadtest.journal import Entry, Journal
from loadtest.verify import Verdict

_LOG_CHARACTERS = 2000
_MISSING_LINES = 50


@dataclass(frozen=True)
class Run:
    """One run.

    Attributes:
        figures: Numbers of the measured seconds.
        kinds: Requests, failures and latencies by kind.
        seconds: One row a second, ramp included: for the plots.
        faults: What was done, in seconds since the beginning.
        log: The end of what service and Locust wrote to standard error.
    """

    options: dict[str, Any]
    figures: dict[str, Any]
    kinds: dict[str, dict[str, Any]]
    seconds: list[dict[str, Any]]
    faults: list[dict[str, Any]]
    missing: list[str]
    errors: dict[str, int]
    log: str


def quantile(ordered: Sequence[float], share: float) -> float:
    """A quantile of sorted values; 0 where there are none."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def make(
    options: dict[str, Any],
    journal: Journal,
    samples: Sequence[dict[str, Any]],
    faults: Sequence[dict[str, Any]],
    verdict: Verdict | None,
    log: str,
) -> Run:
    """Put everything together."""
    ramp, seconds = options["ramp_seconds"], options["seconds"]
    end = ramp + seconds
    measured = [entry for entry in journal.entries if ramp <= entry.due_seconds < end]
    served = sum(1 for entry in journal.entries if entry.is_acknowledged and ramp <= entry.done_seconds < end)
    relative = [each | {"at": each["at"] - journal.began} for each in samples]
    cpu = _cpu(relative, ramp, end)
    requests = sum(1 for entry in journal.entries if cpu["from"] <= entry.done_seconds < cpu["to"])
    figures: dict[str, Any] = {
        "offered_rps": len(measured) / seconds,
        "served_rps": served / seconds,
        **_latencies(measured),
        "sent_late_p99_ms": quantile(sorted(each.sent_seconds - each.due_seconds for each in measured), 0.99)
        * 1e3,
        "requests": len(measured),
        "failures": sum(not entry.is_acknowledged for entry in journal.entries),
        **(_verified(verdict) if verdict is not None else {}),
        **{
            f"{name}_cpu_ms": (spent / requests * 1e3 if requests else 0.0)
            for name, spent in cpu["spent"].items()
        },
        **{
            f"{name}_cpu_share": spent / max(1e-9, cpu["to"] - cpu["from"])
            for name, spent in cpu["spent"].items()
        },
    }
    kinds = {}
    for kind in sorted({entry.kind for entry in measured}):
        mine = [entry for entry in measured if entry.kind == kind]
        kinds[kind] = {
            "requests": len(mine),
            "failures": sum(not entry.is_acknowledged for entry in mine),
            **_latencies(mine),
        }
    return Run(
        options=options,
        figures=figures,
        kinds=kinds,
        seconds=_by_second(journal.entries, relative, end),
        faults=[each | {"at": each["at"] - journal.began} for each in faults],
        missing=list(verdict.missing[:_MISSING_LINES]) if verdict is not None else [],
        errors=dict(
            Counter(entry.error for entry in journal.entries if entry.error is not None).most_common(10)
        ),
        log=log[-_LOG_CHARACTERS:],
    )


def as_json(run: Run) -> dict[str, Any]:
    """What is written to a file."""
    return asdict(run)


def _verified(verdict: Verdict) -> dict[str, Any]:
    return {
        "turns_acknowledged": verdict.turns,
        "turns_missing": verdict.turns_missing,
        "messages_checked": verdict.messages,
        "threads": verdict.threads,
        "turns_unclaimed": verdict.unclaimed,
    }


def _latencies(entries: Sequence[Entry]) -> dict[str, float]:
    ordered = sorted(entry.latency_seconds * 1e3 for entry in entries)
    return {
        "p50_ms": quantile(ordered, 0.5),
        "p95_ms": quantile(ordered, 0.95),
        "p99_ms": quantile(ordered, 0.99),
        "max_ms": ordered[-1] if ordered else 0.0,
    }


def _cpu(samples: Sequence[dict[str, Any]], ramp: float, end: float) -> dict[str, Any]:
    # Between the samples next to the borders; the requests of the same time are the divisor.
    inside = [each for each in samples if ramp <= each["at"] <= end]
    if len(inside) < 2:
        return {"from": 0.0, "to": 0.0, "spent": {}}
    first, last = inside[0], inside[-1]
    return {
        "from": first["at"],
        "to": last["at"],
        "spent": {name: last["cpu"][name] - first["cpu"][name] for name in last["cpu"]},
    }


def _by_second(
    entries: Sequence[Entry], samples: Sequence[dict[str, Any]], end: float
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    due: dict[int, list[Entry]] = {}
    done: Counter[int] = Counter()
    for entry in entries:
        due.setdefault(int(entry.due_seconds), []).append(entry)
        if entry.is_acknowledged:
            done[int(entry.done_seconds)] += 1
    last_samples: dict[int, dict[str, Any]] = {int(each["at"]): each for each in samples if each["at"] >= 0}
    before: dict[str, float] = {}
    for second in range(math.ceil(end)):
        mine = due.get(second, [])
        row: dict[str, Any] = {
            "second": second,
            "offered": len(mine),
            "served": done[second],
            "failures": sum(not entry.is_acknowledged for entry in mine),
            "waiting": sum(entry.due_seconds < second + 1 <= entry.done_seconds for entry in entries),
            **_latencies(mine),
        }
        stats = [
            each["stats"] for each in last_samples.get(second, {}).get("services", []) if each.get("stats")
        ]
        if stats:
            row["pool_size"] = sum(each["pool_size"] for each in stats)
            row["pool_used"] = sum(each["pool_size"] - each["pool_idle"] for each in stats)
            if "backlog_rows" in stats[0]:
                now = {
                    "batches": float(sum(each["batches"] for each in stats)),
                    "rows": float(sum(each["batch_rows_mean"] * each["batches"] for each in stats)),
                }
                row["backlog_rows"] = sum(each["backlog_rows"] for each in stats)
                if before and now["batches"] > before["batches"]:
                    row["batch_rows"] = (now["rows"] - before["rows"]) / (now["batches"] - before["batches"])
                before = now
        rows.append(row)
    return rows
