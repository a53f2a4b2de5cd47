"""Wake-ups: datagram sockets that wake a waiter in any process. A lost datagram costs time, never safety."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

_LONGEST = 100  # bytes of a socket's address that every system takes; Linux ends at 107


class Wakeup:
    """The socket of one waiter, in a directory beside the database."""

    def __init__(self, folder: WakeupFolder) -> None:
        self.name = os.urandom(6).hex()
        self._folder = folder
        self._pid = os.getpid()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.bind(folder.address(self.name))
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Return what becomes readable when the waiter is woken."""
        return self._socket.fileno()

    def drain(self) -> None:
        """Forget what has come so far."""
        with contextlib.suppress(BlockingIOError):
            while True:
                self._socket.recv(16)

    def close(self) -> None:
        """Close and unlink the socket; a forked child leaves its parent's name alone."""
        self._socket.close()
        if self._pid == os.getpid():
            self._folder.remove(self.name)


class WakeupFolder:
    """The directory of the wake-ups of one database."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd: int | None = None
        self._socket: socket.socket | None = None

    def new_wakeup(self) -> Wakeup | None:
        """Make a wake-up; None where the system has no such sockets: the waiter then polls."""
        for _ in range(3):
            try:
                self._path.mkdir(mode=0o700, exist_ok=True)
                return Wakeup(self)
            except FileNotFoundError:  # the last one out removed the directory, now or before our descriptor of it
                self._forget_folder()
            except OSError:
                break
        return None

    def wake(self, name: str) -> None:
        """Wake a waiter, if it is still there."""
        if not name:
            return
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.setblocking(False)
        for _ in range(2):
            try:
                self._socket.sendto(b"!", self.address(name))
            except ConnectionRefusedError:  # its process was killed and left the name behind
                self.remove(name)
            except FileNotFoundError:
                if self._fd is not None:  # perhaps our descriptor is of a directory that was removed
                    self._forget_folder()
                    continue
            except OSError:
                pass  # its buffer is full of datagrams that it has not read: it will ask again anyway
            return

    def address(self, name: str) -> str:
        """Return the address of a socket; through an open directory where the path is too long for a socket."""
        path = self._path / name
        if len(os.fsencode(path)) <= _LONGEST:
            return str(path)
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._fd}/{name}"

    def remove(self, name: str) -> None:
        """Unlink a socket."""
        with contextlib.suppress(OSError):
            os.unlink(self._path / name)

    def close(self) -> None:
        """Close the socket that datagrams are sent from."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        self._forget_folder()
        with contextlib.suppress(OSError):
            self._path.rmdir()  # the last one out

    def _forget_folder(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
