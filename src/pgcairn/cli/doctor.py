"""``pgcairn doctor``: examines what is stored, and sweeps what nothing needs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from langgraph.checkpoint.serde.base import SerializerProtocol
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer

from pgcairn.cli.event_loop import run_loop
from pgcairn.cli.schema import add_dsn, dsn_of
from pgcairn.errors import InvalidInput
from pgcairn.operations.doctor import Kind, Report, Severity, Totals, examine
from pgcairn.saver import AsyncPostgresSaver

PROBLEMS_FOUND = 1
_KEY_VARIABLE = "LANGGRAPH_AES_KEY"  # the one that LangGraph's EncryptedSerializer reads
_SHOWN_FINDINGS = 20
_CLEAR_LINE = "\r\x1b[K"


def register(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Add the command."""
    doctor = subparsers.add_parser(
        "doctor",
        help="verify what is stored: checksums, references, leftovers",
        description="Verify what is stored: checksums, references, chains of edits, leftovers. Only reads, unless "
        "--repair is given; safe beside a live system. Exit code: 0 nothing is wrong, 1 something is, or an error.",
    )
    add_dsn(doctor)
    doctor.add_argument(
        "--thread",
        action="append",
        metavar="T",
        help="examine this thread only; may be given several times (default: all threads)",
    )
    doctor.add_argument(
        "--deserialize",
        action="store_true",
        help="also let LangGraph's serializer read every payload; it may import and call what they name",
    )
    doctor.add_argument(
        "--repair",
        action="store_true",
        help="delete what nothing needs: orphaned values, and orphaned writes older than the grace; never a checkpoint",
    )
    doctor.add_argument(
        "--grace-seconds",
        type=float,
        default=3600.0,
        metavar="S",
        help="how old a checkpoint that does not exist must be before its writes are orphaned; longer than your "
        "longest run (default: 3600)",
    )
    doctor.add_argument(
        "--allow-plaintext",
        action="store_true",
        help=f"with {_KEY_VARIABLE}: rows that are not encrypted are fine",
    )
    doctor.add_argument(
        "--all", action="store_true", help=f"list all findings, not the first {_SHOWN_FINDINGS} of each kind"
    )
    doctor.add_argument("--json", action="store_true", help="print the report as JSON")
    doctor.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Examine, print the report, and say by the exit code whether something is wrong."""
    report = run_loop(_examine(arguments))
    if arguments.json:
        print(json.dumps(report.as_dict(), indent=2, ensure_ascii=True))
    else:
        _print(report, is_limited=not arguments.all)
    return 0 if report.is_clean else PROBLEMS_FOUND


async def _examine(arguments: argparse.Namespace) -> Report:
    async with AsyncPostgresSaver.from_conn_string(
        dsn_of(arguments),
        serde=_serializer(),
        schema=arguments.schema,
        allow_plaintext=arguments.allow_plaintext,
        application_name="pgcairn doctor",
        min_size=0,
        max_size=2,
    ) as saver:
        on_progress = _progress() if sys.stderr.isatty() else None
        try:
            return await examine(
                saver,
                arguments.thread,
                deserialize=arguments.deserialize,
                repair=arguments.repair,
                grace_seconds=arguments.grace_seconds,
                max_findings=None if arguments.all else _SHOWN_FINDINGS,
                on_progress=on_progress,
            )
        finally:
            if on_progress is not None:
                print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)


def _serializer() -> SerializerProtocol | None:
    """LangGraph's encrypting serializer if its key is in the environment; ``None``: the default one."""
    if not os.environ.get(_KEY_VARIABLE):
        return None
    try:
        return EncryptedSerializer.from_pycryptodome_aes()
    except (ImportError, ValueError) as error:
        raise InvalidInput(
            f"{_KEY_VARIABLE} is set, but cannot be used: {error}",
            hint=f"Install pycryptodome, or unset {_KEY_VARIABLE}: encrypted rows are then counted, not checked.",
        ) from error


def _progress() -> Callable[[Totals], None]:
    def show(totals: Totals) -> None:
        print(
            f"{_CLEAR_LINE}{totals.threads:,} threads, {totals.checkpoints:,} checkpoints, {totals.values:,} values, "
            f"{totals.writes:,} writes, {_size(totals.stored_bytes)}",
            end="",
            file=sys.stderr,
            flush=True,
        )

    return show


def _print(report: Report, *, is_limited: bool) -> None:
    totals = report.totals
    sealed = f"{totals.sealed_rows:,}" + (f" (set {_KEY_VARIABLE})" if totals.sealed_rows else "")
    for name, text in (
        ("threads", f"{totals.threads:,}"),
        ("checkpoints", f"{totals.checkpoints:,} ({totals.hidden_checkpoints:,} hidden)"),
        ("values", f"{totals.values:,} ({totals.edits:,} edits, deepest chain {totals.deepest_chain})"),
        ("writes", f"{totals.writes:,}"),
        ("bytes", f"{totals.stored_bytes:,} ({_size(totals.stored_bytes)})"),
        ("sealed, not checked", sealed),
    ):
        print(f"{name:<20} {text}")
    for severity in Severity:
        for kind, count in report.counts.items():
            if kind.severity is severity:
                print(f"\n{severity.value}: {kind.value} ({count:,}): {kind.meaning}")
                _print_findings(report, kind, is_swept=False, is_limited=is_limited)
    for kind, count in report.swept.items():
        print(f"\nswept: {kind.value} ({count:,}): {kind.meaning}")
        _print_findings(report, kind, is_swept=True, is_limited=is_limited)
    if report.swept:
        print(f"\n{_size(report.swept_bytes)} swept; the server reuses the space after its next vacuum.")
    if report.unswept_threads:
        print(
            f"\nNothing was swept in {report.unswept_threads:,} damaged threads: leftovers may help to mend them."
        )
    print(f"\n{_verdict(report)}")


def _print_findings(report: Report, kind: Kind, *, is_swept: bool, is_limited: bool) -> None:
    shown = [each for each in report.findings if each.kind is kind and each.is_swept == is_swept]
    for finding in shown:
        print(f"  {finding}")
    if is_limited and len(shown) == _SHOWN_FINDINGS:
        print("  … (--all lists all)")


def _verdict(report: Report) -> str:
    if report.is_clean:
        return "Nothing is wrong."
    if any(kind.severity is Severity.DAMAGE for kind in report.counts):
        return "Something is damaged: docs/doctor.md says what each kind means and what to do."
    return "No damage, but leftovers: --repair deletes them."


def _size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
