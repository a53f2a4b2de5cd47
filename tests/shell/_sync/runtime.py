"""What the blocking tests of the shell do otherwise than the asyncio ones."""

from __future__ import annotations

from tests.shell.threads import activities

__all__ = ["activities"]
