"""A Redis whose scripts live by a clock of the test: the shipped bytes, behind a prefix that answers TIME."""

from __future__ import annotations

import time
from hashlib import sha1
from typing import Any

from holdfast._clock import SystemClock
from holdfast.core.urls import parse_url
from holdfast.stores.redis._sync import store as module
from holdfast.stores.redis._sync.store import RedisStore
from holdfast.stores.redis._sync.transport import Connection
from holdfast.stores.redis.script import Script, load
from holdfast.stores.redis.wire import Access, Endpoint
from holdfast.testing.servers.redis import RedisServer

VERBS = {"_CLAIM": "claim", "_RELEASE": "release", "_RENEW": "renew", "_EVICT": "evict", "_INSPECT": "inspect"}

PREFIX = """
local server = redis
local redis = {pcall = server.pcall, error_reply = server.error_reply}
redis.call = function(name, ...)
  if name == 'TIME' then
    local us = tonumber(server.call('GET', 'driven.clock'))
    return {string.format('%.0f', math.floor(us / 1000000)), string.format('%.0f', us % 1000000)}
  end
  return server.call(name, ...)
end
"""


def mutant(script: Script, right: str, wrong: str) -> Script:
    """Return a script with a mistake."""
    assert right in script.source
    source = script.source.replace(right, wrong)
    return Script(sha1(source.encode()).hexdigest(), source)


def drive(patch: Any, mistake: tuple[str, str, str] | None = None) -> None:
    """Let the store of this process use driven scripts, one of them with a mistake: (script, right, wrong)."""
    for name, script in VERBS.items():
        source = load("redis", script).source
        if mistake is not None and mistake[0] == script:
            source = mutant(load("redis", script), *mistake[1:]).source
        source = PREFIX + source
        patch.setattr(module, name, Script(sha1(source.encode()).hexdigest(), source))


class DrivenRedis:
    """The server, its clock in microseconds, and an ear on every channel."""

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        # Whole seconds, and ahead of the server's own clock, by which keys expire.
        self.us = (int(time.time()) + 3600) * 1_000_000
        endpoint = Endpoint("127.0.0.1", server.port)
        self._connection = Connection(endpoint, Access(), 10.0)
        self._ear = Connection(endpoint, Access(), 10.0)
        self._ear.call("PSUBSCRIBE", "holdfast.wake:*")  # overhears: for the scripts nobody listens
        self._listener = Connection(endpoint, Access(), 10.0)
        self.advance(0)

    def call(self, *command: str | int) -> Any:
        """Ask the server past the store."""
        return self._connection.call(*command)

    @property
    def now(self) -> float:
        """The time, in seconds; quarters of a second are exact."""
        return self.us / 1e6

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.us += round(seconds * 1e6)
        self.call("SET", "driven.clock", self.us)

    def listen(self, store: RedisStore) -> None:
        """Be subscribed where the store would be if it waited."""
        self._listener.close()
        self._listener.call("SUBSCRIBE", store._channel)

    def told(self) -> list[str]:
        """Return whom the server has told something since this was last asked."""
        self._ear.send(("PING",))
        found = []
        while (message := self._ear.receive())[0] != b"pong":
            self._ear.owed += 1  # that was none of the replies
            found.append(message[3].decode())
        return found

    def store(self, namespace: str) -> RedisStore:
        """Make a store of this server."""
        url = parse_url(self.server.url + "?trust_config=true")
        return RedisStore(url, namespace=namespace, io_timeout=10.0, clock=SystemClock())

    def close(self) -> None:
        """Close what the test has opened."""
        self._connection.close()
        self._ear.close()
        self._listener.close()
