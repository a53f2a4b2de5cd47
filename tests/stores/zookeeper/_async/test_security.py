"""ZooKeeper behind TLS, and with logins: who gets in, who does not, and what either is told."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, make_digest_acl

from holdfast._async.client import Client, connect
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.testing._async.runtime import eventually
from holdfast.testing.servers.certificates import AUTHORITY, CERTIFICATE, KEY, make_certificates
from holdfast.testing.servers.zookeeper import ZooKeeperServer
from tests.servers import needed

pytestmark = pytest.mark.server

SECRET = "hunter2"
IO = 2.0
LIMIT = 30.0  # a busy machine


@pytest.fixture(scope="module")
def secure() -> Iterator[ZooKeeperServer]:
    with needed(lambda: ZooKeeperServer(tls=True)) as server:
        yield server


@pytest.fixture(scope="module")
def plain() -> Iterator[ZooKeeperServer]:
    with needed(ZooKeeperServer) as server:
        yield server


@pytest.fixture(scope="module")
def strange(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of an authority that the servers know nothing of."""
    folder = tmp_path_factory.mktemp("strange")
    make_certificates(folder)
    return folder


async def works(url: str) -> bool:
    async with connect(url, io_timeout=IO) as locks:
        async with locks.lock("r", timeout=LIMIT):
            return True


async def refused(url: str, kind: type[StoreError] = StoreUnavailable) -> str:
    """Return with which words a client is refused that only wants to know whether it can work."""
    async with connect(url, io_timeout=IO) as locks:
        with pytest.raises(StoreError) as caught:
            await locks.ready()
    assert type(caught.value) is kind
    return str(caught.value)


# -- TLS


async def test_a_server_with_the_right_certificate_is_trusted(secure: ZooKeeperServer) -> None:
    assert await works(secure.url)
    async with connect(secure.url, io_timeout=LIMIT) as locks:  # more than one record of TLS
        async with locks.lock("r") as lease:
            value = "x" * 200_000
            await locks.register("k").write(value, fence=lease.fence)
            record = await locks.register("k").read()
            assert record is not None
            assert record.value == value
            held = [await locks.lock(f"r{number}").acquire() for number in range(50)]
            assert len(await locks.inspect()) == 51
            for one in held:
                await one.release()


async def test_a_certificate_for_another_host_is_refused(secure: ZooKeeperServer) -> None:
    said = await refused(f"zookeepers://localhost:{secure.port}?ca={secure.folder / AUTHORITY}")
    assert "TLS" in said
    assert "certificate is not valid for 'localhost'" in said


async def test_an_authority_that_nobody_knows_is_refused(secure: ZooKeeperServer, strange: Path) -> None:
    for query in ("", f"?ca={strange / AUTHORITY}"):
        said = await refused(f"zookeepers://127.0.0.1:{secure.port}{query}")
        assert "TLS" in said
        assert "certificate" in said


