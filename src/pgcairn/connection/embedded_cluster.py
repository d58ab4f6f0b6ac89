"""The data directory of an embedded server: its layout, its creation, its settings, its socket.

Owns what lies on disk. Never starts a server and takes no lock: ``embedded`` calls it while it holds the
directory's lock. The layout::

    PATH/pgdata/             the PostgreSQL cluster
    PATH/pgcairn-password    the password of the user postgres, mode 0600
    PATH/postgres.log        what PostgreSQL and its keeper say; moved to postgres.log.1 above 10 MB
    PATH/pgcairn.lock, PATH/keeper.lock, PATH/users/     locks, see ``embedded_watchdog``
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

from pgcairn.connection.embedded_binaries import Identity, program
from pgcairn.connection.embedded_watchdog import LOG, PGDATA, START_LOCK, own_like
from pgcairn.errors import EmbeddedServerError

PASSWORD_FILE = "pgcairn-password"  # noqa: S105
USER = "postgres"
DATABASE = "postgres"
POSIX_PORT = 5432  # only part of the socket's name: nothing listens on a network

_NEW_PGDATA = "pgdata.new"
_ROTATE_LOG_BYTES = 10_000_000  # guess
# A socket's path is at most 103 bytes on macOS, 107 on Linux (sun_path of sockaddr_un).
_MAX_SOCKET_PATH_BYTES = 99

# Appended to postgresql.conf when the cluster is made; users may change them there.
_CONF = """
# ---- written by pgcairn ----
shared_buffers = 128MB        # PostgreSQL's default; initdb may choose less on a small machine
max_connections = 100         # PostgreSQL's default; initdb may choose less on a small machine
timezone = 'UTC'              # the same everywhere, whatever TZ the starting process had
log_timezone = 'UTC'
cluster_name = 'pgcairn'      # shown in the process list
"""

# Given on the command line at every start, where no file and no ALTER SYSTEM overrides them.
DURABLE_SETTINGS = ("fsync=on", "synchronous_commit=on", "full_page_writes=on")


def check_ours(root: Path) -> None:
    """Make sure that ``root`` is absent, empty, or a data directory of this package.

    Raises:
        EmbeddedServerError: It is something else, or cannot be read. Nothing was changed.
    """
    try:
        names = set(os.listdir(root)) - {"lost+found"}
    except FileNotFoundError:
        return
    except NotADirectoryError as error:
        raise EmbeddedServerError(
            f"{root} is a file, not a directory.", hint="Name a directory that does not exist yet."
        ) from error
    except OSError as error:
        raise EmbeddedServerError(f"{root} cannot be read: {error}") from error
    if not names or START_LOCK in names:
        return
    what = "a PostgreSQL data directory" if "PG_VERSION" in names else "not empty"
    raise EmbeddedServerError(
        f"{root} is {what} that pgcairn did not make; it is left alone."
        if "PG_VERSION" in names
        else f"{root} is {what} and was not made by pgcairn; it is left alone.",
        hint="Name an empty directory or one that does not exist yet.",
    )


def make_root(root: Path) -> None:
    """Create ``root`` (mode 0700) and its missing parents.

    Raises:
        EmbeddedServerError: It cannot be created.
    """
    try:
        root.parent.mkdir(parents=True, exist_ok=True)
        root.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise EmbeddedServerError(f"{root} cannot be created: {error}") from error


def create_cluster(root: Path, bin_dir: Path, identity: Identity) -> None:
    """Make the cluster in ``root`` if it is not there: UTF-8, locale C, checksums, scram passwords.

    A crash leaves no half-made cluster: it is made beside its place and renamed when complete.

    Raises:
        EmbeddedServerError: initdb failed (its last words are in the message), or the cluster is
            there and its password is not.
    """
    pgdata, password_file = root / PGDATA, root / PASSWORD_FILE
    if pgdata.exists():
        if not password_file.exists():
            raise EmbeddedServerError(
                f"{password_file} is missing, so nobody can log in to the server of {root}.",
                hint="Put the file back, with the password of the user postgres in it.",
            )
        return
    new = root / _NEW_PGDATA
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(mode=0o700)
    if identity.uid is not None and identity.gid is not None and sys.platform != "win32":
        for path in (root, new):
            os.chown(path, identity.uid, identity.gid)
    if not password_file.exists():
        _write_private(password_file, secrets.token_hex(24))
    command = [
        *identity.prefix,
        str(program(bin_dir, "initdb")),
        f"--pgdata={new}",
        f"--username={USER}",
        f"--pwfile={password_file}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C",
        "--data-checksums",
    ]
    made = subprocess.run(  # noqa: S603
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        env=clean_environment(),
        cwd=root if sys.platform == "win32" else "/",
        **identity.run_arguments(),
    )
    if made.returncode != 0:
        said = made.stdout.decode(errors="replace").strip().splitlines()[-10:]
        raise EmbeddedServerError(
            f"initdb could not make the cluster in {root} (exit code {made.returncode}):\n" + "\n".join(said)
        )
    with (new / "postgresql.conf").open("a") as conf:
        conf.write(_CONF)
        conf.flush()
        os.fsync(conf.fileno())
    new.rename(pgdata)
    _sync_directory(root)


def read_password(root: Path) -> str:
    """The password of the user postgres.

    Raises:
        EmbeddedServerError: The file is missing or not readable for this user.
    """
    try:
        return (root / PASSWORD_FILE).read_text().strip()
    except OSError as error:
        raise EmbeddedServerError(f"The password of {root} cannot be read: {error}") from error


def make_socket_dir(root: Path, identity: Identity) -> Path:
    """Create the directory of the server's socket, mode 0700, outside the data directory.

    Its name follows from the path of ``root``, so that a restarted server has the same address; a
    directory of that name that is not exactly ours is not used, another name is.
    """
    if sys.platform == "win32":
        raise AssertionError("the server listens on 127.0.0.1 there")
    owner = os.geteuid() if identity.uid is None else identity.uid
    digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:12]
    for base in (tempfile.gettempdir(), "/tmp"):  # noqa: S108
        # The setting is a list with quoting rules of its own; plain characters need none.
        length = len(os.fsencode(base)) + len(f"/pgcairn-{owner}-{digest}-12345678/.s.PGSQL.65535")
        if not re.fullmatch(r"/[\w./-]*", base, re.ASCII) or length > _MAX_SOCKET_PATH_BYTES:
            continue
        path = Path(base) / f"pgcairn-{owner}-{digest}"
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            found = path.lstat()
            if stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700 and found.st_uid == owner:
                return path
            path = Path(tempfile.mkdtemp(prefix=f"{path.name}-", dir=base))
        except OSError:
            continue
        if identity.uid is not None and identity.gid is not None:
            os.chown(path, identity.uid, identity.gid)
        return path
    raise EmbeddedServerError(
        "There is no directory for the server's socket: the temporary directory's path is too long "
        "or not writable, and so is /tmp.",
        hint="Set TMPDIR to a short path that can be written.",
    )


def server_command(
    root: Path, bin_dir: Path, identity: Identity, *, socket_dir: Path | None, port: int
) -> list[str]:
    """The command line that starts PostgreSQL on ``root``; without a socket directory on 127.0.0.1."""
    settings = [
        *DURABLE_SETTINGS,
        f"port={port}",
        f"listen_addresses={'' if socket_dir else '127.0.0.1'}",
        f"unix_socket_directories={socket_dir or ''}",
        "unix_socket_permissions=0700",
        "logging_collector=off",  # the keeper gives standard error to the log file
        "log_destination=stderr",
    ]
    command = [*identity.prefix, str(program(bin_dir, "postgres")), "-D", str(root / PGDATA)]
    for setting in settings:
        command += ["-c", setting]
    return command


def clean_environment() -> dict[str, str]:
    """The environment without PostgreSQL's variables, which would change what is started."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PG")}
    return {**kept, "LC_ALL": "C"}


def rotate_log(root: Path) -> int:
    """Open the log for appending, after moving an old one that is too long; returns a descriptor."""
    path = root / LOG
    if path.exists() and path.stat().st_size > _ROTATE_LOG_BYTES:
        path.replace(path.with_name(f"{LOG}.1"))
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    own_like(descriptor, root)
    return descriptor


def log_tail(root: Path, offset: int, *, lines: int = 20) -> str:
    """The last lines that were logged after byte ``offset``."""
    try:
        with (root / LOG).open("rb") as log:
            log.seek(offset)
            said = log.read().decode(errors="replace").strip().splitlines()
    except OSError:
        said = []
    return "\n".join(said[-lines:]) or "(nothing was logged)"


def _write_private(path: Path, text: str) -> None:
    """Write a file of mode 0600 that is complete or absent."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    own_like(descriptor, path.parent)
    with os.fdopen(descriptor, "w") as file:
        file.write(f"{text}\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)


def _sync_directory(path: Path) -> None:
    """Make a rename in ``path`` durable."""
    if sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
