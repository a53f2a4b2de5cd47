"""The wire format of protobuf, as far as etcd's messages use it: varints and byte strings, by field number."""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import StoreError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MASK = (1 << 64) - 1
_MOST_FIELD = (1 << 29) - 1

_SMALL = [bytes((number,)) for number in range(0x80)]  # most numbers in a message are lengths and tags

Fields = dict[int, list[int | bytes]]


class WireError(StoreError):
    """These bytes are not a protobuf message, or not the expected one."""


def varint(number: int) -> bytes:
    """Encode an int64, or any number below 2^64."""
    if 0 <= number < 0x80:
        return _SMALL[number]
    number &= _MASK
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_TAGS = [varint(tag) for tag in range(65 << 3)]  # etcd's highest field is 64


def number(field: int, value: int) -> bytes:
    """Encode a number or flag; zero is left out, as in protobuf."""
    return _TAGS[field << 3 | _VARINT] + varint(value) if value else b""


def text(field: int, value: bytes) -> bytes:
    """Encode a byte string; an empty one is left out."""
    return message(field, value) if value else b""


def message(field: int, value: bytes) -> bytes:
    """Encode a message inside another; an empty one is encoded, too."""
    return _TAGS[field << 3 | _BYTES] + varint(len(value)) + value


def messages(field: int, values: Iterable[bytes]) -> bytes:
    """Encode a list of messages."""
    return b"".join([message(field, value) for value in values])


def parse(data: bytes) -> Fields:
    """Take a message apart.

    Raises: WireError if it is damaged.
    """
    found: Fields = {}
    at, end = 0, len(data)
    while at < end:
        # Most tags and lengths have one byte: what a call for each would cost is a third of all this.
        tag = data[at]
        at += 1
        if tag > 0x7F:
            tag, at = _varint(data, at - 1)
        field, kind = tag >> 3, tag & 7
        if not 0 < field <= _MOST_FIELD:
            raise WireError(f"field number {field} at byte {at}")
        value: int | bytes
        if kind == _VARINT:
            value, at = _varint(data, at)
        elif kind == _BYTES:
            if at < end and (size := data[at]) < 0x80:
                at += 1
            else:
                size, at = _varint(data, at)
            if size > end - at:
                raise WireError(f"{size} bytes are announced at byte {at}, and {end - at} are there")
            value = data[at : at + size]
            at += size
        elif kind in (_FIXED64, _FIXED32):  # our messages have none: skipped, like everything unknown
            _, at = _slice(data, at, 8 if kind == _FIXED64 else 4)
            continue
        else:
            raise WireError(f"wire type {kind} at byte {at}")
        if field in found:
            found[field].append(value)
        else:
            found[field] = [value]
    return found


def signed(fields: Fields, field: int) -> int:
    """Return an int64; 0 if it is missing."""
    value = _last_number(fields, field)
    return value - (1 << 64) if value >> 63 else value


def unsigned(fields: Fields, field: int) -> int:
    """Return a uint64; 0 if it is missing."""
    return _last_number(fields, field)


def string(fields: Fields, field: int) -> bytes:
    """Return a byte string; empty if it is missing."""
    found = strings(fields, field)
    return found[-1] if found else b""


def strings(fields: Fields, field: int) -> list[bytes]:
    """Return a list of byte strings or messages."""
    return [value for value in fields.get(field, ()) if isinstance(value, bytes)]


def inner(fields: Fields, field: int) -> Fields:
    """Return a message inside a message; one that comes in pieces is one, as protobuf says."""
    return parse(b"".join(strings(fields, field)))


def _last_number(fields: Fields, field: int) -> int:
    for value in reversed(fields.get(field, ())):
        if isinstance(value, int):
            return value
    return 0


def _varint(data: bytes, at: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 0x80:
        return data[at], at + 1
    value = shift = 0
    while True:
        if at >= len(data):
            raise WireError("it ends in the middle of a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > _MASK:
                raise WireError(f"a number of more than 64 bits before byte {at}")
            return value, at
        shift += 7
        if shift > 63:
            raise WireError(f"a number of more than ten bytes before byte {at}")


def _slice(data: bytes, at: int, size: int) -> tuple[bytes, int]:
    if size > len(data) - at:
        raise WireError(f"{size} bytes are announced at byte {at}, and {len(data) - at} are there")
    return data[at : at + size], at + size