@pytest.mark.control
async def test_control_whoever_trusts_blindly_would_get_in(
    secure: ZooKeeperServer, strange: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the certificate that keeps these clients out, and nothing else."""
    import ssl

    def blind(**options: Any) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    monkeypatch.setattr(ssl, "create_default_context", blind)
    assert await works(f"zookeepers://localhost:{secure.port}?ca={secure.folder / AUTHORITY}")
    assert await works(f"zookeepers://127.0.0.1:{secure.port}?ca={strange / AUTHORITY}")


async def test_files_that_cannot_be_used_are_named(secure: ZooKeeperServer, strange: Path) -> None:
    right, missing, empty = secure.folder / AUTHORITY, strange / "missing.pem", strange / "empty.pem"
    empty.touch()
    for query, named in (
        (f"ca={missing}", missing),
        (f"ca={empty}", empty),
        (f"ca={right}&cert={missing}", missing),
        (f"ca={right}&cert={strange / CERTIFICATE}&key={missing}", missing),
        (f"ca={right}&cert={strange / CERTIFICATE}&key={empty}", empty),
    ):
        said = await refused(f"zookeepers://127.0.0.1:{secure.port}?{query}", StoreError)
        assert str(named) in said, query


async def test_a_certificate_of_the_client_is_taken(secure: ZooKeeperServer, strange: Path) -> None:
    pair = f"cert={strange / CERTIFICATE}&key={strange / KEY}"
    assert await works(f"zookeepers://127.0.0.1:{secure.port}?ca={secure.folder / AUTHORITY}&{pair}")


async def test_a_file_that_is_put_there_later_is_found(secure: ZooKeeperServer, tmp_path: Path) -> None:
    late = tmp_path / "late.pem"
    async with connect(f"zookeepers://127.0.0.1:{secure.port}?ca={late}", io_timeout=IO) as locks:
        with pytest.raises(StoreError, match=r"late\.pem"):
            await locks.ready()
        late.write_bytes((secure.folder / AUTHORITY).read_bytes())

        async def ready() -> bool:
            try:
                await locks.ready()
            except StoreError:
                return False
            return True

        await eventually(ready, limit=LIMIT)
        async with locks.lock("r", timeout=LIMIT):
            pass


async def test_tls_to_a_plain_port_says_what_to_write(plain: ZooKeeperServer, secure: ZooKeeperServer) -> None:
    said = await refused(f"zookeepers://127.0.0.1:{plain.port}?ca={secure.folder / AUTHORITY}")
    assert "TLS" in said
    assert "zookeeper://" in said


async def test_no_tls_to_a_port_that_wants_it_says_what_to_write(secure: ZooKeeperServer) -> None:
    assert "zookeepers://" in await refused(f"zookeeper://127.0.0.1:{secure.port}")


# -- logins


class Admin:
    """Looks at nodes and rights past the store, by the login that may do everything there."""

    def __init__(self, server: ZooKeeperServer, name: str) -> None:
        self.server = server
        self.chroot = f"/{name}"
        self._client = KazooClient(f"127.0.0.1:{server.port}", auth_data=[("digest", f"admin:{SECRET}")])
        self._client.start(LIMIT)
        self.own = make_digest_acl("admin", SECRET, all=True)

    def url(self, login: str = "", chroot: str = "") -> str:
        """Return where clients connect."""
        return f"zookeeper://{login}{'@' if login else ''}127.0.0.1:{self.server.port}{chroot or self.chroot}"

    def make(self, path: str, *acl: ACL) -> None:
        """Make a node with these rights, and with all for this login."""
        self._client.create(path, acl=[*acl, self.own])

    def tree(self, path: str) -> list[str]:
        """Return all nodes from this one on."""
        return [path, *(one for name in self._client.get_children(path) for one in self.tree(f"{path}/{name}"))]

    def acls(self, path: str) -> list[ACL]:
        """Return the rights on a node."""
        found: list[ACL] = self._client.get_acls(path)[0]
        return found

    def exists(self, path: str) -> bool:
        """Return whether there is a node."""
        return self._client.exists(path) is not None

    def close(self) -> None:
        """Leave."""
        self._client.stop()
        self._client.close()


@pytest.fixture
def admin(plain: ZooKeeperServer, request: pytest.FixtureRequest) -> Iterator[Admin]:
    found = Admin(plain, f"test{abs(hash(request.node.nodeid))}")
    yield found
    found.close()


def rights(name: str, password: str = SECRET, **granted: bool) -> ACL:
    return make_digest_acl(name, password, **(granted or {"all": True}))


def user(name: str, password: str = SECRET) -> str:
    return f"{name}:{password}"


async def use_everything(locks: Client) -> None:
    """Make a node of every kind."""
    async with locks.lock("r") as lease:
        await locks.register("k").write("v", fence=lease.fence, keep=60)
        assert await locks.register("k").read(lease.fence) is not None
        await locks.time()
        held = await locks.lock("r2", on_lost=bool).acquire()
        assert len(await locks.break_lock("r2", reason="to have a mark")) == 1
        assert held.token


@pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")
async def test_what_a_login_makes_belongs_to_it_alone(admin: Admin) -> None:
    async with connect(admin.url(user("admin")), io_timeout=LIMIT) as locks:
        await use_everything(locks)
        nodes = admin.tree(admin.chroot)
        kinds = {path.removeprefix(f"{admin.chroot}/holdfast").split("/")[1] for path in nodes[2:]}
        assert kinds == {"claims", "clock", "broken", "values", "ends", "floors"}
        assert [path for path in nodes if admin.acls(path) != [admin.own]] == []


@pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")
async def test_what_is_made_without_a_login_is_everybodys(admin: Admin) -> None:
    async with connect(admin.url(), io_timeout=LIMIT) as locks, connect(admin.url(user("other"))) as other:
        await use_everything(locks)
        assert await other.holders("r2") != []
        async with other.lock("r", timeout=LIMIT):
            pass


STRANGERS = {"nobody": "", "another": user("other"), "a wrong password": user("admin", "wrong")}


@pytest.mark.parametrize("who", STRANGERS)
@pytest.mark.filterwarnings("ignore:the lease on:ResourceWarning")
async def test_others_are_refused_and_told_which_rights_they_need(admin: Admin, who: str) -> None:
    async with connect(admin.url(user("admin")), io_timeout=LIMIT) as locks:
        lease = await locks.lock("r").acquire()
        await locks.register("k").write("v", fence=lease.fence)
        before = {path: admin.acls(path) for path in admin.tree(admin.chroot)}
        async with connect(admin.url(STRANGERS[who]), io_timeout=LIMIT) as stranger:
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "acquire": lambda: stranger.lock("r").try_acquire(),
                "another": lambda: stranger.lock("r2").try_acquire(),
                "holders": lambda: stranger.holders("r"),
                "inspect": lambda: stranger.inspect(),
                "break": lambda: stranger.break_lock("r", reason="to try"),
                "break now": lambda: stranger.break_lock("r", reason="to try", now=True),
                "read": lambda: stranger.register("k").read(),
                "enter": lambda: stranger.register("k").read(lease.fence),
                "write": lambda: stranger.register("k").write("w", fence=lease.fence),
                "time": lambda: stranger.time(),
                "ready": lambda: stranger.ready(),
            }
            for name, call in calls.items():
                with pytest.raises(StoreError, match=r"NoAuth.*needs all rights below") as caught:
                    await call()
                assert not isinstance(caught.value, StoreUnavailable), name
                assert admin.chroot in str(caught.value), name
                assert "wrong" not in str(caught.value), name
        assert {path: admin.acls(path) for path in admin.tree(admin.chroot)} == before
        await lease.renew()
        record = await locks.register("k").read()
        assert record is not None
        assert record.value == "v"
        await lease.release()


async def test_the_same_login_gets_in_from_elsewhere(admin: Admin) -> None:
    """The control of the test above: it is the login, and nothing else."""
    async with connect(admin.url(user("admin"))) as locks, connect(admin.url(user("admin"))) as other:
        async with locks.lock("r") as lease:
            assert [seen.token for seen in await other.holders("r")] == [lease.token]
        async with other.lock("r", timeout=LIMIT):
            pass


async def test_a_login_outlives_the_connection(admin: Admin) -> None:
    """Every connection logs in anew, before anything else is asked."""
    async with connect(admin.url(user("admin")), io_timeout=LIMIT) as locks:
        async with locks.lock("r") as lease:
            store: Any = locks._engine.store
            for session in store._shared.sessions:
                session.reconnect("to see what happens")

            async def renewed() -> bool:
                try:
                    await lease.renew()
                except StoreUnavailable:
                    return False
                return True

            await eventually(renewed, limit=LIMIT)
            assert [seen.token for seen in await locks.holders("r")] == [lease.token]


# -- the chroot


async def test_a_chroot_is_made_if_it_may(admin: Admin) -> None:
    deep = f"{admin.chroot}/app/locks"
    async with connect(admin.url(user("admin"), deep), io_timeout=LIMIT) as locks:
        async with locks.lock("r"):
            assert admin.exists(f"{deep}/holdfast/claims/default/r")
    async with connect(admin.url(user("admin"), f"{deep}/"), io_timeout=LIMIT) as locks:
        async with locks.lock("r2"):
            assert admin.exists(f"{deep}/holdfast/claims/default/r2")


async def test_a_chroot_that_may_not_be_made_is_refused_and_named(admin: Admin) -> None:
    admin.make(admin.chroot, rights("app", read=True))
    deep = f"{admin.chroot}/locks"
    async with connect(admin.url(user("app"), deep), io_timeout=LIMIT) as locks:
        calls: list[Callable[[], Awaitable[object]]] = [lambda: locks.lock("r").try_acquire(), lambda: locks.time()]
        for call in calls:
            with pytest.raises(StoreError, match=f"{deep}.*NoAuth.*needs all rights below") as caught:
                await call()
            assert not isinstance(caught.value, StoreUnavailable)
        assert await locks.holders("r") == []  # there is nothing to see, which is no secret
    assert not admin.exists(deep)


async def test_a_login_that_has_rights_on_its_chroot_alone_can_do_everything(admin: Admin) -> None:
    """Above it, nobody lets it in: neither to look nor to make what is there already."""
    admin.make(admin.chroot)
    deep = f"{admin.chroot}/app"
    admin.make(deep, rights("app"))
    async with connect(admin.url(user("app"), deep), io_timeout=LIMIT) as locks:
        async with locks.lock("r") as lease:
            await locks.register("k").write("v", fence=lease.fence, keep=60)
            assert await locks.register("k").read(lease.fence) is not None
            await locks.time()
        async with locks.lock("r2"):
            assert [state.resource for state in await locks.inspect()] == ["r2"]
    assert admin.exists(f"{deep}/holdfast")


async def test_a_login_that_may_use_what_is_there_and_make_nothing_above_needs_no_more(admin: Admin) -> None:
    """An administrator has made /holdfast for it."""
    admin.make(admin.chroot)
    admin.make(f"{admin.chroot}/holdfast", rights("app"))
    async with connect(admin.url(user("app")), io_timeout=LIMIT) as locks:
        async with locks.lock("r") as lease:
            await locks.register("k").write("v", fence=lease.fence, keep=60)


async def test_rights_that_are_too_few_are_named(admin: Admin) -> None:
    """It may read and create, and not delete: it could never give a lock back."""
    admin.make(admin.chroot)
    for path in ("/holdfast", "/holdfast/claims", "/holdfast/claims/default"):
        admin.make(admin.chroot + path, rights("app", read=True, create=True))
    async with connect(admin.url(user("app")), io_timeout=LIMIT) as locks:
        async with locks.lock("r"):
            pass  # its own nodes are below containers of its own
        with pytest.raises(StoreError, match=r"NoAuth.*needs all rights below"):
            await connect(admin.url(user("other")), io_timeout=LIMIT).lock("r2").try_acquire()


# -- secrets


async def test_a_password_appears_nowhere(
    admin: Admin, secure: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    password = "tr0ub4dor%26%2F3"
    said: list[str] = []
    admin.make(admin.chroot, rights("app", read=True))
    for url in (
        admin.url(user("app", password), f"{admin.chroot}/x"),
        f"zookeeper://{user('app', password)}@127.0.0.1:{secure.port}",
        f"zookeepers://{user('app', password)}@localhost:{secure.port}?ca={secure.folder / AUTHORITY}",
        f"zookeepers://{user('app', password)}@localhost:{secure.port}?ca=missing.pem",
    ):
        async with connect(url, io_timeout=0.5) as locks:
            with pytest.raises(StoreError) as caught:
                await locks.lock("r").acquire(0.5)
            store: Any = locks._engine.store
            shared = store._shared
            said += [repr(one) for one in (locks, store, shared, shared.link, *shared.sessions, caught.value)]
            said += [str(caught.value), repr(caught.value.__cause__), str(locks)]
    for url, error in (
        (f"zookeeper://:{password}@h", ValueError),
        (f"zookeeper://{user('a', password)}@h?x=1", ValueError),
    ):
        with pytest.raises(error) as wrong:
            connect(url)
        said.append(str(wrong.value))
    said.append(caplog.text)
    for secret in ("tr0ub4dor", "dor&/3"):
        assert not any(secret in text for text in said)
