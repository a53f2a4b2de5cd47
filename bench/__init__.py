"""Benchmarks of holdfast: ours, the raw floor and the peers in one run. `python -m bench --help`."""
