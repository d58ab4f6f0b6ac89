"""From results to Markdown: the tables that a run prints, and those of the documents.

    python -m bench.report [--results bench/results] [FILE ...]

rewrites what stands between ``<!-- bench:NAME -->`` and ``<!-- /bench -->`` in docs/benchmarks.md and README.md (or the
files that are named), so that no number there is typed by hand. ``NAME`` is a bench, ``machine`` or ``summary``. A block
without results stays as it is.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import BENCHES

RESULTS = Path(__file__).with_name("results")
_ROOT = Path(__file__).parents[1]
_FILES = (_ROOT / "docs" / "benchmarks.md", _ROOT / "README.md")
_BLOCK = re.compile(r"(<!-- bench:([a-z_]+) -->\n)(.*?)(<!-- /bench -->)", re.DOTALL)

Result = Mapping[str, Any]


def read(folder: Path) -> dict[str, Result]:
    """The results of a folder by name."""
    found = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json")))
    by_name = {result["bench"]: result for result in found}
    return {name: by_name[name] for name in BENCHES if name in by_name}


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are figures."""
    lines = [
        f"| {' | '.join(header)} |",
        f"| --- |{' ---: |' * (len(header) - 1)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]
    return "\n".join(lines)


def verdict(found: Mapping[str, Any]) -> str:
    """One target, both sides, and whether it was reached."""
    bound = "≤" if found["at_most"] else "≥"
    answer = "met" if found["met"] else "**not met**"
    return (
        f"- {found['work']}: {found['ours_label']} {_figure(found['ours'])} {found['unit']} ÷ {found['theirs_label']} "
        f"{_figure(found['theirs'])} {found['unit']} = {found['ratio']:.2f}; target {bound} {found['target']:.3g}: {answer}"
    )


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def body(result: Result) -> str:
    """Tables, verdicts and notes of one bench, with the command that makes them."""
    parts = [f"`{result['command']}` ({_how(result)})"]
    parts += [f"{each['title']}:\n\n{table(each['header'], each['rows'])}" for each in result["tables"]]
    if result["verdicts"]:
        parts.append("\n".join(verdict(each) for each in result["verdicts"]))
    parts += result["notes"]
    return "\n\n".join(parts)


def summary(results: Mapping[str, Result], before: str = "") -> str:
    """All targets in one table.

    Args:
        before: A table of this kind; its rows stay where their command has no result.
    """
    measured = {f"`{result['command']}`" for result in results.values()}
    cells = [
        tuple(line.strip("| ").split(" | ")) for line in before.splitlines()[2:] if line.startswith("| ")
    ]
    rows = [each for each in cells if each[-1] not in measured]
    rows += [
        (
            each["work"],
            f"{each['ours_label']}: {_figure(each['ours'])} {each['unit']}",
            f"{each['theirs_label']}: {_figure(each['theirs'])} {each['unit']}",
            f"{each['ratio']:.2f}",
            f"{'≤' if each['at_most'] else '≥'} {each['target']:.3g}{'' if each['met'] else ' (not met)'}",
            f"`{result['command']}`",
        )
        for result in results.values()
        for each in result["verdicts"]
    ]
    return table(("work", "this", "that", "ratio", "target", "command"), rows)


def machine(results: Mapping[str, Result]) -> str:
    """Where the results come from. Says so if they come from different places."""
    lines = sorted({_where(result) for result in results.values()})
    warning = "" if len(lines) == 1 else "These results come from different runs:\n\n"
    return warning + "\n\n".join(lines)


def _how(result: Result) -> str:
    commit, options = result["machine"]["commit"] or "unknown", result["options"]
    changed = " with changes" if commit.endswith("+changes") else ""
    return f"{options['rounds']} rounds of {options['seconds']:g} s, pgcairn at commit {commit[:10]}{changed}"


def _where(result: Result) -> str:
    found, packages = result["machine"], result["machine"]["packages"]
    text = (
        f"{found['cpus']} virtual cores ({found['cpu']}), {found['system'].partition(' ')[0]}, client and server on the same "
        f"machine; Python {found['python']} with {found['event_loop']}; langgraph {packages['langgraph']}, "
        f"langgraph-checkpoint-postgres {packages['langgraph-checkpoint-postgres']}, psycopg {packages['psycopg']}, "
        f"asyncpg {packages['asyncpg']}."
    )
    server = result["server"]
    if server is not None:
        settings = server["settings"]
        durable = ", ".join(
            f"{name} = {settings[name]}"
            for name in ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size")
        )
        text += f" PostgreSQL {server['version']}, {durable}."
    return text


def fill(document: str, results: Mapping[str, Result]) -> str:
    """A document with its blocks made anew."""

    def made(match: re.Match[str]) -> str:
        begin, name, before, end = match.groups()
        if not results:
            return match.group()
        if name == "summary":
            content = summary(results, before)
        elif name == "machine":
            content = machine({k: v for k, v in results.items() if v["server"] is not None} or results)
        elif name in results:
            content = body(results[name])
        else:
            return match.group()
        return f"{begin}{content}\n{end}"

    return _BLOCK.sub(made, document)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Fill the documents' tables from the results.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("files", nargs="*", type=Path, default=list(_FILES))
    options = parser.parse_args()
    results = read(options.results)
    if not results:
        raise SystemExit(f"No results in {options.results}: run python -m bench first.")
    for path in options.files:
        before = path.read_text(encoding="utf-8")
        after = fill(before, results)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
