"""The pure core: plain functions, dataclasses and tables. No I/O, no clock reads, no await."""
