"""One call to etcd, in the blocking flavour; the asyncio one is `_async/transport.py`."""

from __future__ import annotations

import grpc

from ..link import Peer, explain

Metadata = tuple[tuple[str, str], ...]


def call(peer: Peer, method: str, request: bytes, seconds: float, metadata: Metadata) -> bytes:
    """Send a request and return the reply.

    Raises: StoreUnavailable without an answer in that time; what `explain` makes of a refusal.
    """
    try:
        reply: bytes = peer.unary(method)(request, timeout=seconds, metadata=metadata)
    except (grpc.RpcError, ValueError) as error:
        raise explain(error, peer) from None
    return reply
