"""The command `holdfast`. Nothing is imported here that needs the extra `cli`: workers of the demo pass through."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line, or say what to install where the extra `cli` is missing."""
    try:
        from .app import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing in ("", "holdfast"):  # our own fault, which must not be taken for a missing package
            raise
        print(
            f"holdfast: the command line needs {missing!r}, which is not installed: pip install 'holdfast[cli]'",
            file=sys.stderr,
        )
        return 2
    app(prog_name="holdfast")
    return 0
