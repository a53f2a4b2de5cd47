"""Get the servers that the tests start: installs what is missing, or says which tests are left out.

In CI a missing server is an error: a test that was left out must not look like one that passed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

# The program or jar, the Debian package that has it, and what cannot be tested without it.
SERVERS = (
    ("redis-server", "redis-server", "redis:// and redlock://"),
    ("etcd", "etcd-server", "etcd://"),
    ("java", "default-jre-headless", "zookeeper://"),
    ("zookeeper.jar", "zookeeper", "zookeeper://"),
)
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/bin", "/usr/share/java"))


def missing() -> list[tuple[str, str, str]]:
    """Return the servers that this machine does not have."""
    return [server for server in SERVERS if shutil.which(server[0], os.F_OK, _PATH) is None]  # F_OK: nobody runs a jar


def install(packages: list[str]) -> None:
    """Install Debian packages, with what apt says only if it fails."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # and start no service
    for arguments in (["update"], ["install", "--yes", "--no-install-recommends", *packages]):
        done = subprocess.run(
            ["apt-get", *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
        )
        if done.returncode:
            print(f"apt-get {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}", file=sys.stderr)


def main() -> int:
    """Install what is missing if that is possible; return 1 if a server is still missing in CI."""
    wanted = [package for _, package, _ in missing()]
    if wanted and shutil.which("apt-get") and os.geteuid() == 0:
        print(f"==> servers for the tests: installing {', '.join(wanted)} (Debian's packages)")
        install(wanted)
    for program, package, stores in missing():
        print(f"{program} is missing (Debian: apt-get install {package}): the tests of {stores} are left out")
    return 1 if missing() and os.environ.get("CI") else 0


if __name__ == "__main__":
    sys.exit(main())
