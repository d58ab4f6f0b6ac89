"""From results to Markdown: what a command prints, and the blocks of docs/loadtest.md.

    python -m loadtest.report [--results loadtest/results] [FILE ...]

rewrites what stands between ``<!-- loadtest:NAME -->`` and ``<!-- /loadtest -->``, so that no number there is typed by hand.
``NAME`` is the name of a result, or ``machine``. A block without results stays as it is.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report import table

RESULTS = Path(__file__).with_name("results")
_FILES = (Path(__file__).parents[1] / "docs" / "loadtest.md",)
_BLOCK = re.compile(r"(<!-- loadtest:([a-z_-]+) -->\n).*?(<!-- /loadtest -->)", re.DOTALL)

Result = Mapping[str, Any]


def read(folder: Path) -> dict[str, Result]:
    """The results of a folder by name."""
    found = (json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json")))
    return {result["name"]: result for result in found}


def label(options: Mapping[str, Any]) -> str:
    """A run in a word or two."""
    text = str(options["saver"])
    if options["processes"] > 1:
        text += f", {options['processes']} processes"
    return text + (", with faults" if options["faults"] else "")


def figures(runs: Sequence[Mapping[str, Any]]) -> str:
    """One line a run."""
    header = (
        *("saver", "offered RPS", "served RPS", "p50 ms", "p95 ms", "p99 ms", "failures"),
        *("turns acknowledged", "turns missing", "CPU ms/request: service", "PostgreSQL", "Locust"),
    )
    return table(header, [_row(run) for run in runs])


def _row(run: Mapping[str, Any]) -> list[str]:
    found = run["figures"]
    return [
        label(run["options"]),
        f"{found['offered_rps']:.1f}",
        f"{found['served_rps']:.1f}",
        *(_ms(found[name]) for name in ("p50_ms", "p95_ms", "p99_ms")),
        f"{found['failures']:,}",
        _count(found, "turns_acknowledged"),
        _count(found, "turns_missing"),
        *(f"{found.get(f'{name}_cpu_ms', 0.0):.2f}" for name in ("service", "postgresql", "locust")),
    ]


def _ms(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _count(found: Mapping[str, Any], name: str) -> str:
    return f"{found[name]:,}" if name in found else "not checked"


def kinds(run: Mapping[str, Any]) -> str:
    """One line a kind of request."""
    rows = [
        (
            kind,
            f"{found['requests']:,}",
            *(_ms(found[name]) for name in ("p50_ms", "p95_ms", "p99_ms")),
            f"{found['failures']:,}",
        )
        for kind, found in run["kinds"].items()
    ]
    return table(("request", "count", "p50 ms", "p95 ms", "p99 ms", "failures"), rows)


def target(found: Mapping[str, Any]) -> str:
    """One target, what was reached, whether it is enough."""
    value = found["found"]
    text = f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"
    return (
        f"- {found['what']}: {text}; target {found['bound']}: {'met' if found['is_met'] else '**not met**'}"
    )


def body(result: Result) -> str:
    """Everything about a result, with the command that makes it."""
    parts = [f"`{result['command']}`", figures(result["runs"])]
    if result["name"] != "ceiling":
        parts += [f"By request, {label(run['options'])}:\n\n{kinds(run)}" for run in result["runs"]]
    for run in result["runs"]:
        for problem in (
            *run["missing"][:5],
            *(f"{n} × {text}" for text, n in list(run["errors"].items())[:5]),
        ):
            parts.append(f"- {label(run['options'])}: {problem}")
        if run["faults"]:
            kills = [each for each in run["faults"] if each["what"] == "kill"]
            restarts = [each for each in run["faults"] if each["what"] == "restart"]
            parts.append(
                f"{len(kills)} times all sessions killed ({sum(each['sessions'] for each in kills)} sessions), "
                f"{len(restarts)} immediate restart{'' if len(restarts) == 1 else 's'} of the server."
            )
    parts += result["notes"]
    if result["targets"]:
        parts.append("\n".join(target(each) for each in result["targets"]))
    return "\n\n".join(parts)


def machine(results: Mapping[str, Result]) -> str:
    """Where the results come from. Says so if they come from different places."""
    lines = sorted({_where(result) for result in results.values()})
    warning = "" if len(lines) == 1 else "These results come from different runs:\n\n"
    return warning + "\n\n".join(lines)


def _where(result: Result) -> str:
    here, there, packages = result["machine"], result["server"], result["packages"]
    commit = here["commit"] or "unknown"
    durable = ", ".join(
        f"{name} = {there['settings'][name]}"
        for name in ("fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size")
    )
    versions = ", ".join(f"{name} {version}" for name, version in packages.items())
    return (
        f"{here['cpus']} virtual cores ({here['cpu']}), {here['system'].partition(' ')[0]}, for service, PostgreSQL and Locust "
        f"together; Python {here['python']}; {versions}; pgcairn {here['packages']['pgcairn']} at commit {commit[:10]}"
        f"{' with changes' if commit.endswith('+changes') else ''}. PostgreSQL {there['version']}, {durable}."
    )


def fill(document: str, results: Mapping[str, Result]) -> str:
    """A document with its blocks made anew."""

    def made(match: re.Match[str]) -> str:
        begin, name, end = match.groups()
        if name == "machine" and results:
            content = machine(results)
        elif name in results:
            content = body(results[name])
        else:
            return match.group()
        return f"{begin}{content}\n{end}"

    return _BLOCK.sub(made, document)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Fill the tables of the document from the results.")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("files", nargs="*", type=Path, default=list(_FILES))
    options = parser.parse_args()
    found = read(options.results)
    if not found:
        raise SystemExit(f"No results in {options.results}: run python -m loadtest first.")
    for path in options.files:
        before = path.read_text(encoding="utf-8")
        after = fill(before, found)
        if after != before:
            path.write_text(after, encoding="utf-8")
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
