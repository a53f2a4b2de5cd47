"""Real servers for tests, benchmarks and verification: each in a folder of its own, on loopback, on a free port."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

_START_SECONDS = 20.0
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
    """Return a port of loopback that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        assert isinstance(port, int)
        return port


class Server:
    """One process of a real server. What it keeps lives in `folder`, and so it can be killed and started again.

    A subclass says how it is called (`command`) and how to see that it answers (`answers`).
    """

    program = ""

    def __init__(self) -> None:
        self.executable = find(self.program)
        self.port = free_port()
        self._temporary = tempfile.TemporaryDirectory(prefix=f"holdfast-{self.program}-")
        self.folder = Path(self._temporary.name)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        raise NotImplementedError

    def command(self) -> list[str]:
        """Return the command line that starts it."""
        raise NotImplementedError

    def answers(self) -> bool:
        """Tell whether it serves."""
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
            self.wait_ready()
        return self

    def wait_ready(self) -> None:
        """Return when it answers."""
        assert self._process is not None
        eventually(
            lambda: self.alive and self.answers(),
            f"{self.program} on port {self.port} did not answer",
            give_up=lambda: not self.alive,
            log=lambda: self.log,
        )

    @property
    def alive(self) -> bool:
        """Tell whether its process runs (or is paused)."""
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
        self._temporary.cleanup()

    def __enter__(self) -> Self:
        return self if self.alive else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on port {self.port}, {'running' if self.alive else 'down'}>"


def eventually(
    condition: Callable[[], bool],
    complaint: str,
    *,
    seconds: float = _START_SECONDS,
    give_up: Callable[[], bool] = lambda: False,
    log: Callable[[], str] = lambda: "",
) -> None:
    """Wait for something that must come true.

    Raises: TimeoutError with the complaint and the end of the log; at once if `give_up` says that waiting is pointless.
    """
    until = time.monotonic() + seconds
    while not condition():
        if give_up() or time.monotonic() > until:
            raise TimeoutError(f"{complaint} within {seconds:g} s\n{log()[-2000:]}")
        time.sleep(0.01)
