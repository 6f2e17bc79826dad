# SPDX-License-Identifier: Apache-2.0
"""The members of OpenAI's requests: read one by one, each when its type is known.

A body is not decoded as a whole. Each member stays JSON text until somebody needs its value. Small
bodies are read in the event loop, and what comes of large ones is written there, so only texts and
messages may be long, and members and parts are few.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from pytriton.protocol.openai.errors import OpenAIError, wrong

if TYPE_CHECKING:
    from pytriton.base.dtypes import Buffer

MAX_MEMBERS = 256
MAX_MEMBER_BYTES = 256 << 10  # of all that is neither messages nor texts: 20 ms, however it is made
_NULL = b"null"
# Too deep arrays and objects raise RecursionError.
_MALFORMED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_document = msgspec.json.Decoder(dict[str, msgspec.Raw])
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


class _Long(msgspec.Struct, gc=False):
    """The members that may be long; the others are skipped."""

    messages: msgspec.Raw = msgspec.Raw()
    prompt: msgspec.Raw = msgspec.Raw()
    input: msgspec.Raw = msgspec.Raw()


_long = msgspec.json.Decoder(_Long)


def decode(raw: Buffer | msgspec.Raw, kind: Any, name: str, expected: str) -> Any:
    """Decode a member, or a part of one; `expected` is its type in words.

    Raises:
        OpenAIError: It has another type.
    """
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        return decoder.decode(raw)
    except _MALFORMED as error:
        raise wrong(name, f"expected {expected} as '{name}': {error}") from None


def decode_objects(
    raw: Buffer | msgspec.Raw, kind: Any, name: str, expected: str, most: int
) -> list[msgspec.Raw]:
    """Decode an array of at most `most` objects, each of which stays JSON text.

    `kind` is a type with the members that each object has, so that a long array of anything else is
    refused at its first element.

    Raises:
        OpenAIError: It is something else, or has more of them.
    """
    is_long = len(bytes(raw)) > MAX_MEMBER_BYTES
    count = len(decode(raw, list[kind], name, expected)) if is_long else 0
    if count <= most:
        objects: list[msgspec.Raw] = decode(raw, list[msgspec.Raw], name, expected)
        count = len(objects)
        if count <= most:
            return objects
    raise wrong(name, f"expected at most {most} objects as '{name}', got {count}")


def _check_rest(body: Buffer) -> None:
    """Raise OpenAIError if a body has too much besides its texts: it would be slow to read."""
    size = len(body)
    if size <= MAX_MEMBER_BYTES:
        return
    long = _long.decode(body)
    rest = size - sum(len(bytes(each)) for each in (long.messages, long.prompt, long.input))
    if rest > MAX_MEMBER_BYTES:
        raise OpenAIError(
            400,
            f"expected at most {MAX_MEMBER_BYTES} bytes besides 'messages', 'prompt' and 'input', "
            f"got {rest}",
            code="invalid_value",
        )


class DocumentMembers:
    """The members of a request that nobody has taken yet; those that are null do not count."""

    def __init__(self, body: Buffer) -> None:
        try:
            _check_rest(body)
            document = _document.decode(body)
        except _MALFORMED as error:
            raise OpenAIError(
                400, f"expected a JSON object as the body of the request: {error}"
            ) from None
        if len(document) > MAX_MEMBERS:
            raise OpenAIError(400, f"expected at most {MAX_MEMBERS} members, got {len(document)}")
        self._left = {name: raw for name, raw in document.items() if bytes(raw) != _NULL}

    def __contains__(self, name: str) -> bool:
        return name in self._left

    def peek(self, name: str) -> bytes:
        """Returns a member as JSON text, and leaves it for others."""
        return bytes(self._left[name])

    def take(self, name: str, kind: Any, expected: str) -> Any:
        """Take a member that is there; `expected` is its type in words.

        Raises:
            OpenAIError: It has another type.
        """
        return decode(self._left.pop(name), kind, name, expected)

    def value(self, name: str, kind: Any = Any, expected: str = "a value") -> Any:
        """Take a member as JSON has it; OpenAIError if it is too large, or not of this type."""
        raw = self.peek(name)
        if len(raw) > MAX_MEMBER_BYTES:
            raise wrong(
                name,
                f"expected at most {MAX_MEMBER_BYTES} bytes of JSON as '{name}', got {len(raw)}",
            )
        if kind is not Any:
            decode(raw, kind, name, expected)
        return self.take(name, Any, "a value")

    def text(self, name: str) -> str:
        """Take a text; an empty one if there is none."""
        value: str = self.take(name, str, "a text") if name in self._left else ""
        return value

    def flag(self, name: str) -> bool:
        """Take a boolean; False if there is none."""
        value: bool = name in self._left and self.take(name, bool, "true or false")
        return value

    def integer(self, name: str, default: int, lowest: int, highest: int) -> int:
        """Take an integer within limits."""
        if name not in self._left:
            return default
        value: int = self.take(name, int, "an integer")
        if not lowest <= value <= highest:
            raise wrong(name, f"expected {lowest} to {highest} as '{name}', got {value}")
        return value

    def texts(self, name: str) -> list[str]:
        """Take a text or a list of texts; an empty list if there is none."""
        if name not in self._left:
            return []
        value: str | list[str] = self.take(name, str | list[str], "a text or a list of texts")
        return [value] if isinstance(value, str) else value

    def drop(self, *names: str) -> None:
        for name in names:
            self._left.pop(name, None)

    def names(self) -> list[str]:
        """Returns the names of those that nobody has taken."""
        return list(self._left)
