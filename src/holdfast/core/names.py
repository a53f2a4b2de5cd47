"""Names and numbers that users give: what is allowed, and errors that say the value and the rule."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from math import isfinite, nan
from typing import NoReturn

NAME_BYTES = 512
VALUE_BYTES = 4096
MIN_TTL = 0.5
MOST_KEPT = 1e9  # seconds
MOST_PERMITS = 1_000_000


def check_name(name: object, what: str = "resource") -> str:
    """Return the name unchanged if it is a legal one; it is never normalised."""
    if not isinstance(name, str):
        several = what == "resource" and isinstance(name, Iterable) and not isinstance(name, bytes | bytearray)
        move = "; for several names write lock_all(*names)" if several else ""
        raise ValueError(f"{what} must be a str of 1 to {NAME_BYTES} UTF-8 bytes, not {name!r}{move}")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} {name!r} cannot be encoded as UTF-8 (a lone surrogate?)") from None
    if not 1 <= size <= NAME_BYTES:
        shown = name if size <= NAME_BYTES else name[:40] + "…"
        raise ValueError(f"{what} {shown!r} has {size} UTF-8 bytes; 1 to {NAME_BYTES} are allowed")
    for char in name:
        if unicodedata.category(char) == "Cc":
            raise ValueError(f"{what} {name!r} has the control character {char!r}; names may not have any")
    return name


def clean_label(host: str, pid: int, name: str) -> str:
    """Return the label of an owner that nobody chose. A thread or task may have any name: it must not harm a record."""
    label = f"{host}:{pid}:{name}".encode("utf-8", "replace").decode()
    if len(label) > 200 or not label.isprintable():
        label = "".join(char if char.isprintable() else "?" for char in label)[:200]
    return label


def check_value(value: object, what: str, most: int = VALUE_BYTES) -> str:
    """Return the text unchanged if it is one that every store can keep: with a claim, or as long as `most` says."""
    if not isinstance(value, str):
        raise ValueError(f"{what} must be a str of at most {most} UTF-8 bytes, not {_short(repr(value))}")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise ValueError(f"{what} {_short(value)!r} cannot be encoded as UTF-8 (a lone surrogate?)") from None
    counted = ""
    if size <= most < size * 6:  # as some stores write them, control characters take six bytes
        controls = sum(char < " " and char not in "\t\n\r" for char in value)
        size, counted = size + 5 * controls, " (6 for a control character)" if controls else ""
    if size > most:
        raise ValueError(f"{what} {_short(value)!r} has {size} UTF-8 bytes{counted}; at most {most} are allowed")
    return value


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:40] + "…"


def check_number(value: object, what: str, *, least: float = 0.0, rule: str = "") -> float:
    """Return the value as a float if it is a finite number of at least `least`."""
    try:
        number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else nan
    except OverflowError:  # so large an int that not even its repr can be had
        raise ValueError(f"{what} must be a finite number of seconds; it has too many digits") from None
    if isfinite(number) and number >= least:
        return number
    raise ValueError(f"{what} must be a finite number of seconds, at least {least:g}{rule}, not {value!r}")


def check_keep(keep: object) -> float | None:
    """Return for how long a value is kept: None, for ever, or seconds that every store can count."""
    seconds = None if keep is None else check_number(keep, "keep", least=1.0, rule=" (or None: for ever)")
    if seconds is not None and seconds > MOST_KEPT:
        raise ValueError(f"keep must be at most {MOST_KEPT:g} s, not {keep!r}; None keeps it for ever")
    return seconds


def check_ttl(ttl: object) -> float:
    """Return a legal ttl in seconds."""
    return check_number(ttl, "ttl", least=MIN_TTL)


def check_timeout(timeout: object) -> float | None:
    """Return a legal timeout: None waits for ever, 0 asks once."""
    return None if timeout is None else check_number(timeout, "timeout", rule=" (None: wait for ever; 0: ask once)")


# What other libraries call it, and what to write here.
_FOREIGN = {
    "blocking": "to ask once, write try_acquire() or acquire(timeout=0)",
    "blocking_timeout": "write acquire(timeout=seconds)",
    "poll_interval": "leave it out: a waiter is woken",
    "sleep": "leave it out: a waiter is woken",
}


def refuse_foreign(call: str, names: Iterable[str]) -> NoReturn:
    """Refuse arguments that a call does not have."""
    name = next(iter(names))
    move = _FOREIGN.get(name)
    raise TypeError(f"{call}() has no argument {name!r}" + (f"; {move}" if move else ""))


def check_count(value: object, what: str) -> int:
    """Return a legal number of permits: a real int from 1 to a million."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_PERMITS:
        raise ValueError(f"{what} must be an int from 1 to {MOST_PERMITS}, not {value!r}")
    return value


def check_flag(value: object, what: str) -> bool:
    """Return the value if it is a real bool: a stray positional number must not pass for one."""
    if not isinstance(value, bool):
        raise ValueError(f"{what} must be True or False, not {value!r}")
    return value
