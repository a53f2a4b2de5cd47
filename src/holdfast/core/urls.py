"""Store addresses: parse them, and never show what is secret in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

# Schemes whose hosts are independent servers, each with a login of its own before its name.
_LOGIN_PER_HOST = ("redlock",)

Login = tuple[str | None, str | None]  # user name and password


class StoreURL(NamedTuple):
    """A parsed address. Its str and repr hide the password."""

    scheme: str
    hosts: tuple[tuple[str, int | None], ...] = ()
    path: str = ""
    username: str | None = None
    password: str | None = None
    options: Mapping[str, str] = {}
    embedded: bool = False  # nobody chose it: the file of this user, made with its directory
    logins: tuple[Login, ...] = ()  # one for each host, where they differ

    def __repr__(self) -> str:
        return f"<StoreURL {self}>"

    def __str__(self) -> str:
        login = _shown((self.username, self.password))
        names = ((f"[{host}]" if ":" in host else host, port) for host, port in self.hosts)
        places = [name if port is None else f"{name}:{port}" for name, port in names]
        if self.logins:
            places = [_shown(login) + place for login, place in zip(self.logins, places, strict=True)]
        hosts = ",".join(places)
        slashes = "//" if hosts or self.path.startswith("/") or not self.path else ""
        return f"{self.scheme}:{slashes}{login}{hosts}{self.path}"

    def allow(self, *names: str) -> StoreURL:
        """Return the URL itself if it has no other options than these.

        Raises: ValueError naming the unknown option and the known ones.
        """
        for name in self.options:
            if name not in names:
                known = ", ".join(sorted(names)) or "none"
                raise ValueError(f"{self} has the unknown option {name!r}; {self.scheme}:// knows: {known}")
        return self


def parse_url(url: object) -> StoreURL:
    """Take a store address apart: `scheme://user:password@host:port,host:port/path?option=value`.

    Raises: ValueError with the rule; the text of the URL is shown only up to its scheme, it may hold a password.
    """
    if not isinstance(url, str):
        raise ValueError(f"a store URL must be a str like 'sqlite:///path/locks.db', not {type(url).__name__}")
    scheme, colon, _ = url.partition(":")
    if not colon or not scheme.replace("+", "").isalnum():
        raise ValueError(
            f"a store URL begins with a scheme, like 'sqlite:///path/locks.db'; got {len(url)} characters without one"
        )
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise ValueError(f"the {scheme}:// URL cannot be parsed; see its page under docs/stores") from None
    if parts.netloc and "@" in parts.path + parts.query + parts.fragment:
        # What stands before it may be the rest of a password: show nothing of it.
        raise ValueError(
            f"the {scheme}:// URL has an '@' after its hosts; write / ? # @ in a password as %2F %3F %23 %40"
        )
    if parts.fragment:
        raise ValueError(f"the {scheme}:// URL has a '#'; write it as %23 in a path or a password")
    if scheme.lower() in _LOGIN_PER_HOST:
        each = [place.rpartition("@") for place in parts.netloc.split(",")]
        login, places = "", ",".join(place for _, _, place in each)
        logins = tuple(_login(text) for text, _, _ in each) if any(text for text, _, _ in each) else ()
    else:
        login, _, places = parts.netloc.rpartition("@")
        logins = ()
    username, password = _login(login)
    return StoreURL(
        scheme=scheme.lower(),
        hosts=tuple(_host(scheme, n, place) for n, place in enumerate(places.split(","), 1)) if places else (),
        path=unquote(parts.path),
        username=username,
        password=password,
        options=options,
        logins=logins,
    )


def _login(text: str) -> Login:
    name, has_password, password = text.partition(":")
    return unquote(name) if name else None, unquote(password) if has_password else None


def _shown(login: Login) -> str:
    name, password = login
    if name is None and password is None:
        return ""
    return (name or "") + (":***" if password is not None else "") + "@"


def _host(scheme: str, number: int, place: str) -> tuple[str, int | None]:
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]"):  # no port; the colons belong to an IPv6 address
        host, port = place, ""
    host = host.removeprefix("[").removesuffix("]")
    if not host or (port and not (port.isascii() and port.isdigit() and 0 < int(port) < 65536)):
        raise ValueError(f"host number {number} of the {scheme}:// URL is not host or host:port")
    return host, int(port) if port else None
