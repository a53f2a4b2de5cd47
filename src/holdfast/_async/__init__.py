"""The shell, written once as coroutines; `_sync` is generated from it."""
