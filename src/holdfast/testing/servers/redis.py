"""Redis servers."""

from __future__ import annotations

import socket

from . import Server


class RedisServer(Server):
    """One Redis that loses nothing it has acknowledged."""

    program = "redis-server"

    def __init__(self, *arguments: str) -> None:
        super().__init__()
        self.arguments = arguments

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"redis://127.0.0.1:{self.port}"

    def command(self) -> list[str]:
        """See Server."""
        return [
            self.executable, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder),
            "--save", "", "--appendonly", "yes", "--appendfsync", "always", *self.arguments,
        ]  # fmt: skip

    def answers(self) -> bool:
        """See Server."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(5).startswith((b"+PONG", b"-NOAU"))
        except OSError:
            return False
