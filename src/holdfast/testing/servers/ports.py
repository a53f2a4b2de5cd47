"""Ports for servers of tests: nobody else gets one between the choice and the start of the server, or after its end."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import socket
import tempfile
import threading
from pathlib import Path

_LOWEST = 10_000
_USUAL_HIGHEST = 32_768  # from here on, the kernel gives ports to connections
_TRIES = 10_000


def _highest() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        return _USUAL_HIGHEST


class Ports:
    """A range of loopback's ports that all test runs of this user share. Safe in any thread and process.

    A port is taken by a lock on the byte of that number in a file. The kernel ends it with the process.
    """

    def __init__(self, path: Path, lowest: int, highest: int) -> None:
        self._path = path
        self._range = (lowest, max(highest, lowest + 1))
        self._random = random.SystemRandom()  # a seed that tests share would lead all of them to the same ports
        self._mutex = threading.Lock()
        self._pid = 0
        self._file = -1
        self._mine: set[int] = set()

    def take(self) -> int:
        """Return a port that nobody listens on; it stays this process's own until it is given back."""
        with self._mutex:
            if self._pid != os.getpid():  # a forked child inherits no locks, and so no ports
                # Kept open: closing it would end all locks of this process.
                self._file = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
                self._pid, self._mine = os.getpid(), set()
            for _ in range(_TRIES):
                port = self._random.randrange(*self._range)
                if port not in self._mine and self._lock(port):
                    if _is_free(port):
                        self._mine.add(port)
                        return port
                    self._unlock(port)
        raise OSError(errno.EADDRINUSE, f"no port of {self._range} is free")

    def give_back(self, port: int) -> None:
        """Let others have it."""
        with self._mutex:
            if self._pid == os.getpid() and port in self._mine:
                self._mine.discard(port)
                self._unlock(port)

    def _lock(self, port: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        except OSError:
            return False
        return True

    def _unlock(self, port: int) -> None:
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, port)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


PORTS = Ports(Path(tempfile.gettempdir()) / f"holdfast-ports-{os.getuid()}", _LOWEST, _highest())
