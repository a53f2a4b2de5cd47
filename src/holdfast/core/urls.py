"""Store addresses: parse them, and never show what is secret in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..errors import StoreError

# Schemes whose hosts are independent servers, each with a login of its own before its name.
_LOGIN_PER_HOST = ("redlock",)

# Who usually listens there: for those who leave out the scheme.
_PORTS = {"6379": "redis", "26379": "redis+sentinel", "2379": "etcd", "2181": "zookeeper"}

Login = tuple[str | None, str | None]  # user name and password


class StoreURL(NamedTuple):
    """An address, taken from a URL or from a client object. Its str and repr hide the password.

    scheme: what stands before the colon, in lower case.
    hosts: pairs of host and port; None where no port is given.
    path: what follows the hosts, with its slash.
    username, password: the login; None if there is none.
    options: what follows the `?`, by name.
    embedded: whether nobody chose it: the file of this user, made with its directory.
    logins: pairs of user name and password, one for each host, where they differ.
    ask_login: called for every login, instead of a password that is known: returns the user name, or None, and the
        password. It may take long and raise, and is called in any thread. Only for a store with `asks_login = True`.
    """

    scheme: str
    hosts: tuple[tuple[str, int | None], ...] = ()
    path: str = ""
    username: str | None = None
    password: str | None = None
    options: Mapping[str, str] = {}
    embedded: bool = False
    logins: tuple[Login, ...] = ()
    ask_login: Callable[[], Login] | None = None

    def __repr__(self) -> str:
        return f"<StoreURL {self}>"

    def __str__(self) -> str:
        login = "" if self.logins else self._shown((self.username, self.password))
        names = ((f"[{host}]" if ":" in host else host, port) for host, port in self.hosts)
        endpoints = [name if port is None else f"{name}:{port}" for name, port in names]
        if self.logins:
            endpoints = [self._shown(login) + endpoint for login, endpoint in zip(self.logins, endpoints, strict=True)]
        hosts = ",".join(endpoints)
        slashes = "//" if hosts or self.path.startswith("/") or not self.path else ""
        return f"{self.scheme}:{slashes}{login}{hosts}{self.path}"

    def _shown(self, login: Login) -> str:
        name, password = login
        secret = password is not None or self.ask_login is not None
        return (name or "") + (":***" if secret else "") + "@" if secret or name is not None else ""

    def with_password(self, password: object) -> StoreURL:
        """Return the same address with another password.

        password: a str, or a callable that returns one for every login.

        Raises: ValueError if it is neither.
        """
        text = password if isinstance(password, str) else None
        logins = tuple((name, text) for name, _ in self.logins)
        if text is not None:
            return self._replace(password=text, logins=logins, ask_login=None)
        if not callable(password):
            raise ValueError(f"password must be a str, or a callable that returns one, not {type(password).__name__}")
        from inspect import iscoroutinefunction

        if iscoroutinefunction(password):
            raise ValueError(
                "password must be a plain function, not a coroutine function: threads call it that have no event loop"
            )
        return self._replace(password=None, logins=logins, ask_login=_AskedPassword(password))

    def with_options(self, options: Mapping[str, str | bool]) -> StoreURL:
        """Return the same address with more options.

        options: by name; True and False stand for `true` and `false`.

        Raises: ValueError if one is neither a str nor a bool.
        """
        for name, value in options.items():
            if not isinstance(value, str | bool):
                raise ValueError(f"the option {name!r} must be a str or a bool, not {type(value).__name__}")
        given = {name: value if isinstance(value, str) else str(value).lower() for name, value in options.items()}
        return self._replace(options={**self.options, **given})

    def allow(self, *names: str) -> StoreURL:
        """Return the URL itself if it has no other options than these.

        names: the options that the store knows.

        Raises: ValueError naming the unknown option and the known ones.
        """
        for name in self.options:
            if name not in names:
                known = ", ".join(sorted(names)) or "none"
                raise ValueError(f"{self} has the unknown option {name!r}; {self.scheme}:// knows: {known}")
        return self


class _AskedPassword:
    """A login whose password a callable returns. Its repr shows nothing of it."""

    __slots__ = ("_ask",)

    def __init__(self, ask: Callable[[], object]) -> None:
        self._ask = ask

    def __call__(self) -> Login:
        password = self._ask()
        if not isinstance(password, str):
            kind = type(password).__name__
            raise StoreError(f"the callable that was given as the password has to return a str; it returned {kind}")
        return None, password


def parse_url(url: object) -> StoreURL:
    """Take a store address apart: `scheme://user:password@host:port,host:port/path?option=value`.

    Raises: ValueError with the rule; the text of the URL is shown only up to its scheme, it may hold a password.
    """
    if not isinstance(url, str):
        raise ValueError(f"a store URL must be a str like 'sqlite:///path/locks.db', not {type(url).__name__}")
    scheme, colon, rest = url.partition(":")
    if not colon or not scheme.replace("+", "").isalnum() or _is_host(scheme, rest):
        raise ValueError(_without_scheme(url))
    from urllib.parse import parse_qsl, unquote, urlsplit  # not at the top: it is a tenth of the import of holdfast

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
        each = [text.rpartition("@") for text in parts.netloc.split(",")]
        login, hosts = "", ",".join(host for _, _, host in each)
        logins = tuple(_login(text) for text, _, _ in each) if any(text for text, _, _ in each) else ()
    else:
        login, _, hosts = parts.netloc.rpartition("@")
        logins = ()
    username, password = _login(login)
    return StoreURL(
        scheme=scheme.lower(),
        hosts=tuple(_host(scheme, n, text) for n, text in enumerate(hosts.split(","), 1)) if hosts else (),
        path=unquote(parts.path),
        username=username,
        password=password,
        options=options,
        logins=logins,
    )


def _is_host(scheme: str, rest: str) -> bool:
    """Return whether what stands before the first colon is a host or a user name: host:port, user:password@host."""
    return scheme.lower() != "sqlite" and (_is_port(rest.partition("/")[0]) or ("@" in rest and rest[:2] != "//"))


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= 5 and 0 < int(text) < 65536


def _without_scheme(url: str) -> str:
    """Say what to write instead. The text is shown if it is a host and a port: else it may hold a password."""
    host, _, rest = url.rpartition(":")
    port, _, database = rest.partition("/")
    named = all(char.isalnum() or char in "._-" for char in host) or (host[:1] == "[" and host[-1:] == "]")
    if host and named and "@" not in host and _is_port(port) and (not database or database.isdecimal()):
        stores = (_PORTS[port],) if port in _PORTS else ("redis", "etcd")
        return f"{url!r} has no scheme; write {' or '.join(f'{store}://{url}' for store in stores)}"
    return (
        "a store URL begins with a scheme, like 'sqlite:///path/locks.db' or 'redis://host:6379'; "
        f"got {len(url)} characters without one"
    )


def _login(text: str) -> Login:
    from urllib.parse import unquote

    name, has_password, password = text.partition(":")
    return unquote(name) if name else None, unquote(password) if has_password else None


def _host(scheme: str, number: int, text: str) -> tuple[str, int | None]:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):  # no port; the colons belong to an IPv6 address
        host, port = text, ""
    host = host.removeprefix("[").removesuffix("]")
    if not host or (port and not _is_port(port)):
        raise ValueError(f"host number {number} of the {scheme}:// URL is not host or host:port")
    return host, int(port) if port else None
