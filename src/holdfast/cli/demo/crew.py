"""The worker processes: start them, give orders, hear reports, wait for one to stop, and end them all."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from types import TracebackType

from .messages import Order, Report, encode, read_report

_END_SECONDS = 3.0


class DemoFailed(Exception):
    """Something else happened than the demo is to show; the message is the fact."""


class Hand:
    """One worker process as the director sees it."""

    def __init__(self, name: str, folder: Path, arguments: list[str]) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "holdfast.cli.demo.worker", name, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                # It finds what this process has found, wherever it was started from.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
        self._rest = b""

    def fileno(self) -> int:
        """Return what becomes readable when the worker reports or ends."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def give(self, order: Order) -> None:
        """Send an order."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(encode(order))
        except BrokenPipeError:
            raise self.ended() from None

    def hear(self) -> list[Report]:
        """Read the reports that are there.

        Raises: DemoFailed if the worker has ended.
        """
        data = os.read(self.fileno(), 65536)
        if not data:
            raise self.ended()
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [read_report(line) for line in lines]

    def await_stop(self) -> None:
        """Return when the kernel says that the process is stopped.

        Raises: DemoFailed if it ended instead.
        """
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            self.process.returncode = os.waitstatus_to_exitcode(status)
            raise self.ended()

    def resume(self) -> None:
        """Let a stopped process go on."""
        self.process.send_signal(signal.SIGCONT)

    def dismiss(self) -> None:
        """Say that there are no more orders."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def ended(self) -> DemoFailed:
        """Return the fact that the process has ended, how, and its last words."""
        try:
            how = self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return DemoFailed(f"{self.name} has closed its pipes, but does not end")
        words = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return DemoFailed(f"{self.name} ended with status {how}" + (f": {words[-1]}" if words else ""))


class Crew:
    """All workers. As a context manager it leaves none behind, stopped ones included."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.hands: list[Hand] = []
        self._selector = selectors.DefaultSelector()
        self._reports: deque[tuple[Hand, Report]] = deque()

    def hire(self, name: str, arguments: list[str]) -> None:
        """Start a worker."""
        hand = Hand(name, self._folder, arguments)
        self.hands.append(hand)
        self._selector.register(hand, selectors.EVENT_READ)

    def hear(self, seconds: float) -> tuple[Hand, Report]:
        """Return the next report and who sent it.

        Raises: DemoFailed if there is none for that long, or if a worker has ended.
        """
        until = time.monotonic() + seconds
        while not self._reports:
            for key, _ in self._selector.select(max(0.0, until - time.monotonic())):
                hand = key.fileobj
                assert isinstance(hand, Hand)
                self._reports.extend((hand, report) for report in hand.hear())
            if not self._reports and time.monotonic() >= until:
                raise DemoFailed(f"no worker has reported for {seconds:g} s")
        return self._reports.popleft()

    def dismiss(self) -> None:
        """Let all workers finish by themselves.

        Raises: DemoFailed if one fails at that.
        """
        for hand in self.hands:
            hand.dismiss()
        until = time.monotonic() + _END_SECONDS
        for hand in self.hands:
            try:
                status = hand.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise DemoFailed(f"{hand.name} has no more orders, but does not end") from None
            if status:
                raise hand.ended()

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hand in self.hands:
            # In this order: a stopped process is ended by the first signal as soon as the second lets it run, and so
            # cannot write any more.
            hand.process.terminate()
            hand.process.send_signal(signal.SIGCONT)
        until = time.monotonic() + _END_SECONDS
        for hand in self.hands:
            try:
                hand.process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                hand.process.kill()
                hand.process.wait()
            for pipe in (hand.process.stdin, hand.process.stdout):
                assert pipe is not None
                pipe.close()
        self._selector.close()
