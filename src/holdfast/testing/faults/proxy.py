"""A proxy between a client and its server, or between two servers, that plays a bad network."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import TracebackType
from typing import Literal, Self

Mode = Literal["pass", "hold", "drop"]
_HOST = "127.0.0.1"
_CHUNK = 65536
_RESET = struct.pack("ii", 1, 0)  # linger for no time: the kernel sends RST instead of FIN


class Direction:
    """What happens to the bytes that go one way; may be changed at any time, and holds for live connections too.

    mode  "pass": forward them; "hold": keep them and deliver them on return to "pass", as a slow network does; "drop":
          throw them away for good, which leaves the connection open and useless.
    delay seconds that every chunk takes; the order is kept.
    limit let so many more bytes through, then reset the connection: a reply that is cut in the middle.
    """

    def __init__(self) -> None:
        self.mode: Mode = "pass"
        self.delay = 0.0
        self.limit: int | None = None
        self.forwarded = 0


class Proxy:
    """Listens on a port of its own and forwards to `port`. Runs in a thread of its own: for both flavours.

    with Proxy(server.port) as proxy:
        proxy.down.mode = "hold"      # requests arrive, replies do not: did it happen?
        proxy.silence()               # nothing gets through either way, connections stay open
        proxy.forget()                # live connections carry nothing any more, and stay open; new ones work
        proxy.reset()                 # every live connection ends at once
        proxy.refuse = True           # and new ones are turned away
    """

    def __init__(self, port: int) -> None:
        self._target = (_HOST, port)
        self.up = Direction()
        self.down = Direction()
        self.refuse = False
        self.accepted = 0
        self.port = 0
        self._live: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._forgotten: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-proxy", daemon=True)

    def silence(self) -> None:
        """Hold everything that goes either way."""
        self.up.mode = self.down.mode = "hold"

    def heal(self) -> None:
        """Forward again, what was held first."""
        for way in (self.up, self.down):
            way.mode, way.delay, way.limit = "pass", 0.0, None
        self.refuse = False

    def forget(self) -> None:
        """Throw away what live connections carry from now on, as a load balancer does that has lost its table."""
        self._call(lambda: self._forgotten.update(self._live))

    def reset(self) -> None:
        """End every live connection at once."""
        self._call(self._reset_all)

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._accept, _HOST, self.port), self._loop
        ).result()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        self._server.close()
        self._reset_all()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _call(self, function: Callable[[], None]) -> None:
        done: Future[None] = Future()

        def call() -> None:
            function()
            done.set_result(None)

        self._loop.call_soon_threadsafe(call)
        done.result()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.refuse:
            _reset(writer)
            return
        try:
            server_reader, server_writer = await self._reach()
        except OSError:
            _reset(writer)
            return
        pair = (writer, server_writer)
        self._live.add(pair)
        try:
            await asyncio.gather(
                self._carry(reader, server_writer, self.up, pair), self._carry(server_reader, writer, self.down, pair)
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._live.discard(pair)
            self._forgotten.discard(pair)
            for end in pair:
                end.transport.abort()

    async def _reach(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self._target)
        if self.refuse:  # it was set meanwhile, and a reset() after it could not see this connection
            _reset(writer)
            raise ConnectionAbortedError
        return reader, writer

    async def _carry(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        way: Direction,
        pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
    ) -> None:
        loop = asyncio.get_running_loop()
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def read() -> None:
            chunk = b"."
            while chunk:
                try:
                    chunk = await reader.read(_CHUNK)
                except OSError:
                    chunk = b""
                # Read at once and delivered later, so that a delay does not add up over the chunks.
                chunks.put_nowait((loop.time() + way.delay, chunk))

        reading = loop.create_task(read())
        try:
            while True:
                due, chunk = await chunks.get()
                await asyncio.sleep(due - loop.time())
                while way.mode == "hold":  # noqa: ASYNC110 (set from other threads, which an Event is not made for)
                    await asyncio.sleep(0.002)
                if (way.mode == "drop" or pair in self._forgotten) and chunk:
                    continue
                if not chunk:
                    if writer.can_write_eof():
                        writer.write_eof()
                    return
                if way.limit is not None:
                    chunk = chunk[: way.limit]
                    way.limit -= len(chunk)
                writer.write(chunk)
                await writer.drain()
                way.forwarded += len(chunk)
                if way.limit == 0:
                    way.limit = None
                    for end in pair:
                        _reset(end)
                    return
        finally:
            reading.cancel()

    def _reset_all(self) -> None:
        for pair in list(self._live):
            for end in pair:
                _reset(end)


class Again(asyncio.StreamReader):
    """A stream whose beginning has been read, and is read again: for a proxy that looks who comes."""

    def __init__(self, rest: asyncio.StreamReader, head: bytes) -> None:
        super().__init__()
        self._rest = rest
        self._head = head

    async def read(self, n: int = -1) -> bytes:
        head, self._head = self._head, b""
        return head or await self._rest.read(n)


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None:
        try:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        except OSError:  # it is closed already
            pass
    writer.transport.abort()
