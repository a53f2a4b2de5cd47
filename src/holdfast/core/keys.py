"""Keys made from a template and the arguments of a call: different arguments of the same types never share one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import date
from enum import Enum
from string import Formatter
from typing import NamedTuple
from urllib.parse import quote
from uuid import UUID

# Values may have these as they are; everything else is escaped. So any other character separates two values.
_PLAIN = "-._~%"


class Template(NamedTuple):
    """Text with {names} in it. `parts` are pairs of literal text and the name that follows, None at the end."""

    text: str
    parts: tuple[tuple[str, str | None], ...]

    @property
    def names(self) -> list[str]:
        """The names, in order."""
        return [name for _, name in self.parts if name is not None]

    def fill(self, arguments: Mapping[str, object]) -> str:
        """Return the key of these arguments.

        Raises: TypeError for a value that has no text of its own.
        """
        return "".join(
            literal if name is None else literal + quote(_text(name, arguments[name]), safe="")
            for literal, name in self.parts
        )


def parse_template(text: object, names: Collection[str] | None = None) -> Template:
    """Take a template apart and check it against the names that a function has (None: whatever it names).

    Raises: ValueError with the rule that it breaks.
    """
    if not isinstance(text, str):
        raise ValueError(f"a template must be a str like 'invoice:{{number}}', not {text!r}")
    try:
        found = list(Formatter().parse(text))
    except ValueError as error:
        raise ValueError(f"the template {text!r} cannot be parsed: {error}; write {{{{ for a brace") from None
    parts: list[tuple[str, str | None]] = []
    literal = ""  # all of it since the last name: an escaped brace comes as a part of its own
    for text_before, name, spec, conversion in found:
        literal += text_before
        if name is None:
            continue
        if not name.isidentifier() or spec or conversion:
            raise ValueError(f"the template {text!r} may have plain {{names}} only, not {{{name}}} with more to it")
        if names is not None and name not in names:
            known = ", ".join(names) or "none"
            raise ValueError(f"the template {text!r} names {name!r}, which is no parameter; there are: {known}")
        if parts and all(c in _PLAIN or (c.isascii() and c.isalnum()) for c in literal):
            raise ValueError(
                f"the template {text!r} has nothing before {{{name}}} that cannot be part of a value; "
                "put a ':' or a '/' between two names"
            )
        parts.append((literal, name))
        literal = ""
    return Template(text, (*parts, (literal, None)))


def _text(name: str, value: object) -> str:
    if isinstance(value, Enum) and value.name is not None:  # an empty flag has no name
        return value.name
    if isinstance(value, str | int | UUID):
        return str(value)
    if isinstance(value, date):  # a datetime is one, too
        return value.isoformat()
    raise TypeError(
        f"{name} must be a str, int, UUID, date or Enum to be part of a key, not {value!r}; use key= for anything else"
    )
