"""What this store knows of its host: boot, machine, file systems, and which processes are alive."""

from __future__ import annotations

import os
import re
from pathlib import Path

# File systems on which neither SQLite's locks nor its shared memory work between machines.
NETWORK = {
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse.ceph", "fuse.cephfs", "fuse.glusterfs", "fuse.gcsfuse",
    "fuse.juicefs", "fuse.rclone", "fuse.s3fs", "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "ocfs2", "smb3", "smbfs", "virtiofs",
}  # fmt: skip

_PROC = Path("/proc")


def boot_id() -> str:
    """Return what changes when the machine starts again; empty if unknown."""
    if text := _read(_PROC / "sys/kernel/random/boot_id"):
        return text
    return _sysctl("kern.bootsessionuuid")


def machine_id() -> str:
    """Return what stays with the machine (or container image); empty if unknown."""
    return _read(Path("/etc/machine-id")) or _read(Path("/var/lib/dbus/machine-id")) or _sysctl("kern.uuid")


def file_system(path: Path, mounts: str | None = None) -> str:
    """Return the type of the file system that a path is on; empty if unknown."""
    text = _read(_PROC / "self/mountinfo") if mounts is None else mounts
    best, kind = -1, ""
    for line in text.splitlines():
        left, dash, right = line.partition(" - ")
        fields = left.split()
        if not dash or len(fields) < 5 or not right:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), fields[4])  # a space is written \040
        inside = point == "/" or str(path) == point or str(path).startswith(point + "/")
        # A later mount on the same point covers the earlier one.
        if inside and len(point) >= best:
            best, kind = len(point), right.split()[0]
    return kind


def process_id() -> str:
    """Return a name of this process that no other gets: pid namespace, pid and start time; empty if unknown."""
    try:
        space = os.stat(_PROC / "self/ns/pid").st_ino
    except OSError:
        return ""
    facts = _stat(os.getpid())
    return f"{space}:{os.getpid()}:{facts[1]}" if facts is not None else ""


def pid_of(process: str, own: str) -> int | None:
    """Return the pid of another process if its name means something in our pid namespace."""
    space, _, rest = process.partition(":")
    if not rest or not own or space != own.partition(":")[0] or process == own:
        return None
    return int(rest.partition(":")[0])


def is_dead(process: str, own: str) -> bool:
    """Return whether a process is known to be dead. One of another pid namespace never is."""
    pid = pid_of(process, own)
    if pid is None:
        return False
    facts = _stat(pid)
    if facts is None:
        # Hidden is not dead: with hidepid the files of other users' processes are missing while they run.
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False
    state, start = facts
    if start != process.rpartition(":")[2]:
        return True
    # A zombie whose main thread alone has ended may still have others that run.
    return state in "ZX" and len(_tasks(pid)) <= 1


def _stat(pid: int) -> tuple[str, str] | None:
    try:
        with open(f"{_PROC}/{pid}/stat", "rb", buffering=0) as file:
            text = file.read()
    except OSError:
        return None
    fields = text.rpartition(b")")[2].decode().split()  # the name before it may hold spaces and parentheses
    return (fields[0], fields[19]) if len(fields) > 19 else None


def _tasks(pid: int) -> list[str]:
    try:
        return os.listdir(_PROC / str(pid) / "task")
    except OSError:
        return []


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").strip()
    except OSError:
        return ""


def _sysctl(name: str) -> str:
    if os.uname().sysname != "Darwin":
        return ""
    import subprocess

    done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
    return done.stdout.strip()
