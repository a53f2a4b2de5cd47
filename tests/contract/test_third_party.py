"""An asyncio store of a third party that knows nothing of keepers: it keeps all laws but that of a blocked loop."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core.promises import LAWS
from holdfast.testing import contract
from holdfast.testing.contract import Law, Target

pytestmark = pytest.mark.slow

# What such a store has to have, and no more: neither blocking() nor evict(), nor a limit for renewals.
MODULE = """
from holdfast.stores.memory._async.store import MemoryStore
from holdfast.stores.memory._sync.store import MemoryStore as Store


class AsyncStore:
    capabilities = MemoryStore.capabilities._replace(evict=False)

    def __init__(self, url, *, namespace, io_timeout, clock):
        self._store = store = MemoryStore(url, namespace=namespace, io_timeout=io_timeout, clock=clock)
        self.ready, self.claim, self.wait = store.ready, store.claim, store.wait
        self.inspect, self.watch, self.read, self.write = store.inspect, store.watch, store.read, store.write
        self.interrupt, self.close = store.interrupt, store.close

    async def renew(self, claims):
        return await self._store.renew(claims)

    async def release(self, resource, holder, keep=0.0):
        return await self._store.release(resource, holder, keep)
"""

STORE = Target("plain://", driven=True)
# The laws of the memory store, which is behind it, but for what this one does not have.
EXPECTED = [
    law for law in contract.laws(Target("memory://", driven=True), ["async"]) if not law.needs & {"blocking", "evict"}
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Install a package that keeps plain://."""
    folder: Path = tmp_path_factory.mktemp("plain")
    info = folder / "plain_locks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plain-locks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[holdfast.stores]\nplain = plain_locks\n")
    (folder / "plain_locks.py").write_text(MODULE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("PYTHONPATH", str(folder))  # for the children of laws about several processes
        importlib.invalidate_caches()
        yield


def test_all_laws_apply_but_those_that_need_a_blocking_side(installed: None) -> None:
    found = contract.laws(STORE, ["async"])
    assert [str(law) for law in found] == [str(law) for law in EXPECTED]
    assert {law.number for law in found} >= set(LAWS) - {15}
    assert not any("blocking" in law.needs for law in found)


@pytest.mark.parametrize("law", EXPECTED, ids=str)
def test_law(law: Law, installed: None) -> None:
    law.run(STORE)
