"""The embedded store's blocking half, the same for both flavours: asyncio calls it from a thread of its own."""
