"""The ZooKeeper store as coroutines; its blocking twin beside it is generated."""
