"""Other processes: `Child` starts one; run as a program, this module is one, and plays a role of child_roles.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_SOURCE = Path(__file__).resolve().parents[2]


class Child:
    """A process that plays a role. It says what it does by lines of JSON in a file, so that nobody blocks reading."""

    def __init__(self, folder: Path, flavour: str, role: str, **arguments: Any) -> None:
        name = f"child-{os.urandom(4).hex()}"
        self._out = folder / f"{name}.out"
        self._errors = folder / f"{name}.err"
        self.stop_file = folder / f"{name}.stop"
        arguments["stop"] = str(self.stop_file)
        path = os.pathsep.join(filter(None, (str(_SOURCE), os.environ.get("PYTHONPATH"))))
        with self._out.open("wb") as out, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.testing.child", flavour, role, json.dumps(arguments)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=errors,
                env={**os.environ, "PYTHONPATH": path},
            )

    @property
    def said(self) -> list[Any]:
        """What it has said so far.

        Raises: AssertionError if it has failed.
        """
        status = self._process.poll()
        errors = self._errors.read_text(errors="replace")
        assert status in (None, 0, -signal.SIGKILL), f"the child ended with {status}: {errors}"
        complete = self._out.read_text().rpartition("\n")[0]
        return [json.loads(line) for line in complete.splitlines()]

    def heard(self, count: int = 1) -> bool:
        """Return whether it has said that much."""
        return len(self.said) >= count

    @property
    def ended(self) -> bool:
        """Return whether the process has ended."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """Ask it to come to its end."""
        self.stop_file.touch()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it without any chance to clean up."""
        self._process.kill()
        self._process.wait()


def say(*facts: object) -> None:
    """Tell the parent."""
    print(json.dumps(facts), flush=True)


def told(sign: str) -> bool:
    """Return whether the parent has put this file there."""
    return os.path.exists(sign)


def ended(pid: int) -> None:
    """Wait for the end of a forked child."""
    os.waitpid(pid, 0)


def main() -> None:
    """Play the role that the command line names."""
    flavour, role, arguments = sys.argv[1:]
    getattr(import_module(f"holdfast.testing._{flavour}.child_roles"), role)(**json.loads(arguments))


if __name__ == "__main__":
    main()
