"""The bad network: each fault as both ends see it."""

import socket
import threading
from collections.abc import Iterator

import pytest

from holdfast.testing.faults.proxy import Proxy
from holdfast.testing.servers import free_port


class Echo:
    """A server that sends back what it gets, and remembers it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.got = b""
        self.came = threading.Condition()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        with connection:
            try:
                while data := connection.recv(1000):
                    with self.came:
                        self.got += data
                        self.came.notify_all()
                    connection.sendall(data)
            except OSError:
                pass

    def wait(self, data: bytes) -> None:
        with self.came:
            assert self.came.wait_for(lambda: self.got == data, 5), self.got

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.port) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as connection:
        yield connection


def connect_and_listen(proxy: Proxy) -> bytes:
    """A reset may come before the first read, even before connect() has returned."""
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as client:
        return client.recv(100)


def nothing_comes(client: socket.socket) -> bool:
    client.settimeout(0.1)
    try:
        return not client.recv(100)
    except TimeoutError:
        return True
    finally:
        client.settimeout(5)


def test_bytes_pass(proxy: Proxy, client: socket.socket) -> None:
    client.sendall(b"hello")
    assert client.recv(100) == b"hello"
    assert (proxy.up.forwarded, proxy.accepted) == (5, 1)


def test_a_held_reply_comes_when_the_network_heals(proxy: Proxy, client: socket.socket, echo: Echo) -> None:
    proxy.down.mode = "hold"
    client.sendall(b"hello")
    echo.wait(b"hello")  # it happened, and the client does not know
    assert nothing_comes(client)
    proxy.heal()
    assert client.recv(100) == b"hello"


def test_a_held_request_arrives_late(proxy: Proxy, client: socket.socket, echo: Echo) -> None:
    proxy.silence()
    client.sendall(b"hello")
    assert nothing_comes(client)
    assert echo.got == b""
    proxy.heal()
    echo.wait(b"hello")


def test_dropped_bytes_never_come(proxy: Proxy, client: socket.socket, echo: Echo) -> None:
    proxy.up.mode = "drop"
    client.sendall(b"lost")
    assert nothing_comes(client)
    proxy.heal()
    client.sendall(b"kept")
    echo.wait(b"kept")


def test_a_reply_is_cut_in_the_middle(proxy: Proxy, client: socket.socket) -> None:
    proxy.down.limit = 2
    client.sendall(b"hello")
    got: list[bytes] = []
    with pytest.raises(ConnectionResetError):
        got.extend(iter(lambda: client.recv(100), b""))
    assert b"".join(got) in (b"he", b"")  # a reset may overtake what was sent before it


def test_live_connections_are_reset_and_new_ones_refused(proxy: Proxy, client: socket.socket) -> None:
    client.sendall(b"hello")
    assert client.recv(100) == b"hello"
    proxy.refuse = True
    proxy.reset()
    with pytest.raises(ConnectionResetError):
        client.recv(100)
    with pytest.raises(ConnectionResetError):
        connect_and_listen(proxy)
    proxy.heal()
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as again:
        again.sendall(b"hello")
        assert again.recv(100) == b"hello"


def test_forgotten_connections_carry_nothing_and_new_ones_work(proxy: Proxy, client: socket.socket) -> None:
    client.sendall(b"hello")
    assert client.recv(100) == b"hello"
    proxy.forget()
    client.sendall(b"hello")
    client.settimeout(0.1)
    with pytest.raises(TimeoutError):
        client.recv(100)
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=5) as again:
        again.sendall(b"hello")
        assert again.recv(100) == b"hello"


def test_delayed_bytes_keep_their_order(proxy: Proxy, client: socket.socket) -> None:
    proxy.up.delay = 0.05
    for chunk in (b"a", b"b", b"c"):
        client.sendall(chunk)
    got = b""
    while len(got) < 3:
        got += client.recv(100)
    assert got == b"abc"


def test_a_server_that_is_down_resets() -> None:
    with Proxy(free_port()) as proxy, pytest.raises(ConnectionResetError):
        connect_and_listen(proxy)
