"""This store, written once as coroutines; `_sync` is generated from it."""
