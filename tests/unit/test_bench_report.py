"""The tables of docs/benchmarks.md: what was measured anew is replaced, nothing else is lost."""

from __future__ import annotations

from typing import Any

from bench.report import fill

_VERDICT = {
    "work": "saving",
    "ours_label": "pgcairn",
    "ours": 4.0,
    "theirs_label": "other",
    "theirs": 2.0,
    "unit": "ms",
    "ratio": 2.0,
    "at_most": False,
    "target": 3.0,
    "met": False,
}
_RESULT: dict[str, Any] = {
    "command": "python -m bench run saves",
    "verdicts": [_VERDICT],
    "tables": [{"title": "Saves", "header": ["saver", "ms"], "rows": [["pgcairn", "4"]]}],
    "notes": [],
    "options": {"rounds": 2, "seconds": 1.0},
    "machine": {"commit": "0123456789abcdef+changes"},
}
_DOCUMENT = """Before.

<!-- bench:summary -->
| work | this | that | ratio | target | command |
| --- | ---: | ---: | ---: | ---: | ---: |
| saving | pgcairn: 9 ms | other: 9 ms | 1.00 | ≥ 3 (not met) | `python -m bench run saves` |
| loading | pgcairn: 1 ms | other: 3 ms | 0.33 | ≤ 0.5 | `python -m bench run loads` |
<!-- /bench -->

<!-- bench:saves -->
Not measured yet.
<!-- /bench -->

<!-- bench:loads -->
As it was.
<!-- /bench -->
"""


def test_what_was_measured_anew_replaces_its_rows_and_its_block() -> None:
    made = fill(_DOCUMENT, {"saves": _RESULT})
    assert made.startswith("Before.\n")
    assert made.count("| saving |") == 1
    assert "| 2.00 | ≥ 3 (not met) | `python -m bench run saves` |" in made
    assert "`python -m bench run saves` (2 rounds of 1 s, pgcairn at commit 0123456789 with changes)" in made
    assert "Not measured yet." not in made


def test_what_was_not_measured_stays() -> None:
    made = fill(_DOCUMENT, {"saves": _RESULT})
    assert "| loading | pgcairn: 1 ms | other: 3 ms | 0.33 | ≤ 0.5 | `python -m bench run loads` |" in made
    assert "As it was." in made
    assert fill(_DOCUMENT, {}) == _DOCUMENT
    assert fill(made, {"saves": _RESULT}) == made
