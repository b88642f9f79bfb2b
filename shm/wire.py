"""The control protocol's bytes: a 4-byte little-endian length, then one msgpack map.

Reading takes two steps, so that a message which is no good still gets an answer under its id:
`read_envelope` takes `type`, `id` and `fds` out of any message, `Decoder.decode` the rest. What
`read_envelope` refuses ends the session; what `Decoder.decode` refuses is an error reply.
"""

from __future__ import annotations

from typing import Annotated, Any, Union

import msgspec
from msgspec import Meta, Struct

from mcpd.shm.errors import InvalidRequest, LimitExceeded, ProtocolError
from mcpd.shm.messages import MAX_FDS, MAX_MESSAGE_NBYTES, Message

HEADER_NBYTES = 4
_SEEN_LENGTH = 80
_UNREADABLE = (msgspec.DecodeError, RecursionError)


class Envelope(Struct):
    """What is read of every message, of a known type or not."""

    type: str
    id: Annotated[int, Meta(ge=0)] = 0
    fds: Annotated[int, Meta(ge=0, le=MAX_FDS)] = 0


_encoder = msgspec.msgpack.Encoder()
_envelope_decoder = msgspec.msgpack.Decoder(Envelope)
_any_decoder = msgspec.msgpack.Decoder(Any)


def encode(message: Message) -> bytes:
    """The bytes of `message` as they go over the socket, length included.

    Raises:
        LimitExceeded: The message is longer than MAX_MESSAGE_NBYTES.
        InvalidRequest: A number in it has more than 64 bits, or a value has no form in msgpack.
    """
    try:
        body = _encoder.encode(message)
    except (OverflowError, TypeError, ValueError) as error:
        name = type(message).__struct_config__.tag
        raise InvalidRequest(f"message {name!r} cannot be encoded: {error}") from error
    if len(body) > MAX_MESSAGE_NBYTES:
        raise LimitExceeded(
            f"message {type(message).__struct_config__.tag!r} has {len(body)} bytes, "
            f"the limit is {MAX_MESSAGE_NBYTES}",
            "Pixels and tensors travel in a stream, long lists in pages.",
        )
    return len(body).to_bytes(HEADER_NBYTES, "little") + body


def body_length(header: bytes | bytearray | memoryview) -> int:
    """The length that a message's first 4 bytes announce.

    Raises:
        ProtocolError: It is 0 or above MAX_MESSAGE_NBYTES.
    """
    length = int.from_bytes(header[:HEADER_NBYTES], "little")
    if not 0 < length <= MAX_MESSAGE_NBYTES:
        raise ProtocolError(
            f"message length {length} is not in 1..{MAX_MESSAGE_NBYTES}",
            "Each message starts with its length as 4 bytes, little-endian.",
        )
    return length


def read_envelope(body: bytes) -> Envelope:
    """Type, id and descriptor count of a message whose type need not be known.

    Raises:
        ProtocolError: Not a msgpack map, or one without a proper `type`, `id` or `fds`.
    """
    try:
        return _envelope_decoder.decode(body)
    except _UNREADABLE as error:
        raise ProtocolError(
            f"message of {len(body)} bytes is not readable: {error}",
            "A message is one msgpack map with `type`, and `id` if it is a request.",
        ) from error


class Decoder:
    """Reads messages of the types given, told apart by their `type` field. Safe for threads."""

    def __init__(self, types: tuple[type[Message], ...]) -> None:
        self._tags = frozenset(str(kind.__struct_config__.tag) for kind in types)
        union: Any = Union[types]  # noqa: UP007  (a union made at run time)
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(union)

    def decode(self, body: bytes) -> Message:
        """The typed message in `body`, which is a message without its length.

        Raises:
            ProtocolError: Not a message at all; see read_envelope.
            InvalidRequest: Of a type that does not belong here, or a field of it is wrong.
        """
        try:
            return self._decoder.decode(body)
        except _UNREADABLE as error:
            # Whatever else is wrong with it: what has no envelope ends the session.
            envelope = read_envelope(body)
            if envelope.type not in self._tags:
                raise InvalidRequest(
                    f"unknown message type {_shown(envelope.type)}",
                    f"Types understood here: {', '.join(sorted(self._tags))}.",
                ) from error
            reason = str(error)
            raise InvalidRequest(f"{envelope.type}: {reason}{_value_at(body, reason)}") from error


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SEEN_LENGTH else text[: _SEEN_LENGTH - 3] + "..."


def _value_at(body: bytes, reason: str) -> str:
    """The value that msgspec's path in `reason` (as "- at `$.spec.slots`") leads to, if any."""
    _, found, path = reason.rpartition("- at `$.")
    if not found:
        return ""
    try:
        value = _any_decoder.decode(body)
        for key in path.rstrip("`").split("."):
            value = value[key]
    except (*_UNREADABLE, KeyError, TypeError, IndexError):
        return ""
    return f" (value {_shown(value)})"
