"""Collects the fragments of this folder into CHANGELOG.md. See changes/README.md.

python changes/assemble.py --check              are all fragments named and written as they should be?
python changes/assemble.py                      move them below "Unreleased"
python changes/assemble.py --release 0.2.0      and give that section a version and a date
"""

from __future__ import annotations

import argparse
import datetime
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
CHANGELOG = FOLDER.parent / "CHANGELOG.md"
KINDS = ("added", "changed", "fixed", "removed", "security")
NAME = re.compile(rf"[a-z0-9]+(?:-[a-z0-9]+)*\.(?P<kind>{'|'.join(KINDS)})\.md")
NOT_FRAGMENTS = {"README.md", Path(__file__).name}
UNRELEASED = "## [Unreleased]"


def fragments() -> tuple[dict[str, list[Path]], list[str]]:
    """The fragments by kind, and what is wrong with the others."""
    found: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    faults = []
    for path in sorted(FOLDER.iterdir()):
        if path.name in NOT_FRAGMENTS or path.name.startswith((".", "__pycache__")):
            continue
        match = NAME.fullmatch(path.name)
        if match is None:
            faults.append(f"{path.name}: expected <slug>.<{'|'.join(KINDS)}>.md, slug in a-z, 0-9 and -")
            continue
        text = path.read_text(encoding="utf-8").strip()
        if not text:
            faults.append(f"{path.name}: is empty")
        elif text.startswith(("#", "- ", "* ")):
            faults.append(f"{path.name}: plain text only, the heading and the dash are added")
        else:
            found[match["kind"]].append(path)
    return found, faults


def entry(path: Path) -> str:
    """A fragment as an item of a list."""
    lines = path.read_text(encoding="utf-8").strip().splitlines()
    return "- " + "\n".join([lines[0], *(f"  {line}".rstrip() for line in lines[1:])])


def sections(body: str) -> dict[str, str]:
    """The items of a release by kind, as they stand in the changelog."""
    parts = re.split(r"^### (\w+)\n", body, flags=re.MULTILINE)
    return {parts[i].lower(): parts[i + 1].strip() for i in range(1, len(parts), 2)}


def assembled(changelog: str, found: dict[str, list[Path]], release: str | None, today: str) -> str:
    """The changelog with the fragments below "Unreleased", or below ``release``."""
    head, mark, rest = changelog.partition(UNRELEASED + "\n")
    if not mark:
        raise ValueError(f"CHANGELOG.md has no line {UNRELEASED!r}")
    end = re.search(r"^(## |\[)", rest, flags=re.MULTILINE)
    cut = end.start() if end else len(rest)
    body, tail = rest[:cut], rest[cut:]
    known = sections(body)
    blocks = []
    for kind in KINDS:
        items = "\n".join([*filter(None, [known.get(kind, "")]), *map(entry, found[kind])])
        if items:
            blocks.append(f"### {kind.capitalize()}\n\n{items}\n")
    title = UNRELEASED + "\n\n" + (f"## [{release}] - {today}\n\n" if release else "")
    return head + title + "\n".join(blocks) + ("\n" if blocks else "") + tail


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Collect change fragments into CHANGELOG.md.")
    parser.add_argument("--check", action="store_true", help="only check the fragments")
    parser.add_argument("--release", metavar="VERSION", help="close the section under this version")
    options = parser.parse_args()
    found, faults = fragments()
    for fault in faults:
        print(f"changes/{fault}", file=sys.stderr)
    if faults:
        return 1
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    text = assembled(CHANGELOG.read_text(encoding="utf-8"), found, options.release, today)
    if not options.check:
        CHANGELOG.write_text(text, encoding="utf-8")
        for path in (path for paths in found.values() for path in paths):
            path.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
