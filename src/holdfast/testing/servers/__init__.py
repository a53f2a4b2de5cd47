"""Real servers for tests, benchmarks and verification: each in a folder of its own, on loopback, on a free port."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from .._sync.runtime import eventually
from .ports import PORTS

START_SECONDS = 20.0
_STOP_SECONDS = 10.0


class Missing(RuntimeError):
    """The program of a server is not installed on this machine."""


def find(program: str) -> str:
    """Return the path of a server's program.

    Raises: Missing, with what to install.
    """
    path = shutil.which(program, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/bin")))
    if path is None:
        raise Missing(f"{program} is not installed: run `make servers`, or install it with your package manager")
    return path


def free_port() -> int:
    """Return a port of loopback that nobody listens on, and that no other test gets while this process lives."""
    return PORTS.take()


class Server:
    """One process of a real server. What it keeps lives in `folder`, and so it can be killed and started again.

    A subclass says how it is called (`command`) and how to see that it answers (`answers`).
    """

    program = ""

    def __init__(self) -> None:
        self.executable = self.find()
        self.port = free_port()
        self._temporary = tempfile.TemporaryDirectory(prefix=f"holdfast-{self.program}-")
        self.folder = Path(self._temporary.name)
        self._process: subprocess.Popen[bytes] | None = None

    def find(self) -> str:
        """Return the path of its program.

        Raises: Missing, with what to install.
        """
        return find(self.program)

    @property
    def url(self) -> str:
        """Where clients connect."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """Return the command line that starts it."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Return whether it serves."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        """The process that serves."""
        assert self._process is not None, f"{self.program} has not been started"
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has said so far."""
        path = self.folder / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def log_end(self) -> str:
        """The end of it, for a complaint."""
        return self.log[-2000:]

    def start(self, *, wait: bool = True) -> Self:
        """Start it; returns when it answers. `wait=False` is for members of a cluster, which answer only together."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C at the terminal is for the tests, which then stop it in order
            )
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self.kill()
                raise
        return self

    def wait_ready(self) -> None:
        """Return when it answers."""

        def ready() -> bool:
            assert self.alive, f"{self!r} has ended\n{self.log_end}"
            return self.answers()

        eventually(ready, limit=START_SECONDS, complaint=lambda: f"{self!r} did not answer\n{self.log_end}")

    @property
    def alive(self) -> bool:
        """Return whether its process runs (or is paused)."""
        return self._process is not None and self._process.poll() is None

    def send(self, number: int) -> None:
        """Send it a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def pause(self) -> None:
        """Stop it in its tracks: connections stay open, and nothing is answered."""
        self.send(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on; it then does what it was told while it was paused."""
        self.send(signal.SIGCONT)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it in order, or else by force. What it keeps stays."""
        if self._process is None:
            return
        if self.alive:
            self.resume()
            self.send(number)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End it without any chance to write down what it has in memory."""
        self.stop(signal.SIGKILL)

    def close(self) -> None:
        """End it for good and remove its folder."""
        self.kill()
        PORTS.give_back(self.port)
        self._temporary.cleanup()

    def __enter__(self) -> Self:
        try:
            return self if self.alive else self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on port {self.port}, {'running' if self.alive else 'down'}>"
