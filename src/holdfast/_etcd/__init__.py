"""What the etcd stores of both flavours share: the wire format, keys, exchanges, leases, watches."""
