"""A subprocess that stops in the middle of a write: paused_writer.py PATH. Ends its transaction at a line on stdin."""

import sqlite3
import sys

connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("writing", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
connection.close()
print("done", flush=True)
