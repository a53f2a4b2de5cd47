"""One call to etcd, in the asyncio flavour; the blocking one is `_sync/transport.py`.

grpc.aio is not used: it always keeps a thread inside gRPC, which makes its channels, and all later ones, useless in a
forked child.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from ..link import Peer, explain

Metadata = tuple[tuple[str, str], ...]


async def call(peer: Peer, method: str, request: bytes, seconds: float, metadata: Metadata) -> bytes:
    """Send a request and return the reply.

    Raises: StoreUnavailable without an answer in that time; what `explain` makes of a refusal.
    """
    loop = asyncio.get_running_loop()
    answered = loop.create_future()
    try:
        under_way = peer.unary(method).future(request, timeout=seconds, metadata=metadata)
    except ValueError as error:
        raise explain(error, peer) from None

    def tell(_: Any) -> None:
        try:
            loop.call_soon_threadsafe(_settle, answered)
        except RuntimeError:  # the loop is closed: nobody waits for this answer
            pass

    under_way.add_done_callback(tell)
    try:
        await answered
    finally:
        under_way.cancel()  # the caller was cancelled; otherwise it is over, and this does nothing
    try:
        reply: bytes = under_way.result()
    except (grpc.RpcError, grpc.FutureCancelledError) as error:
        raise explain(error, peer) from None
    return reply


def _settle(answered: asyncio.Future[None]) -> None:
    if not answered.done():
        answered.set_result(None)
