"""`python -m holdfast` is the command `holdfast`."""

from .cli import main

raise SystemExit(main())
