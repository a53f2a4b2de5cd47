"""Fenced registers: what was written stands, and the stale writer is refused. They serve law 2: a token is for this."""

from __future__ import annotations

from ...core.claim import Record
from ...core.events import TokenRejected
from ...core.fence import Fence
from ...core.register import MOST_BYTES
from ...errors import StaleToken
from ..check import Seen, raises
from ..law import law
from .case import Case


@law(2, "register")
async def register_keeps_what_was_written(case: Case) -> None:
    """Everybody reads the last value, whatever characters it has; an unwritten key is None."""
    store, other = await case.store(), await case.store()
    assert await store.read("k") is None
    for token, value in enumerate(("", "v", "ü🔒\n\0'\"", "x" * 100_000), 1):
        await store.write("k", value, Fence(case.namespace, "r", token))
        assert await other.read("k") == Record(value, token)
    assert await other.read("K") is None
    assert await (await case.store(namespace=case.namespace + "2")).read("k") is None


@law(2, "register")
async def register_refuses_the_stale_writer(case: Case) -> None:
    """A token older than one that was seen is refused and changes nothing; the same token may write again."""
    store = await case.store()
    await store.write("k", "new", Fence(case.namespace, "r", 20))
    with raises(StaleToken) as caught:
        await store.write("k", "old", Fence(case.namespace, "r", 19))
    assert "19" in caught.message
    assert "20" in caught.message
    assert caught.error.token == 19
    assert await store.read("k") == Record("new", 20)
    await store.write("k", "newer", Fence(case.namespace, "r", 20))
    assert await store.read("k") == Record("newer", 20)


@law(2, "register")
async def register_lets_live_readers_pass_each_other(case: Case) -> None:
    """Shared tokens enter unless an exclusive one is newer; an exclusive one enters only as the newest of all."""
    store = await case.store()

    def fence(token: int, shared: bool) -> Fence:
        return Fence(case.namespace, "r", token, shared)

    await store.write("k", "a", fence(10, False))
    await store.write("k", "b", fence(13, True))
    await store.write("k", "c", fence(11, True))
    with raises(StaleToken):
        await store.write("k", "d", fence(12, False))
    with raises(StaleToken):
        await store.write("k", "e", fence(9, True))
    await store.write("k", "f", fence(13, False))
    with raises(StaleToken):
        await store.write("k", "g", fence(12, True))
    assert await store.read("k") == Record("f", 13)


@law(2, "register")
async def register_forgets_its_value_and_not_its_fence(case: Case) -> None:
    """After `keep` seconds there is nothing to read, and the stale writer is still refused."""
    store = await case.store()
    await store.write("k", "v", Fence(case.namespace, "r", 20), 1.0)
    await store.write("stays", "v", Fence(case.namespace, "r", 20), None)
    assert await store.read("k") == Record("v", 20)
    await case.advance(1.0 + case.past)
    assert await store.read("k") is None
    assert await store.read("stays") == Record("v", 20)
    with raises(StaleToken):
        await store.write("k", "old", Fence(case.namespace, "r", 19))
    await store.write("k", "new", Fence(case.namespace, "r", 21))
    assert await store.read("k") == Record("new", 21)


@law(2, "register")
async def register_read_through_a_fence_shuts_older_writers_out(case: Case) -> None:
    """Whoever reads with its fence has entered: nothing can be written behind its back, and the value stays."""
    store = await case.store()

    def fence(token: int) -> Fence:
        return Fence(case.namespace, "r", token)

    for key, written in (("empty", None), ("full", Record("v", 10))):
        if written is not None:
            await store.write(key, written.value, fence(written.token))
        assert await store.read(key, fence(20)) == written
        with raises(StaleToken):
            await store.write(key, "late", fence(19))
        with raises(StaleToken):
            await store.read(key, fence(19))
        assert await store.read(key) == written
        await store.write(key, "new", fence(20))
        assert await store.read(key, fence(20)) == Record("new", 20)


@law(2, "register")
async def paused_holder_cannot_write_after_its_successor(case: Case) -> None:
    """The whole story: the lease runs out during a pause, another writes, and the late write is refused and told of."""
    seen = Seen()
    client, rival = await case.client(observers=[seen]), await case.client()
    stale = await client.lock("r", ttl=case.ttl).acquire()
    await client.register("k").write("first", fence=stale.fence)
    await client.orphan()
    await case.advance(case.ttl + case.past)
    async with rival.lock("r", ttl=60) as lease:
        assert await rival.register("k").read(lease.fence) == Record("first", stale.token)
        await rival.register("k").write("successor", fence=lease.fence)
    with raises(StaleToken) as caught:
        await client.register("k").write("stale", fence=stale.fence)
    assert (caught.error.token, caught.error.newest) == (stale.token, lease.token)
    with raises(StaleToken):
        await client.register("k").read(stale.fence)
    assert await client.register("k").read() == Record("successor", lease.token)
    told = [event for event in seen if isinstance(event, TokenRejected)]
    facts = ("register 'k'", case.namespace, "r", stale.token, lease.token)
    assert [(e.guard, e.namespace, e.resource, e.token, e.newest) for e in told] == [facts] * 2


@law(13, "register")
async def value_that_a_register_cannot_keep_is_refused(case: Case) -> None:
    """256 KiB in UTF-8 are kept; nothing is sent of more, nor of a write whose fence is none of this namespace."""
    client, other = await case.client(), await case.client()
    async with client.lock("r", ttl=60) as lease:
        register = client.register("k")
        for value in ("x" * MOST_BYTES, "ü" * (MOST_BYTES // 2), "\0" * (MOST_BYTES // 6), "\n" * MOST_BYTES):
            await register.write(value, fence=lease.fence)
            assert await other.register("k").read() == Record(value, lease.token)
        with raises(ValueError) as caught:
            await register.write("\0" * (MOST_BYTES // 6 + 1), fence=lease.fence)
        with raises(ValueError) as caught:
            await register.write("ü" * (MOST_BYTES // 2) + "x", fence=lease.fence)
        assert f"{MOST_BYTES + 1} UTF-8 bytes" in caught.message
        for fence in (lease.fence._replace(namespace="another"), lease.token, None):
            with raises(ValueError):
                await register.write("v", fence=fence)  # type: ignore[arg-type]
        assert client.tap.count("write") == 4
    assert await register.read() == Record(value, lease.token)
