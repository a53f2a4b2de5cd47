"""A subprocess that gives up root and then tries to lock: as_nobody.py PATH. Prints the error, or the token."""

import os
import sys
import tempfile

import holdfast

with tempfile.TemporaryDirectory() as folder:  # loads all that it needs while it still may read Python's own files
    with holdfast.connect(f"sqlite://{folder}/locks.db") as locks, locks.lock("job"):
        pass
locks = holdfast.connect(f"sqlite://{sys.argv[1]}")
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
try:
    with locks.lock("job", timeout=0) as lease:
        print("token", lease.token)
except holdfast.LockError as error:
    print(type(error).__name__, error)
