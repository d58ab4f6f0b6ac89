"""The process that owns an embedded server: it starts PostgreSQL, watches its users, and stops it.

Owns the advisory locks of a data directory, what ``postmaster.pid`` says, and the two detached processes
(*keeper* and *holder*). Never creates a cluster and never chooses binaries: ``embedded`` hands it a plan.
It runs as a script (``python -I -S embedded_watchdog.py keep|hold``) and therefore imports the standard
library only: about 10 MB of memory, and no processor time while nothing happens.

Who holds what. All locks are advisory locks on open files, so the system drops them when a process dies,
however it dies::

    pgcairn.lock    held for moments, by whoever starts, joins or stops; every decision is made under it
    keeper.lock     held by the keeper for its whole life: "somebody supervises PostgreSQL here"
    users/<name>    one file for each user, locked by that user: "I still need the server"

The keeper is the parent of PostgreSQL, in a session of its own, so no user's death or Ctrl-C reaches it. It
sleeps in the lock call on one user's file. When that user has gone it looks at the rest under
``pgcairn.lock``; when there are none it stops PostgreSQL while it still holds ``pgcairn.lock``, so that a
newcomer waits and then starts afresh. If PostgreSQL dies without having said good-bye (``postmaster.pid`` is
still there), the keeper starts it again, and PostgreSQL recovers from its log. If the keeper itself is
killed, PostgreSQL goes on; the next user brings a new keeper, which adopts it, and a last leaver stops it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

PGDATA = "pgdata"
START_LOCK = "pgcairn.lock"
KEEPER_LOCK = "keeper.lock"
USERS = "users"
LOG = "postgres.log"

POLL_SECONDS = 0.01  # a start takes 30 ms when there is nothing to recover; guess
# How long orphaned backends of a killed postmaster may hold its shared memory. They notice the
# death at once unless they are inside a system call; guess, generous.
ORPHANS_SECONDS = 60.0
_WINDOWS_LOCK_OFFSET = 1 << 30  # beyond the content: a locked byte cannot be read on Windows


def open_lock(path: Path, *, create: bool = True) -> int:
    """Open a lock file (not inherited by executed programs) and return its descriptor.

    A file made by root is given to the owner of the directory's root, whose keeper must open it, too.
    """
    descriptor = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o600)
    if create:
        own_like(descriptor, path.parent)
    return descriptor


def own_like(target: int | Path, directory: Path) -> None:
    """If this is root, give the file to the owner of ``directory``."""
    if sys.platform != "win32" and os.geteuid() == 0:
        owner = directory.stat()
        os.chown(target, owner.st_uid, owner.st_gid)


def lock(descriptor: int, *, shared: bool = False, wait: bool = True) -> bool:
    """Take the lock; with ``wait`` for as long as it takes. Returns whether it was taken."""
    if sys.platform == "win32":
        while True:
            os.lseek(descriptor, _WINDOWS_LOCK_OFFSET, os.SEEK_SET)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
            except OSError:
                if not wait:
                    return False
                time.sleep(0.1)
            else:
                return True
    operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB)
    try:
        fcntl.flock(descriptor, operation)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def unlock(descriptor: int) -> None:
    """Drop the lock, also for processes forked since, and close the file."""
    if sys.platform == "win32":
        os.lseek(descriptor, _WINDOWS_LOCK_OFFSET, os.SEEK_SET)
        with contextlib.suppress(OSError):
            msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
    else:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def is_held(path: Path) -> bool:
    """Whether a living process holds the lock on this file. A missing file is not held."""
    try:
        descriptor = open_lock(path, create=False)
    except FileNotFoundError:
        return False
    if lock(descriptor, shared=True, wait=False):
        unlock(descriptor)
        return False
    os.close(descriptor)
    return True


class User(NamedTuple):
    """A living user of a server: a process, or the holder that ``pgcairn server start`` leaves."""

    path: Path
    pid: int
    is_holder: bool


def register_user(root: Path, *, is_holder: bool = False) -> tuple[Path, int]:
    """Enter this process as a user; the caller holds ``pgcairn.lock``. Returns file and descriptor."""
    directory = root / USERS
    directory.mkdir(mode=0o700, exist_ok=True)
    own_like(directory, root)
    path = directory / f"{os.getpid()}-{secrets.token_hex(4)}"
    descriptor = open_lock(path)
    lock(descriptor)
    os.write(descriptor, json.dumps({"pid": os.getpid(), "is_holder": is_holder}).encode())
    return path, descriptor


def living_users(root: Path) -> list[User]:
    """Everybody who still needs the server."""
    users = []
    with contextlib.suppress(FileNotFoundError):
        for path in sorted((root / USERS).iterdir()):
            if is_held(path):
                with contextlib.suppress(OSError, ValueError):
                    entry = json.loads(path.read_bytes())
                    users.append(User(path, entry["pid"], entry["is_holder"]))
    return users


class Postmaster(NamedTuple):
    """What ``postmaster.pid`` says (PostgreSQL's ``src/include/utils/pidfile.h``)."""

    pid: int
    started_epoch: int
    port: int
    socket_dir: str
    address: str
    is_ready: bool


def read_postmaster(pgdata: Path) -> Postmaster | None:
    """Parse ``postmaster.pid``; None if it is missing or half written."""
    try:
        lines = (pgdata / "postmaster.pid").read_text(errors="surrogateescape").split("\n")
        return Postmaster(
            pid=int(lines[0]),
            started_epoch=int(lines[2]),
            port=int(lines[3]),
            socket_dir=lines[4].strip(),
            address=lines[5].strip(),
            is_ready=lines[7].strip() == "ready" if len(lines) > 7 else False,
        )
    except (FileNotFoundError, ValueError, IndexError):
        return None


def running_postmaster(pgdata: Path) -> Postmaster | None:
    """The postmaster of this cluster, if it lives: a stale file or a reused process id is not one."""
    found = read_postmaster(pgdata)
    return found if found is not None and _works_in(found.pid, pgdata) else None


def _works_in(pid: int, pgdata: Path) -> bool:
    """Whether ``pid`` is a living PostgreSQL process of this cluster (they all work in its directory)."""
    if sys.platform == "win32":
        found = subprocess.run(  # noqa: S603
            ["tasklist", "/FI", f"PID eq {pid}", "/NH"],  # noqa: S607
            capture_output=True,
            check=False,
        )
        return b"postgres" in found.stdout
    if not sys.platform.startswith("linux"):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass
        return True
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/cwd"), pgdata.stat())
    except PermissionError:
        # A container without CAP_SYS_PTRACE. The program's name is what is left to go by.
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/comm").read_text().strip() == "postgres"
        return False
    except OSError:
        return False


def signal_postmaster(pid: int, number: int, pg_ctl: str, pgdata: Path) -> None:
    """Tell the postmaster to stop: SIGINT fast, SIGTERM smart, SIGQUIT immediate."""
    if sys.platform == "win32":
        modes = {signal.SIGINT: "fast", signal.SIGTERM: "smart"}
        mode = modes.get(signal.Signals(number), "immediate")
        subprocess.run(  # noqa: S603
            [pg_ctl, "-D", str(pgdata), "-W", "-m", mode, "stop"], check=False
        )
    else:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def wait_for_exit(pid: int, pgdata: Path) -> None:
    """Block until a postmaster that is not our child has ended."""
    if sys.platform.startswith("linux"):
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            pass  # it is gone already, or the kernel is older than 5.3
        else:
            try:
                select.select([descriptor], [], [])
            finally:
                os.close(descriptor)
            return
    while _works_in(pid, pgdata):
        time.sleep(0.2)


class Keeper:
    """Starts PostgreSQL, starts it again after a crash, and stops it when its last user has gone.

    Args:
        plan: ``directory``, ``command`` (the whole command line), ``uid`` and ``gid`` (or null),
            ``socket_dir``, ``pg_ctl``.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self._plan = plan
        self._root = Path(plan["directory"])
        self._pgdata = self._root / PGDATA
        self._log = self._root / LOG
        # Reentrant, for the signal handler runs in the main thread. Under it: whether a new
        # PostgreSQL may still be started, and which process a stop has to reach.
        self._mutex = threading.RLock()
        self._stopping = False
        self._child: subprocess.Popen[bytes] | None = None
        self._pid = 0
        self._log_offset = 0

    def run(self) -> int:
        """Supervise until PostgreSQL has stopped. Tells the spawner how the start went on stdout."""
        keeper_lock = open_lock(self._root / KEEPER_LOCK)
        lock(keeper_lock)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop())
        if not self._start():
            self._remove_socket_dir()
            unlock(keeper_lock)
            _report({"failed_at_offset": self._log_offset})
            return 1
        _report({"pid": self._pid})
        threading.Thread(target=self._watch_users, name="pgcairn-users", daemon=True).start()
        while True:
            code = self._wait()
            if self._stopping or not (self._pgdata / "postmaster.pid").exists():
                break  # it was told to stop, by us or by somebody else
            self._note(f"PostgreSQL (process {self._pid}) died, code {code}; starting it again")
            if not self._start():
                self._note("PostgreSQL did not start again; giving up")
                break
        self._remove_socket_dir()
        unlock(keeper_lock)
        return 0

    def stop(self) -> None:
        """Ask PostgreSQL for a fast stop: sessions are ended, a checkpoint is written."""
        with self._mutex:
            self._stopping = True
            if self._pid and (self._child is None or self._child.poll() is None):
                signal_postmaster(self._pid, signal.SIGINT, self._plan["pg_ctl"], self._pgdata)

    def _start(self) -> bool:
        """Start or adopt PostgreSQL and wait until it takes connections, however long it recovers."""
        deadline = time.monotonic() + ORPHANS_SECONDS
        while True:
            self._launch()
            while self._pid and self._is_alive():
                found = read_postmaster(self._pgdata)
                if found is not None and found.pid == self._pid and found.is_ready:
                    return True
                time.sleep(POLL_SECONDS)
            with contextlib.suppress(OSError), self._log.open("rb") as log:
                log.seek(self._log_offset)
                if b"shared memory block" in log.read() and time.monotonic() < deadline:
                    time.sleep(0.1)
                    continue
            return False

    def _launch(self) -> None:
        with self._mutex:
            self._child, self._pid = None, 0
            if self._stopping:
                return
            found = running_postmaster(self._pgdata)
            if found is not None:
                self._pid = found.pid
                self._note(f"adopted PostgreSQL, process {found.pid}")
                return
            self._clear_leftovers()
            with self._log.open("ab") as log:
                self._log_offset = log.tell()
                identity: dict[str, Any] = {}
                if self._plan["uid"] is not None:
                    identity = {
                        "user": self._plan["uid"],
                        "group": self._plan["gid"],
                        "extra_groups": [],
                    }
                self._child = subprocess.Popen(  # noqa: S603
                    self._plan["command"],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    **identity,
                )
                self._pid = self._child.pid
            if self._stopping:  # a signal came in between
                self.stop()

    def _clear_leftovers(self) -> None:
        """Remove process ids that outlived their process.

        PostgreSQL takes any living process with that number for a running server; after a container's
        restart that is likely, because numbers repeat. Done only where it can be proved that no process
        works in the cluster's directory; elsewhere PostgreSQL's own check stands.
        """
        if not sys.platform.startswith("linux"):
            return
        if any(_works_in(int(name), self._pgdata) for name in os.listdir("/proc") if name.isdigit()):
            return
        (self._pgdata / "postmaster.pid").unlink(missing_ok=True)
        for leftover in Path(self._plan["socket_dir"]).glob(".s.PGSQL.*"):
            leftover.unlink(missing_ok=True)

    def _is_alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return _works_in(self._pid, self._pgdata)

    def _wait(self) -> int | None:
        if self._child is not None:
            return self._child.wait()
        wait_for_exit(self._pid, self._pgdata)
        return None

    def _watch_users(self) -> None:
        """Sleep on one user after another; stop PostgreSQL once there are none."""
        while True:
            try:
                # Kept while PostgreSQL stops: nobody may join a server that is on its way down.
                # The main thread's exit frees it.
                start_lock = open_lock(self._root / START_LOCK)
                lock(start_lock)
                users = sorted((self._root / USERS).iterdir())
            except OSError as error:
                self._note(f"the directory cannot be read any more ({error}); stopping")
                return self.stop()
            somebody = None
            for path in users:
                if is_held(path):
                    somebody = path
                else:
                    path.unlink(missing_ok=True)
            if somebody is None:
                return self.stop()
            unlock(start_lock)
            with contextlib.suppress(FileNotFoundError):
                descriptor = open_lock(somebody, create=False)
                lock(descriptor)  # returns when that user has released it or died
                unlock(descriptor)

    def _remove_socket_dir(self) -> None:
        with contextlib.suppress(OSError):  # not empty: PostgreSQL was killed; the next start clears it
            os.rmdir(self._plan["socket_dir"])

    def _note(self, text: str) -> None:
        with contextlib.suppress(OSError), self._log.open("a") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())} pgcairn: {text}\n")


def hold(root: Path) -> int:
    """Be a user until terminated, or until the keeper has gone; at most one process does this."""
    start_lock = open_lock(root / START_LOCK)
    lock(start_lock)
    for user in living_users(root):
        if user.is_holder:
            _report({"pid": user.pid})
            return 0
    register_user(root, is_holder=True)
    unlock(start_lock)
    _report({"pid": os.getpid()})
    lock(open_lock(root / KEEPER_LOCK), shared=True)
    return 0


def _report(message: dict[str, Any]) -> None:
    """Send one line to the process that waits for it, if it still does, and close the pipe."""
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)
    os.close(null)


def main() -> int:
    """``keep`` (a plan on stdin) or ``hold DIRECTORY``."""
    plan = json.load(sys.stdin) if sys.argv[1] == "keep" else {}
    if sys.platform != "win32":
        # The spawner waits for its child, so the one that goes on must not be its child.
        if os.fork():
            os._exit(0)
        os.chdir("/")
    return Keeper(plan).run() if plan else hold(Path(sys.argv[2]))


if __name__ == "__main__":
    sys.exit(main())
