"""A password that a callable gives: asked for at every login, by both sides of a client, whatever the callable does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

import pytest

from holdfast._async.client import connect
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.testing._async.runtime import eventually, spawn
from tests.stores.redis.kit import Deployment

pytestmark = pytest.mark.server


class Vault:
    """Knows the password, and who has asked for it. `before` is called first."""

    def __init__(self, password: str, before: Callable[[], object] = lambda: None) -> None:
        self.password = password
        self.before = before
        self.asked = 0

    def __call__(self) -> str:
        self.asked += 1
        self.before()
        return self.password


class Guarded(NamedTuple):
    """A server and a user whose password changes."""

    deployment: Deployment
    url: str

    def set_password(self, password: str) -> None:
        """Change the password, and end the connections that were made with the old one."""
        (server,) = self.deployment.servers
        server.call("ACL", "SETUSER", "worker", "resetpass", f">{password}")
        server.call("CLIENT", "KILL", "USER", "worker")


@pytest.fixture
def guarded(single: Deployment) -> Guarded:
    url = single.as_user("+@all", password="first")
    return Guarded(single, url.replace("worker:first@", "worker@"))


async def test_it_is_asked_for_at_every_login_also_by_the_keeper(guarded: Guarded):
    vault = Vault("first")
    async with connect(guarded.url, password=vault) as locks:
        assert vault.asked == 0  # connect() does nothing
        lease = await locks.lock("r", ttl=3).acquire()
        for password in ("second", "third"):
            vault.password, vault.asked = password, 0
            guarded.set_password(password)
            await eventually(lambda: vault.asked > 0, limit=20)  # the keeper has to renew
            lease.check()
            async with locks.lock("other", timeout=20):  # and so do those who acquire
                pass
        await eventually(lambda: lease.state == "held", limit=20)
        await lease.release()


async def test_a_wait_outlasts_a_change(guarded: Guarded):
    """The subscription logs in, too."""
    vault = Vault("first")
    async with connect(guarded.deployment.url) as holder, connect(guarded.url, password=vault) as locks:
        lease = await holder.lock("r").acquire()
        call = spawn(locks.lock("r").acquire, 40)
        (server,) = guarded.deployment.servers
        await eventually(lambda: len(server.call("PUBSUB", "CHANNELS", "holdfast.wake:*")) == 1)
        vault.password = "second"
        guarded.set_password("second")
        await eventually(lambda: len(server.call("PUBSUB", "CHANNELS", "holdfast.wake:*")) == 1, limit=20)
        await lease.release()
        await (await call.join()).release()


async def test_what_it_raises_is_an_outage(guarded: Guarded, caplog: pytest.LogCaptureFixture):
    fails = [OSError("the vault says s3cret")] * 3

    def fail() -> None:
        if fails:
            raise fails.pop()

    vault = Vault("first", fail)
    with caplog.at_level(logging.DEBUG):
        async with connect(guarded.url, password=vault) as locks:
            with pytest.raises(
                StoreUnavailable, match="the callable that gives the password has raised OSError"
            ) as caught:
                await locks.lock("r").try_acquire()
            assert "s3cret" not in str(caught.value)
            async with locks.lock("r", timeout=20):  # an outage is tolerated until the timeout
                assert not fails
    assert "s3cret" not in caplog.text


async def test_a_password_that_is_refused_may_have_changed_just_now(guarded: Guarded):
    vault = Vault("wr0ng")
    async with connect(guarded.url, password=vault) as locks:
        with pytest.raises(StoreUnavailable, match="refused the password that was asked for: WRONGPASS") as caught:
            await locks.lock("r").try_acquire()
        assert "wr0ng" not in str(caught.value)
        vault.before = lambda: setattr(vault, "password", "first" if vault.asked > 3 else "wr0ng")
        async with locks.lock("r", timeout=20):
            assert vault.asked > 3
    async with connect(guarded.url, password="wr0ng") as locks:  # one that does not change is wrong for good
        with pytest.raises(StoreError, match="refuses the user name or the password") as refused:
            await locks.lock("r").try_acquire()
        assert type(refused.value) is StoreError


async def test_one_that_is_slower_than_any_exchange_still_lets_in(guarded: Guarded):
    gate = threading.Event()
    vault = Vault("first", lambda: gate.wait(40))
    async with connect(guarded.url, password=vault, io_timeout=0.2) as locks:
        for _ in range(3):  # nobody waits longer than for a server that is silent
            with pytest.raises(StoreUnavailable, match=r"did not return within 0\.2 s"):
                await locks.lock("r").try_acquire()
        assert vault.asked <= 2  # and there is one call for each side of the client, however many wait for it
        gate.set()
        async with locks.lock("r", timeout=20):
            pass


async def test_what_is_not_a_password_is_an_error(guarded: Guarded):
    async with connect(guarded.url, password=lambda: None) as locks:  # type: ignore[arg-type,return-value]
        with pytest.raises(StoreError, match="has to return a str; it returned NoneType") as caught:
            await locks.lock("r").acquire(20)
        assert type(caught.value) is StoreError
