"""What the tests of the primitives share."""

from __future__ import annotations

from holdfast._async.client import Client
from holdfast.core.claim import find
from holdfast.testing._async.runtime import eventually


async def waiting(locks: Client, resource: str, count: int = 1) -> None:
    """Wait until so many stand in line for a resource."""

    async def counted() -> bool:
        state = find(await locks.inspect(resource), resource)
        return state is not None and len(state.waiters) == count

    await eventually(counted)
