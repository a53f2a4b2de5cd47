"""The keeper of a client's leases, for both flavours: threads, and the signals between them."""
