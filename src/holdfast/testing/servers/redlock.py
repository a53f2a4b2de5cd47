"""The nodes of a Redlock: independent Redis servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from .redis import RedisServer


class RedlockServers:
    """So many Redis servers that know nothing of each other."""

    def __init__(self, *arguments: str, count: int = 5) -> None:
        self.nodes = [RedisServer(*arguments) for _ in range(count)]

    @property
    def url(self) -> str:
        """Where clients connect."""
        return "redlock://" + ",".join(f"127.0.0.1:{node.port}" for node in self.nodes)

    def restart(self) -> None:
        """End every node in order, and start it again with what it keeps."""
        for node in self.nodes:
            node.stop()
        self.start()

    def start(self) -> Self:
        """Start the nodes; returns when all answer."""
        for node in self.nodes:
            node.start(wait=False)
        for node in self.nodes:
            node.wait_ready()
        return self

    @contextmanager
    def silenced(self, count: int | None = None) -> Iterator[None]:
        """Stop the first `count` nodes in their tracks, or all."""
        stopped = self.nodes[:count]
        for node in stopped:
            node.pause()
        try:
            yield
        finally:
            for node in stopped:
                node.resume()

    def close(self) -> None:
        """End all nodes for good."""
        for node in self.nodes:
            node.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
