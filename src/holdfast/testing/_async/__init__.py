"""The laws, written once as coroutines; the twin in `_sync` is generated."""
