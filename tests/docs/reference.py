"""The reference, drawn from docstrings: what help() and an editor tell is what the page tells.

A docstring is one sentence, then paragraphs, lines `name: what it means, its default, what it costs` (several names
with commas between them; what follows is indented), and `Raises:`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import holdfast
from holdfast import events, stores
from holdfast._sync.acquirable import Acquirable
from holdfast._sync.once import Once

_ARGUMENT = re.compile(r"(\w+(?:, \w+)*): (\S.*)")
_OPTIONS = "options of `lock`"

# In what order names are shown. What is not here comes at the end of the last one: `observe` and views.
CONNECT = ("connect", "Client", "release_on_sigterm")
LOCKS = ("Lock", "Semaphore", "RWLock", "MultiLock", "Tree", "Election", "Once", "RateLimit")
HELD = ("Lease", "Leases", "TreeLease", "Term", "Leader", "Fence", "Cancel")
VIEWS = ("ResourceState", "ClaimState", "Capabilities")
MODULES = ("aio", "events", "observe", "stores")

Explained = dict[tuple[str, ...], str]


class Doc(NamedTuple):
    """A docstring, taken apart."""

    paragraphs: list[str]
    arguments: Explained
    raises: str

    @property
    def names(self) -> set[str]:
        """The arguments that are explained."""
        return {name for names in self.arguments for name in names}


def parse(thing: object) -> Doc:
    """Take a docstring apart."""
    paragraphs: list[str] = []
    arguments: Explained = {}
    raises = ""
    for block in (inspect.getdoc(thing) or "").split("\n\n"):
        lines = block.split("\n")
        if block.startswith("    "):  # an example
            paragraphs.append(f"```py\n{inspect.cleandoc(block)}\n```")
        elif block.startswith("Raises: "):
            raises = _joined(lines).removeprefix("Raises: ")
        elif _ARGUMENT.fullmatch(lines[0]):
            arguments.update(_arguments(lines))
        else:
            paragraphs.append(_joined(lines))
    return Doc(paragraphs, arguments, raises)


def _arguments(lines: list[str]) -> Explained:
    found: Explained = {}
    names: tuple[str, ...] = ()
    for line in lines:
        start = _ARGUMENT.fullmatch(line)
        if start:
            names = tuple(start[1].split(", "))
            found[names] = start[2]
        else:
            assert line.startswith("    "), f"neither an argument nor the rest of one: {line!r}"
            found[names] += f" {line.strip()}"
    return found


def _joined(lines: list[str]) -> str:
    return " ".join(line.strip() for line in lines)


def members(kind: type) -> dict[str, Any]:
    """Return the methods and properties of a class that are for users, those of its public bases aside."""
    found: dict[str, Any] = {}
    for base in kind.__mro__:
        foreign = not base.__module__.startswith("holdfast") or base in shown()
        if base is not kind and (foreign or (base is Acquirable and kind is not holdfast.Lock)):
            break
        for name, value in vars(base).items():
            described = isinstance(value, property) or (inspect.isfunction(value) and value.__doc__)
            if described and (not name.startswith("_") or name == "__call__"):
                found.setdefault(name, value)
    return found


def shown() -> Mapping[type, str]:
    """Return the classes that the page shows, with the names that they have there."""
    found = ((name, getattr(place, name)) for place in (holdfast, events, stores) for name in place.__all__)
    return {Once: "Once"} | {value: name for name, value in found if inspect.isclass(value)}


def fields(kind: type) -> tuple[str, ...]:
    """Return the fields of a named tuple, or those of an event that not all events have."""
    if issubclass(kind, events.Event):
        return kind.fields if kind is events.Event else tuple(kind.__annotations__)
    names: tuple[str, ...] = getattr(kind, "_fields", ())
    return names


def unexplained(function: Callable[..., Any], doc: Doc) -> list[str]:
    """Return the parameters of a function that its docstring does not explain."""
    missing = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        if name == "options" and parameter.kind is parameter.VAR_KEYWORD:
            if _OPTIONS not in " ".join(doc.paragraphs):
                missing.append(f"**{name} ({_OPTIONS})")
        elif name not in doc.names:
            missing.append(name)
    return missing


def signature(name: str, function: Callable[..., Any]) -> str:
    """Draw how a function is called."""
    drawn = inspect.signature(function)
    parameters = [each for each in drawn.parameters.values() if each.name != "self"]
    plain = drawn.replace(parameters=parameters)
    text = name + _unquoted(plain).replace("= Ellipsis", "= ...")
    if len(text) <= 100:
        return text
    inside, _, returned = text[len(name) + 1 :].rpartition(")")
    return f"{name}(\n" + "".join(f"    {part},\n" for part in _split(inside)) + f"){returned}"


def _unquoted(drawn: inspect.Signature) -> str:
    """Draw a signature whose annotations are text, as in the source."""

    def plain(note: object) -> object:
        return _Text(re.sub(r"\bL\b", "Lease", note)) if isinstance(note, str) else note

    parameters = [each.replace(annotation=plain(each.annotation)) for each in drawn.parameters.values()]
    return str(drawn.replace(parameters=parameters, return_annotation=plain(drawn.return_annotation)))


class _Text:
    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _split(inside: str) -> Iterator[str]:
    depth, part = 0, ""
    for char in inside:
        depth += (char in "([{") - (char in ")]}")
        if char == "," and depth == 0:
            yield part.strip()
            part = ""
        else:
            part += char
    if part.strip():
        yield part.strip()


def draw(*names: str, of: Any = holdfast, level: int = 3) -> str:
    """Draw these names of a module."""
    return "\n\n".join(part for name in names for part in _draw(name, _find(of, name), "#" * level))


def _find(module: Any, name: str) -> Any:
    return Once if name == "Once" else getattr(module, name)


def _draw(name: str, thing: Any, hashes: str) -> Iterator[str]:
    yield f"{hashes} {name}"
    if inspect.isfunction(thing):
        yield from _draw_function(name, thing)
    elif inspect.isclass(thing):
        yield from _draw_class(thing, hashes)


def _draw_function(name: str, function: Callable[..., Any]) -> Iterator[str]:
    yield f"```py\n{signature(name, function)}\n```"
    yield from _draw_doc(parse(function))


def _draw_doc(doc: Doc) -> Iterator[str]:
    yield from doc.paragraphs
    if doc.arguments:
        yield "\n".join(
            f"- {', '.join(f'`{name}`' for name in names)}: {text}" for names, text in doc.arguments.items()
        )
    if doc.raises:
        yield f"**Raises** {doc.raises}"


def _draw_class(kind: type, hashes: str) -> Iterator[str]:
    yield from _draw_doc(parse(kind))
    bases = [f"[{shown()[base]}](#{shown()[base].lower()})" for base in kind.__mro__[1:] if base in shown()]
    if bases and not issubclass(kind, events.Event):
        yield f"Also has what {bases[0]} has."
    elif issubclass(kind, Acquirable) and kind is not holdfast.Lock:
        yield "It is acquired, entered and used as a decorator as a [Lock](#lock) is."
    found = members(kind)
    properties = {name: value for name, value in found.items() if isinstance(value, property)}
    if properties:
        yield "\n".join(f"- `.{name}`: {_told(value)}" for name, value in properties.items())
    twins: dict[type, type] = {stores.Store: stores.AsyncStore, stores.FullStore: stores.AsyncFullStore}
    twin = twins.get(kind) or getattr(holdfast.aio, kind.__name__, None)
    for name, value in found.items():
        if name not in properties:
            decorates = name == "__call__"
            label = f"@{shown()[kind].lower()}" if decorates else f".{name}()"
            yield f"{hashes}# `{label}`{_in_asyncio(twin, name)}"
            yield from _draw_doc(parse(value)) if decorates else _draw_function(name, value)


def _told(value: property) -> str:
    doc = parse(value)
    return " ".join([*doc.paragraphs, *([f"**Raises** {doc.raises}"] if doc.raises else [])])


def _in_asyncio(twin: Any, name: str) -> str:
    function = inspect.unwrap(getattr(twin, name, bool))
    if inspect.isasyncgenfunction(function):
        return " · `async for` in asyncio"
    return " · awaited in asyncio" if inspect.iscoroutinefunction(function) else ""


def rest() -> list[str]:
    """Return the public names that no section has."""
    errors = {name for name in holdfast.__all__ if _is_error(getattr(holdfast, name))}
    return [name for name in holdfast.__all__ if name not in {*CONNECT, *LOCKS, *HELD, *VIEWS, *MODULES, *errors}]


def _is_error(thing: object) -> bool:
    return inspect.isclass(thing) and issubclass(thing, holdfast.LockError)


def _errors() -> str:
    return draw("LockError", *(n for n in holdfast.__all__ if n != "LockError" and _is_error(getattr(holdfast, n))))


def _events() -> str:
    return draw("Event", *(name for name in events.__all__ if name not in ("Event", "Observer")), of=events)


def _stores() -> str:
    elsewhere = {"AsyncFullStore", "AsyncStore", "AsyncStoreFactory", *holdfast.__all__}
    kinds = [n for n in stores.__all__ if n not in elsewhere and callable(getattr(stores, n))]
    protocol = ("Store", "FullStore", "StoreFactory", "Blocking")
    return draw(*protocol, *(name for name in kinds if name not in protocol), of=stores)


PARTS: dict[str, Callable[[], str]] = {
    "reference-connect": lambda: draw(*CONNECT),
    "reference-locks": lambda: draw(*LOCKS),
    "reference-held": lambda: draw(*HELD),
    "reference-views": lambda: draw(*VIEWS, *rest()),
    "reference-observe": lambda: draw("add", "remove", of=holdfast.observe),
    "reference-errors": _errors,
    "reference-events": _events,
    "reference-stores": _stores,
}
